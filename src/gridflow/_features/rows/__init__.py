"""Rows of datasets: what the driver decides of them, and what agents do with them."""
