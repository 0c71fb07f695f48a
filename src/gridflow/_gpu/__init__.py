"""GPUs of tasks: finding, assigning and locking them."""
