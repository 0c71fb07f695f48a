"""The functions that are sent to Spark's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow._feed.ingest.jvm_files import Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from gridflow._feed.ingest.base import RankRows
    from gridflow._wire.payload import AgentPayload


def agent_body(
    payload: AgentPayload, places: tuple[int, ...], rows: RankRows | None, gpu_shares: int
) -> Any:
    """Return the stage's function."""
    body = importing("gridflow._launch.spark.task", "run_task", payload, places, rows, gpu_shares)
    return taking(rows, body)


def importing(module: str, name: str, *arguments: Any) -> Any:
    """Return a stage's function that calls another one, with arguments before the batches.

    It is sent by value, so it can report a missing package.
    """
    gridflow_version = _version()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import sys

        try:
            function = getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise ImportError(
                f"gridflow {gridflow_version} can't be imported by {sys.executable} on an "
                f"executor: {error}"
            ) from error
        yield from function(*arguments, batches)

    return run


def taking(
    rows: RankRows | None, function: Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[Any]]:
    """Return a task's function that tells the JVM's side of the task where to write its files.

    It does so before importing anything: while the JVM waits for this, it doesn't notice a failure
    of this function. A function that fails at once waits until the JVM has read it, at most two
    seconds. See `gridflow._feed.ingest.jvm_files`.

    `rows`: The rows that the function will read.
    `function`: From record batches, as they come from Spark's socket, to the task's output.
    """
    if not isinstance(rows, Segments):
        return function
    from pyspark import cloudpickle

    name, root = rows.name, rows.root
    code: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        import contextlib
        import os
        import pickle
        import shutil
        import time
        from pathlib import Path

        from pyspark import TaskContext

        parent = root or os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
        folder = Path(parent, f"{name}-{TaskContext.get().taskAttemptId()}")  # type: ignore[union-attr]
        partial, over = (folder.with_name(folder.name + end) for end in (".new", ".over"))
        partial.mkdir(0o700, parents=True)
        try:
            (partial / "pid").write_text(str(os.getpid()))
            partial.rename(folder)
            yield from pickle.loads(code)(batches)  # noqa: S301 (as Spark itself has brought it)
        finally:
            begun, give_up = folder / "begun", time.monotonic() + 2.0
            while folder.exists() and not begun.exists() and time.monotonic() < give_up:
                time.sleep(0.005)
            with contextlib.suppress(OSError):  # it was renamed, or doesn't exist yet
                folder.rename(over)
            for left in (partial, over, over):  # a last file may arrive during deletion
                shutil.rmtree(left, ignore_errors=True)

    return run


def _version() -> str:
    from importlib.metadata import version

    return version("gridflow")
