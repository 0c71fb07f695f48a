"""Checkpoints, and going on from one exactly where it was made."""
