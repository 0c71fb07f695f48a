"""Spark ML's Estimator and Model over `gridflow.TensorflowDistributor`."""
