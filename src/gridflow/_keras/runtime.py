"""What the Keras part asks of the process it runs in. The training process implements it."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gridflow._feed.plan.counter import EpochCounter
    from gridflow._keras.due import Due
    from gridflow._keras.resume.pause import Pause
    from gridflow._keras.resume.writer import Writer
    from gridflow._keras.stopping import Stopping
    from gridflow._keras.together import Together
    from gridflow._spec.job import TrainingOptions
    from gridflow._spec.place import Place

#: What a model is doing, as reported to the driver.
Phase = Literal["train", "test", "predict", "idle"]


class Runtime(Protocol):
    """The training process, as far as callbacks need it.

    An instance must be hashable by identity: the callbacks count the fits that it has seen.
    """

    @property
    def rank(self) -> int:
        """Number of this process among those that train."""

    @property
    def num_workers(self) -> int:
        """How many processes train."""

    @property
    def trains_together(self) -> bool:
        """Whether several ranks train one model, and make equal steps."""

    @property
    def together(self) -> Together:
        """The fits that take all ranks."""

    @property
    def stopping(self) -> Stopping:
        """Where these fits end that a callback ends."""

    @property
    def due(self) -> Due:
        """The steps that the driver is to expect."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is written once."""

    @property
    def generation(self) -> int:
        """0, and one more after each restart of the group."""

    @property
    def work_dir(self) -> Path:
        """Local scratch directory of this process."""

    @property
    def training(self) -> TrainingOptions:
        """How the job trains: its seed, the steps between checkpoints, and all else."""

    @property
    def group(self) -> Any:
        """The strategy by which a model is trained here, None where none is."""

    def trainer(self, model: Any) -> Any:
        """Return what trains a model by ``ctx.fit``."""

    @property
    def resume_from(self) -> Path | None:
        """Local copy of the last committed checkpoint, None for a fresh start."""

    @property
    def tensorboard_dir(self) -> Path | None:
        """Directory for TensorBoard's event files, None where none is wanted."""

    @property
    def pause(self) -> Pause:
        """Whether a checkpoint is asked for while training runs, and after which step."""

    @property
    def writer(self) -> Writer:
        """What writes checkpoints beside the training."""

    @property
    def epoch_counters(self) -> Sequence[EpochCounter]:
        """Counters of all datasets made so far, in the order in which they were made."""

    @property
    def pulled(self) -> Mapping[str, str]:
        """By dataset that this process reads from files: what changes when those do."""

    @property
    def saves_sections(self) -> bool:
        """Whether checkpoints are made where a section of a stream ends, and nowhere else."""

    def progress(
        self,
        *,
        epoch: int,
        step: int,
        steps_per_epoch: int | None,
        phase: Phase,
        rows: int,
        logs: Mapping[str, float],
        fit: int = 0,
    ) -> None:
        """Take a sign of life: `step` steps of `epoch` are done, `rows` rows since the last."""

    def epoch_end(
        self, epoch: int, logs: Mapping[str, float], *, fit: int = 0, restored: bool = False
    ) -> None:
        """Take the results of a complete epoch, restored ones of a life before this one, too."""

    def mark(self, place: Place) -> None:
        """Take note, on each rank, that a checkpoint is made here: what the data can go on from."""

    def checkpoint(self, path: Path, place: Place, *, is_awaited: bool = False) -> None:
        """Take over a finished checkpoint file of the training up to a place."""

    def rest(self) -> None:
        """After a checkpoint that was asked for: make no further step, if that is wanted."""


_current: Runtime | None = None


def enter(runtime: Runtime) -> None:
    """Let this process be a task."""
    global _current  # noqa: PLW0603 (one process is one task)
    _current = runtime


def present() -> Runtime | None:
    """Return the task that this process is, None outside a training process."""
    return _current


def current() -> Runtime:
    """Return the task that this process is.

    Raises
    ------
    GridflowError
        Outside a training process.
    """
    if _current is None:
        raise GridflowError(
            "this code doesn't run in a gridflow task: current_context() is for the function or "
            "script that TensorflowDistributor.run() was given."
        )
    return _current


_trains_alone = threading.local()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let this thread train models that aren't the group's, in a block."""
    _trains_alone.depth = getattr(_trains_alone, "depth", 0) + 1
    try:
        yield
    finally:
        _trains_alone.depth -= 1


def is_alone() -> bool:
    """Return whether this thread is in a block of `alone`."""
    return getattr(_trains_alone, "depth", 0) > 0


def group() -> Any:
    """Return the strategy by which this process trains; None where it isn't a task that does."""
    return None if _current is None else _current.group


_fits: weakref.WeakKeyDictionary[Runtime, int] = weakref.WeakKeyDictionary()


def begin_fit(runtime: Runtime) -> int:
    """Return the number of the fit that begins now, from 0."""
    _fits[runtime] = _fits.get(runtime, -1) + 1
    return _fits[runtime]


def current_fit(runtime: Runtime) -> int:
    """Return the number of the fit that began last."""
    return _fits.get(runtime, 0)
