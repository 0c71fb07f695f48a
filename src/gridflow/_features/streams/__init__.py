"""Rows that are pushed: what the driver decides of them, and the agents that take them."""
