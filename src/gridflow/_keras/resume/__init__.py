"""Checkpoints, and exact resume from them."""
