"""The description of a job before it runs: roles, strategy, deadlines, program. Data, no I/O."""
