"""The process beside each task: it starts, feeds, watches and ends the training process."""
