"""What an agent does beside its task: TensorBoard's files and server."""
