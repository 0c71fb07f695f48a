"""Checkpoints outside of the training process: where they are kept, and the agents' way there."""
