"""What scripts and notebooks ask of a Spark session: its executors and parameter servers."""

from __future__ import annotations

from gridflow._launch.spark.configured import num_executors, num_param_servers

__all__ = ["num_executors", "num_param_servers"]
