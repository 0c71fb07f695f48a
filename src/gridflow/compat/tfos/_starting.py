"""Driver-side helpers for starting, feeding and ending a cluster."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec import jvm
from gridflow.compat.tfos import _setting
from gridflow.errors import GridflowError, StartTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._handle import JobHandle
    from gridflow.compat.tfos import reservation

_LOOK_SECONDS: Final = 0.05


def keras_environment() -> dict[str, str]:
    """Return the variable that selects ``tf.keras``'s version, if it is set on the driver."""
    name = _setting.KERAS
    return {name: os.environ[name]} if name in os.environ else {}


def default_fs(sc: Any) -> str:
    """Return the default file system of Spark's Hadoop configuration, without trailing slash."""
    found = str(jvm.java_context(sc).hadoopConfiguration().get("fs.defaultFS"))
    bare = len("file://")
    return found[:-1] if found.startswith("file://") and len(found) > bare else found


def is_dynamic(sc: Any) -> bool:
    """Return whether Spark allocates executors dynamically."""
    return str(sc.getConf().get("spark.dynamicAllocation.enabled", "false")).lower() == "true"


def await_nodes(
    server: reservation.Server, handle: JobHandle, seconds: float
) -> list[dict[str, Any]]:
    """Return the nodes sorted by number, once all have registered.

    Raises `GridflowError`: If the job failed. The job has a deadline for each stage of its start,
        and its errors are more specific than a timeout here.
    """
    give_up = time.monotonic() + seconds
    while not server.reservations.done():
        if handle.done():
            handle.result()
            raise GridflowError("the cluster ended before all of its nodes had registered.")
        if time.monotonic() > give_up:
            missing = server.reservations.remaining()
            raise StartTimeout(f"{missing} nodes did not register in time (reservation_timeout).")
        time.sleep(_LOOK_SECONDS)
    return sorted(server.reservations.get(), key=lambda node: int(node["executor_id"]))


def wait_for_end(handle: JobHandle) -> None:
    """Wait until a cluster has ended, successfully or not."""
    while not handle.done():
        time.sleep(_LOOK_SECONDS)


def run_beside(handle: JobHandle, tag: str, work: Callable[[], None]) -> BaseException | None:
    """Run a Spark job while a cluster runs; return its error, or None.

    The job is cancelled if the cluster fails.

    `handle`: The cluster's handle.
    `tag`: Spark job tag, used to cancel the job.
    `work`: Runs the job.
    """
    from pyspark.sql import SparkSession

    from gridflow._launch.spark import session

    spark = SparkSession.builder.getOrCreate()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            session.tag_this_thread(spark, tag)
            work()
        except BaseException as error:  # noqa: BLE001 (the caller's thread raises it)
            errors.append(error)

    thread = session.make_thread(spark, run, "gridflow-tfos-feed")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            if handle.state == "failed":
                session.cancel(spark, tag)
    except BaseException:
        session.cancel(spark, tag)
        raise
    return errors[0] if errors else None


def is_stream(rows: Any) -> bool:
    """Return whether `rows` is a DStream, which a future pyspark may no longer have."""
    module = sys.modules.get("pyspark.streaming.dstream")
    return module is not None and isinstance(rows, module.DStream)
