"""What runs inside the training process: the only place where TensorFlow is imported."""
