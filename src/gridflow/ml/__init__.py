"""Models on DataFrames."""
