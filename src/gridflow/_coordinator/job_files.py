"""The files that agents send to the driver and fetch from it.

An arriving file is written to a temporary path. It gets its name once it is complete and its sender
is still a member of the job. So bytes of two agents never mix, and an agent that was given up can't
overwrite files of its successor.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from typing import TYPE_CHECKING, Final

from gridflow._files.local import open_file
from gridflow._wire import headers
from gridflow._wire.server import inside
from gridflow._wire.transfer import Spared
from gridflow.errors import GridflowError, WireError

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow._features.checkpoints.store import CheckpointStore
    from gridflow._wire.headers import Upload

_INCOMING: Final = ".incoming-"


def value_folder(job_dir: Path, rank: int) -> Path:
    """Return the folder of the files of a rank's result."""
    return job_dir / "result" if rank == 0 else job_dir / "values" / f"rank-{rank}"


class JobFiles:
    """The files of one job.

    `checkpoints`: They have a folder of their own.
    `in_memory` (dict of rank to dict of name to bytes): Files of results that the disk refused.
    """

    def __init__(self, job_dir: Path, checkpoints: CheckpointStore) -> None:
        self._job_dir, self._checkpoints = job_dir, checkpoints
        self.in_memory: dict[int, dict[str, bytes]] = {}
        #: Held from checking a file's sender until the file has its name.
        self.lock = threading.Lock()
        for unfinished in job_dir.glob(f"{_INCOMING}*"):  # of a driver that was killed
            unfinished.unlink()

    def incoming(self, upload: Upload) -> Path:
        """Return the path to write a file to until it is complete.

        Raises `GridflowError`, `pyarrow.flight.FlightServerError`: It would be outside its folder,
            or its generation is over.
        """
        if isinstance(upload, headers.CheckpointFile):
            return self._checkpoints.incoming(upload.generation, upload.rank)
        self._target(upload)
        return self._job_dir / f"{_INCOMING}{uuid.uuid4().hex}"

    def keep(self, upload: Upload, path: Path, spared: Spared | None = None) -> OSError | None:
        """Give a file its name; append to one that grows.

        Returns: Why a result stays in memory.
        Raises `WireError`: The part before the new one is missing.
        Raises `OSError`: The disk refused another file.
        """
        if not isinstance(upload, headers.ResultFile):
            self._place(upload, path)
            return None
        if spared is None:
            try:
                self._place(upload, path)
            except OSError as error:
                if isinstance(error, GridflowError):
                    raise
                spared = Spared(path.read_bytes(), error)
        self.in_memory.pop(upload.rank, None)  # of an earlier generation
        if spared is None:
            return None
        self.in_memory[upload.rank] = {upload.name: spared.content}
        return spared.error

    def _place(self, upload: Upload, path: Path) -> None:
        target = self._target(upload)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (isinstance(upload, headers.EventFile) and upload.offset):
            path.replace(target)
            return
        size = target.stat().st_size if target.is_file() else 0
        if size != upload.offset:
            raise WireError(
                f"can't append to {target.name} at byte {upload.offset:,}: it has {size:,} bytes. "
                "It must be sent from the beginning."
            )
        with path.open("rb") as source, open_file(target, "ab") as file:
            shutil.copyfileobj(source, file)

    def find(self, wanted: headers.Download) -> Path:
        """Return the file that an agent asks for."""
        match wanted.kind:
            case "checkpoint":
                return self._checkpoints.stored(wanted.name)
            case "loan":
                return self.loan(wanted.name)
        return self._job_dir / wanted.kind

    def loan(self, dataset: str) -> Path:
        """Return the file of the rows that a rank has lent."""
        return self._in(self._job_dir, f"loan-{dataset}.arrow")

    def _target(self, upload: Upload) -> Path:
        match upload:
            case headers.ResultFile():
                folder = value_folder(self._job_dir, upload.rank).relative_to(self._job_dir)
                return self._in(inside(self._job_dir, str(folder)), upload.name)
            case headers.EventFile():
                return inside(inside(self._job_dir, "tensorboard"), upload.name)
            case headers.LoanFile():
                return self.loan(upload.name)
        raise WireError(f"unknown kind of file: {upload.kind!r}.")

    def _in(self, folder: Path, name: str) -> Path:
        """Return a file directly in a folder."""
        if "/" in name:
            raise WireError(f"expected a file name without folders; got {name!r}.")
        return inside(folder, name)
