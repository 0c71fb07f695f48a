"""The description of a job; users import its names from `gridflow.deploy`."""
