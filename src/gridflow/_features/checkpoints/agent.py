"""Checkpoints on their way between an agent and where they are kept.

An agent that sees the place, a shared folder or a store, writes them there and reads them there
itself; the driver only commits them. Otherwise they go through the driver.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gridflow._files import transfer
from gridflow._files.local import open_file
from gridflow._files.systems import scheme_of, where
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._wire.client import CoordinatorClient

#: How long the driver may take to look at a store.
_ANSWER_SECONDS: Final = 60.0


class Checkpoints:
    """Sends and fetches checkpoints.

    `say`: Tells the user.
    """

    def __init__(self, client: CoordinatorClient, say: Callable[[list[str]], None]) -> None:
        self._client, self._say = client, say
        #: Unset once it has failed: each further try could take long.
        self._goes_direct = True

    def send(self, path: Path, header: dict[str, Any]) -> None:
        """Put a checkpoint where it is kept, and have it committed.

        `header`: That of `gridflow._wire.headers.CheckpointFile`.
        Raises `OSError`: The file can't be read to its end.
        Raises `pyarrow.lib.ArrowException`: The coordinator can't be reached, or refused it.
        """
        if not (self._goes_direct and self._write(path, header)):
            self._client.upload(path, {**header, "kind": "checkpoint"})

    def _write(self, path: Path, header: dict[str, Any]) -> bool:
        """Write a checkpoint to the place that the driver offers; return whether that worked."""
        path.stat()  # a newer one may have replaced it
        try:
            at = self._client.call("offer", header, _ANSWER_SECONDS)["at"]
        except pa.ArrowException:
            return False  # what is sent is refused, too, with the reason
        if not at:
            return False
        try:
            size = _put(path, at)
            self._client.call("stored", {**header, "at": at, "size": size}, _ANSWER_SECONDS)
        except (pa.ArrowException, GridflowError, OSError) as error:
            if not path.exists():
                raise  # a newer one has replaced it
            self._leave(at, error)
            return False
        return True

    def fetch(self, name: str, path: Path) -> None:
        """Fetch a checkpoint from where it is kept. It gets its name once it is complete.

        Raises `WireError`: It arrived incomplete.
        Raises `pyarrow.lib.ArrowException`: The coordinator can't be reached, or has none of this
            name.
        """
        wanted = {"kind": "checkpoint", "name": name}
        if not (self._goes_direct and self._read(wanted, path)):
            self._client.download(wanted, path)

    def _read(self, wanted: dict[str, str], path: Path) -> bool:
        found: dict[str, Any] = self._client.call("locate", wanted, _ANSWER_SECONDS)
        try:
            return _get(path=path, **found)
        except (GridflowError, OSError) as error:
            self._leave(found["at"], error)
            return False

    def _leave(self, at: str, error: Exception) -> None:
        """Use the driver from now on; say so if that isn't to be expected."""
        self._goes_direct = False
        if scheme_of(at):
            folder = at.rpartition("/")[0]
            words = f"checkpoints go through the driver, as {folder} can't be used from here"
            self._say([f"gridflow: {words}: {error}"])


def _put(path: Path, at: str) -> int:
    """Write a checkpoint to an offered place; return its size in bytes."""
    with path.open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        if scheme_of(at):
            transfer.put(path, where(at))
            return size
        with open_file(Path(at), "r+b") as target:  # the driver has made it, if it is this folder
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
            return target.tell()


def _get(path: Path, at: str, size: int, modified: int) -> bool:
    """Read a checkpoint from its place; return False if it isn't there."""
    if not at:
        return False
    if scheme_of(at):
        transfer.fetch(where(at), path)
        return True
    partial = path.with_name(path.name + ".partial")
    try:
        with open_file(Path(at)) as source:
            found = os.fstat(source.fileno())
            if (found.st_size, found.st_mtime_ns) != (size, modified):
                return False  # another machine's folder of the same name
            with partial.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    return True
