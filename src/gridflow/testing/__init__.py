"""Tools for testing your own jobs and launchers."""
