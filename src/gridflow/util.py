"""Helpers for Spark sessions in scripts and notebooks: quiet logs, counts of executors."""

from __future__ import annotations

from gridflow._launch.spark.configured import num_executors, num_param_servers, quiet

__all__ = ["num_executors", "num_param_servers", "quiet"]
