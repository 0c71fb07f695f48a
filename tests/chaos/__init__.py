"""Real jobs whose processes are killed, stopped, starved or cut off: ``python -m chaos``."""
