"""What a job is, before anything runs: roles, strategy, needs, deadlines, program. Data, no I/O."""
