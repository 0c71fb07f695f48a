"""How agents come to life on a target."""
