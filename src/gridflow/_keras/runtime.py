"""The interface that the Keras part needs from the training process."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import weakref
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from gridflow._spec.profiles import folder_of
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gridflow._feed.plan.epochs import EpochCounter
    from gridflow._keras.agreement import Agreement
    from gridflow._keras.due import Due, Spent
    from gridflow._keras.resume.writer import Writer
    from gridflow._spec.backends import BackendFacts
    from gridflow._spec.cluster import Task
    from gridflow._spec.option_groups import TrainingOptions
    from gridflow._spec.place import Place


_logger: Final = logging.getLogger(__name__)
_ENDING: Final = "*.xplane.pb"


class Profiler:
    """Profiles steps of fits, once the driver asks for it.

    `folder`: Of the task's event files.
    """

    def __init__(self, backend: BackendFacts, task: Task, folder: Path) -> None:
        self._facts, self._task, self._folder = backend, task, folder
        #: First and last step: what to profile next, and what is being profiled, and into where.
        self._next: tuple[int, int] | None = None
        self._now: tuple[int, int, Path] | None = None

    def ask(self, first: int, last: int) -> None:
        """Profile steps from now on; from the thread that hears the agent."""
        self._next = first, last

    def told(self, event: str, steps: int) -> None:
        """Begin or end, as callbacks of the outermost fit are told of an event.

        `steps`: How many have begun.
        """
        try:
            if self._now is not None:
                self._end_if_due(event, steps, *self._now)
            elif event == "on_train_batch_begin" and self._next and steps >= self._next[0]:
                place = Path(mkdtemp(prefix="gridflow-profile-"))
                self._now, self._next = (*self._next, place), None
                self._call(0, str(place))
        except Exception as error:  # noqa: BLE001 (training goes on, whatever a profiler raises)
            _logger.warning("can't profile steps: %s", error)
            self._forget()

    def _end_if_due(self, event: str, steps: int, first: int, last: int, place: Path) -> None:
        if event == "on_train_end" or (event == "on_train_batch_end" and steps >= last):
            self._call(1)
            # Profilers name it by the host, on which other ranks may be, too.
            (found,) = place.rglob(_ENDING)
            folder = self._folder / folder_of(first, last)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(found, folder / f"{str(self._task).replace(':', '-')}{_ENDING[1:]}")
            self._forget()

    def _forget(self) -> None:
        if self._now is not None:
            shutil.rmtree(self._now[-1], ignore_errors=True)
            self._now = None

    def _call(self, which: int, *arguments: str) -> None:
        assert self._facts.profiler is not None
        attrgetter(self._facts.profiler[which])(import_module(self._facts.name))(*arguments)


#: The activity of a model, as reported to the driver.
Phase = Literal["train", "test", "predict", "idle"]


class GoesOn(Protocol):
    """How fits go on in this process after another rank was lost: `gridflow._keras.regrouping`."""

    #: What knows the state of the fit or loop that runs, if there is one.
    saver: Any

    def enter(self, model: Any, callbacks: Any) -> Any:
        """Join the others before a fit of a new process, or pass over it: return its History."""

    def passes_over(self, models: Sequence[Any], *, is_counted: bool) -> bool:
        """Join the others before a fit or loop of a new process; return if they are past it."""

    def passed(self) -> Any:
        """Count a fit or loop that is passed over, and return what the others tell of it."""

    def begins(self, saver: Any) -> None:
        """Let what knows the state of a fit or loop begin it."""

    def lent(self, make: Callable[[], Any]) -> Any:
        """Return what all ranks start a fit from, if one lacks it; `make` returns this rank's."""

    def leave(self) -> None:
        """Leave the step that has ended, if the fit can go on from there: the group changes."""

    def begun(self, callbacks: Sequence[Any]) -> None:
        """Tell callbacks that have begun the fit if other ranks take part than before."""

    def restored(self) -> None:
        """Note that the model of a new process is that of the others."""

    def run(self, attempt: Callable[[], Any], told_of: Callable[[Any], Any] | None = None) -> Any:
        """Make a fit or loop, again and again if it was interrupted by the loss of a rank."""


class Runtime(Protocol):
    """The training process, as callbacks need it.

    Instances must be hashable by identity, because the callbacks count an instance's fits.
    """

    @property
    def rank(self) -> int:
        """Index of this process among those that train."""

    @property
    def num_workers(self) -> int:
        """Number of processes that train."""

    @property
    def trains_together(self) -> bool:
        """Whether several ranks train one model, in equal steps."""

    @property
    def agreement(self) -> Agreement:
        """What all ranks do alike in their fits."""

    @property
    def regrouping(self) -> GoesOn | None:
        """How fits go on after a rank was lost; None: they don't."""

    @property
    def spent(self) -> Spent:
        """Where the time of fits goes."""

    @property
    def profiler(self) -> Profiler:
        """What looks closer at some steps."""

    @property
    def due(self) -> Due:
        """The steps that the driver should expect."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what only one process should write."""

    @property
    def chief_changes(self) -> bool:
        """Whether another rank may become the chief, as workers come and go."""

    @property
    def generation(self) -> int:
        """0 at first; increases by one with each restart of the group."""

    @property
    def work_dir(self) -> Path:
        """Local scratch directory of this process."""

    @property
    def training(self) -> TrainingOptions:
        """The job's training options: seed, steps between checkpoints and others."""

    @property
    def group(self) -> Any:
        """The strategy that trains a model here, or None."""

    def trainer(self, model: Any) -> Any:
        """Return the trainer of a model for ``ctx.fit``."""

    #: Local copy of the last committed checkpoint, or None to start from the beginning.
    resume_from: Path | None

    @property
    def tensorboard_dir(self) -> Path | None:
        """Folder for TensorBoard's event files, or None."""

    @property
    def writer(self) -> Writer:
        """Writes checkpoints in the background."""

    @property
    def epoch_counters(self) -> Sequence[EpochCounter]:
        """Counters of all datasets created so far, in order of creation."""

    @property
    def pulled(self) -> Mapping[str, str]:
        """Versions of the files of datasets that this process reads, by dataset."""

    @property
    def saves_sections(self) -> bool:
        """Whether checkpoints are made only at the ends of a stream's sections."""

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
        """Report progress: `step` steps of `epoch` are done, `rows` rows since the last report."""

    def epoch_end(
        self, epoch: int, logs: Mapping[str, float], *, fit: int = 0, restored: bool = False
    ) -> None:
        """Report the results of a complete epoch, including restored ones of earlier runs."""

    def mark(self, place: Place) -> None:
        """Note on each rank that a checkpoint is made here, from which the data can resume."""

    def checkpoint(self, path: Path, place: Place, *, is_awaited: bool = False) -> None:
        """Take over a complete checkpoint file of the training up to a position."""

    def not_finite(self, place: Place, variable: str, *, is_awaited: bool = False) -> None:
        """Report that there is no checkpoint at a position, and the variable that isn't finite."""

    def rest(self) -> None:
        """After a requested checkpoint, make no further step if the driver says so."""


_current: Runtime | None = None


def enter(runtime: Runtime) -> None:
    """Declare the task of this process."""
    global _current  # noqa: PLW0603 (one process is one task)
    _current = runtime


def present() -> Runtime | None:
    """Return the task of this process, or None outside a training process."""
    return _current


def current() -> Runtime:
    """Return the task of this process.

    Raises `GridflowError`: Outside a training process.
    """
    if _current is None:
        raise GridflowError(
            "this code isn't running in a gridflow task: current_context() is for the function or "
            "script passed to TensorflowDistributor.run()."
        )
    return _current


_trains_alone = threading.local()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Allow this thread to train models outside the group, in a block."""
    _trains_alone.depth = getattr(_trains_alone, "depth", 0) + 1
    try:
        yield
    finally:
        _trains_alone.depth -= 1


def is_alone() -> bool:
    """Return whether this thread is in an `alone` block."""
    return getattr(_trains_alone, "depth", 0) > 0


def group() -> Any:
    """Return the strategy with which this process trains, or None."""
    return None if _current is None else _current.group


_fits: weakref.WeakKeyDictionary[Runtime, int] = weakref.WeakKeyDictionary()


def begin_fit(runtime: Runtime) -> int:
    """Start a fit; return its number, from 0."""
    _fits[runtime] = next_fit(runtime)
    return _fits[runtime]


def next_fit(runtime: Runtime) -> int:
    """Return the number of the fit that starts next."""
    return _fits.get(runtime, -1) + 1


def repeat_fit(runtime: Runtime, number: int) -> None:
    """Take the next fit for one that was interrupted."""
    _fits[runtime] = number - 1


def current_fit(runtime: Runtime) -> int:
    """Return the number of the last fit."""
    return _fits.get(runtime, 0)
