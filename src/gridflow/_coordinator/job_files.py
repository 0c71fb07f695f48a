"""The files that agents send to the driver and fetch from it: where each lies, and when it counts.

What arrives is written aside. It gets its name once it has come whole and its sender is known to be
still there, so no bytes of two agents mix, and none of an agent that was given up take the place of
its successor's.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from typing import TYPE_CHECKING, Final

from gridflow._files.local import open_file
from gridflow._wire import headers
from gridflow._wire.server import inside
from gridflow.errors import WireError

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow._coordinator.checkpoints import CheckpointStore
    from gridflow._wire.headers import Upload
    from gridflow._wire.messages import Message

_INCOMING: Final = ".incoming-"


def value_folder(job_dir: Path, rank: int) -> Path:
    """Return where the files lie of what a rank's function returned."""
    return job_dir / "result" if rank == 0 else job_dir / "values" / f"rank-{rank}"


class JobFiles:
    """The files of one job.

    Parameters
    ----------
    job_dir : Path
    checkpoints : CheckpointStore
        Which have a folder of their own.
    """

    def __init__(self, job_dir: Path, checkpoints: CheckpointStore) -> None:
        self._job_dir, self._checkpoints = job_dir, checkpoints
        #: Held from the look at who has sent a file until it has its name.
        self.lock = threading.Lock()
        for unfinished in job_dir.glob(f"{_INCOMING}*"):  # of a driver that was killed
            unfinished.unlink()

    def incoming(self, upload: Upload) -> Path:
        """Return where a file is to be written until it is whole.

        Raises
        ------
        GridflowError, pyarrow.flight.FlightServerError
            It would lie outside of its folder, or is of a generation that is over.
        """
        if isinstance(upload, headers.CheckpointFile):
            return self._checkpoints.incoming(upload.generation, upload.rank)
        self._target(upload)
        return self._job_dir / f"{_INCOMING}{uuid.uuid4().hex}"

    def keep(self, upload: Upload, path: Path) -> None:
        """Give a file its name; of one that grows, add what is new.

        Raises
        ------
        WireError
            What comes before the new part isn't there.
        """
        target = self._target(upload)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (isinstance(upload, headers.EventFile) and upload.offset):
            path.replace(target)
            return
        size = target.stat().st_size if target.is_file() else 0
        if size != upload.offset:
            raise WireError(
                f"{target.name} has {size:,} bytes here, so nothing can be added after "
                f"{upload.offset:,}: it has to be sent from its beginning."
            )
        with path.open("rb") as source, open_file(target, "ab") as file:
            shutil.copyfileobj(source, file)

    def find(self, wanted: Message) -> Path:
        """Return the file that an agent asks for."""
        match wanted:
            case headers.CheckpointDownload():
                return self._checkpoints.stored(wanted.name)
            case headers.Loan():
                return self.loan(wanted.name)
        return self._job_dir / wanted.kind

    def loan(self, dataset: str) -> Path:
        """Return where rows lie that a rank has lent."""
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
        raise WireError(f"no file of the kind {upload.kind!r} lies in the job's folder.")

    def _in(self, folder: Path, name: str) -> Path:
        """Return a file of a folder; it has no folders of its own."""
        if "/" in name:
            raise WireError(f"a file's name without folders is expected; got {name!r}.")
        return inside(folder, name)
