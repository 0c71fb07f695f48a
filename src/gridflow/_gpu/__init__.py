"""GPUs of tasks: how many each one needs, which it is given, and that nobody else takes them."""
