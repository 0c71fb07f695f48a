"""TensorBoard beside the chief."""
