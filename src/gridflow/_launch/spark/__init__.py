"""Agents as the tasks of a Spark job."""
