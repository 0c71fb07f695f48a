"""Several independent nodes, for example for inference on files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow.compat.tfos import _alias, _launcher, _node, _setting
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable


def run(
    sc: Any,
    map_fn: Callable[[Any, Any], Any],
    tf_args: Any,
    num_executors: int,
    use_barrier: bool = True,
) -> None:
    """Call a function once on each node, and return when all nodes have ended.

    Parameters
    ----------
    sc : SparkContext
    map_fn : callable
        ``map_fn(tf_args, ctx)``. ``ctx`` has the attributes ``worker_num``, ``executor_id``,
        ``num_workers`` and ``defaultFS``, and the method ``absolute_path``.
    tf_args : argparse.Namespace, dict or list
        Its ``num_gpus`` is the number of GPUs for each node.
    num_executors : int
        Number of nodes.
    use_barrier : bool, default True
        Whether all nodes run at the same time. If not, they take turns where Spark has fewer slots.

    Raises
    ------
    InvalidArgument, NotEnoughSlots, NotEnoughGpus
        At the call, before anything starts.
    TrainingFailed
        If the function failed on a node; contains its traceback. The other nodes are stopped.
    """
    from pyspark.sql import SparkSession

    from gridflow._distributor import TensorflowDistributor
    from gridflow._launch.spark.launcher import SparkLauncher
    from gridflow._launch.spark.session import task_slots
    from gridflow._spec.option_groups import Deadlines

    if isinstance(num_executors, bool) or not isinstance(num_executors, int) or num_executors < 1:
        raise InvalidArgument(f"num_executors must be at least 1; got {num_executors!r}.")
    spark = SparkSession.builder.getOrCreate()
    _alias.send_along(sc)
    at_once = num_executors
    if not use_barrier:
        at_once = min(num_executors, max(task_slots(spark) or 1, 1))
    for first in range(0, num_executors, at_once):
        TensorflowDistributor(
            min(at_once, num_executors - first),
            "none",
            gpus=_setting.num_gpus(tf_args),
            launcher=SparkLauncher(spark),
            deadlines=Deadlines(step=None),
            env=_launcher.keras_environment(),
            progress=False,
        ).run(_node.run_alone, first, num_executors, _launcher.default_fs(sc), map_fn, tf_args)
