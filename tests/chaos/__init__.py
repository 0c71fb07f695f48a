"""Real jobs whose processes are killed, stopped, starved and denied disks: ``python -m chaos``."""
