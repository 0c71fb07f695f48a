"""Rows that Spark's JVM writes to files for the Python worker of the same task.

gridflow's jar writes the rows of a task as Arrow files (`io.gridflow.feed`), in bulk if possible,
and in the spool's form if possible. The worker maps them, and the spool takes them over unchanged.
Without the jar (Spark Connect, a session that forbids it), rows come through Spark's socket as
usual.

::

    <a local folder of the task>/<name>-<task attempt>/pid             the consumer of the files
                                                      /begun           Spark's side has seen it
                                                      /00000000-0.arrow   rows of the first dataset
                                                      /failed          why no more could be written
                          <name>-<task attempt>.over      no more files are wanted
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.ingest.base import RankRows
from gridflow._feed.ingest.packing import can_pack
from gridflow._feed.store.segment import Segment
from gridflow._files.local import FULL
from gridflow._spec import jvm
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from gridflow._feed.ingest.dataframes import Tags

__all__ = ["Segments", "written"]

_LEAST_SECONDS: Final = 0.001
_MOST_SECONDS: Final = 0.032
_CLOSE_SECONDS: Final = 10.0


def written(
    frame: DataFrame, tags: Tags, root: str | None, *, is_final: bool
) -> tuple[DataFrame, Tags | Segments]:
    """Return the stage whose tasks write their rows to files, if the session supports it.

    Spark jobs that the rows need before their last stage run here.

    `frame`: The stage.
    `tags`: Separates and names its rows.
    `root`: The local folder for the files; None: the first of Spark's own.
    `is_final`: Whether columns have the spool's form if possible (dates and booleans as numbers,
        arrays of one length as such), or always Spark's types.
    """
    from pyspark.sql import DataFrame as Frame

    spark = frame.sparkSession
    if not can_pack(spark):
        return frame, tags
    name = f"gridflow-rows-{uuid.uuid4().hex}"
    package: Any = jvm.classes(spark).io.gridflow.feed
    places = {column: place for place, column in enumerate(frame.columns)}
    tag = tags.tag
    # A DataFrame plans its query once; this one is new and sees what is cached.
    jvm_frame = jvm.java_frame(frame.select("*"))
    try:
        asked = package.Segments(
            jvm_frame, root or "", name, -1 if tag is None else places[tag], is_final
        )
    except TypeError:  # no class: the session was made with the jar of an older release
        return frame, tags
    for columns in tags.columns:
        inside, own = zip(*columns, strict=True)
        asked.dataset([places[column] for column in inside], list(own))
    return Frame(asked.frame(), spark), Segments(name, root, tags)


@dataclass(frozen=True)
class Segments(RankRows):
    """The rows of one task, in files.

    `name`: Prefix of the tasks' folders.
    `root`: The parent of these folders; None: the first of the task's local folders.
    `tags`: For rows that come through Spark's socket after all: its tasks wait only a few seconds
        for a consumer of files.
    """

    name: str
    root: str | None
    tags: Tags

    def folder(self) -> Path:
        """Return the folder of this process's task."""
        from pyspark import TaskContext

        task = TaskContext.get()
        root = self.root or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        if task is None or not root:
            raise InvalidArgument("rows in files need a Spark task, and this process has none.")
        return Path(root) / f"{self.name}-{task.taskAttemptId()}"

    def batches(
        self, arriving: Iterable[pa.RecordBatch] = ()
    ) -> Generator[tuple[str, pa.RecordBatch | Segment]]:
        """Yield files, each with the name of its dataset, as they appear.

        The folder exists before this is called, and is deleted by its creator. A consumer that
        moves a file away is done with it.

        Raises `OSError`: Spark's task couldn't write a file.
        """
        folder = self.folder()
        task = _Task(arriving)
        try:
            yield from self._handed_over(folder, task)
        except BaseException:
            # Tells Spark's task at once that no more files are needed, because it keeps writing.
            over = folder.with_name(f"{folder.name}.over")
            with contextlib.suppress(OSError):
                folder.rename(over)
            shutil.rmtree(over, ignore_errors=True)
            raise
        finally:
            task.close()

    def _handed_over(
        self, folder: Path, task: _Task
    ) -> Iterator[tuple[str, pa.RecordBatch | Segment]]:
        number, wait = 0, _LEAST_SECONDS
        while True:
            has_ended = task.has_ended  # checked first, or the last file might be missed
            found = self._file(folder, number)
            if found is not None:
                yield found
                number, wait = number + 1, _LEAST_SECONDS
            elif has_ended:
                break
            else:
                batch = task.batch(wait)
                if batch is not None:
                    yield from self.tags.batches([batch])
                wait = min(2 * wait, _MOST_SECONDS)
        task.check()
        failed = folder / "failed"
        if failed.exists():
            raise os_error(failed.read_text())

    def _file(self, folder: Path, number: int) -> tuple[str, Segment] | None:
        for place, dataset in enumerate(self.tags.datasets):
            path = folder / f"{number:08d}-{place}.arrow"
            if path.exists():
                return dataset, Segment(path)
        return None


class _Task:
    """What Spark's task sends through its socket: the end of its rows, and rarely rows.

    A separate thread receives, because receiving blocks.
    """

    def __init__(self, arriving: Iterable[pa.RecordBatch]) -> None:
        self._arriving = arriving
        self._batches: queue.Queue[pa.RecordBatch] = queue.Queue(1)
        self._error: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="gridflow-rows", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether everything has been sent and received."""
        return not self._thread.is_alive() and self._batches.empty()

    def batch(self, seconds: float) -> pa.RecordBatch | None:
        """Return rows that were sent, or None after the timeout."""
        try:
            return self._batches.get(timeout=seconds)
        except queue.Empty:
            return None

    def check(self) -> None:
        """Raise the error that ended it, if any."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait for the end; then the socket is Spark's again."""
        self._is_closed = True
        self._thread.join(_CLOSE_SECONDS)

    def _listen(self) -> None:
        try:
            for batch in self._arriving:
                while not self._is_closed:
                    with contextlib.suppress(queue.Full):
                        self._batches.put(batch, timeout=_MOST_SECONDS)
                        break
                if self._is_closed:
                    return
        except BaseException as error:  # noqa: BLE001 (raised again where rows are waited for)
            self._error = error


def os_error(words: str) -> OSError:
    """Return the system error that Java has reported."""
    for number in sorted(FULL):
        if os.strerror(number) in words:
            return OSError(number, os.strerror(number))
    return OSError(f"Spark's task could not write its rows: {words}")
