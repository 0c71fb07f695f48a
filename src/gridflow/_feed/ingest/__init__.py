"""Sources of rows, one module for each kind of data."""
