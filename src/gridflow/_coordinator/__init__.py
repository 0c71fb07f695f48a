"""The part in the driver that owns a job's state."""
