"""Those who are told in the driver how a job goes, and the threads in which they are told."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gridflow._coordinator.outlet import Outlet
from gridflow._spec.brought import load
from gridflow._wire.headers import LOAD_SECONDS
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from gridflow._coordinator.progress import JobReport, TaskProgress
    from gridflow._spec.place import Place
    from gridflow._wire.failures import TaskFailure

GROUP: Final = "gridflow.observers"
#: Metrics and the like that wait for one observer; further ones are dropped and counted.
_MOST_WAITING: Final = 10_000
_MAY_BE_LEFT_OUT: Final = frozenset({"host", "metrics", "progress"})
#: In times of its patience: how long the end waits for one that goes on working.
_LONGEST: Final = 6
_METHODS: Final = (
    "begin",
    "state",
    "task",
    "host",
    "progress",
    "metrics",
    "epoch",
    "checkpoint",
    "restart",
    "end",
)
#: The part of a URL that may hold a password.
USER_OF_URL: Final = re.compile(r"://[^/\s@]+@")


@dataclass(frozen=True)
class JobStart:
    """A job that begins.

    Attributes
    ----------
    id : str
    run_id : str or None
        What the user called the run; a run that goes on in another driver has the same.
    folder : Path
        The job's folder.
    tasks : tuple of str
        Such as ``worker:0``.
    options : mapping of str to object
        ``strategy``, ``backend``, ``num_workers``, ``seed``, ``checkpoint_every``.
    data : mapping of str to object
        The datasets by name, as they were passed to ``run(data=…)``.
    """

    id: str
    run_id: str | None
    folder: Path
    tasks: tuple[str, ...]
    options: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobEnd:
    """How a job has ended.

    Attributes
    ----------
    state : str
        ``succeeded``, ``failed`` or ``cancelled``.
    error : BaseException or None
        The job's error; ``error.failures[0]`` is the first task's failure, if one has failed.
    seconds : float
        From the job's beginning.
    report : JobReport
        As `JobHandle.report`: losses and metrics by epoch, restarts, what held training back.
    result : Result or None
        What ``run()`` returns; None if the job hasn't succeeded.
    """

    state: str
    error: BaseException | None
    seconds: float
    report: JobReport
    result: Any = None


class Observer:
    """Is told in the driver how a job goes. Subclasses override what they are interested in.

    Each observer has a thread of its own, in which it is told one thing after the other. What it
    raises is shown once, and harms nothing. Metrics that it is too slow for are left out.

    Attributes
    ----------
    patience : float, default 5
        Seconds that the end of a job waits for it while it does nothing.
    """

    patience: float = 5.0

    def begin(self, job: JobStart) -> None:
        """Be told that a job begins."""

    def state(self, state: str) -> None:
        """Be told of a new state of the job, as `JobHandle.state`."""

    def task(self, name: str, state: str, host: str) -> None:
        """Be told of a task, such as ``worker:0``.

        Parameters
        ----------
        name : str
        state : str
            ``registered``: it has a place on a host; ``ready``: its process is up, again after each
            restart; ``returned``: the function has returned. With ``num_workers=(2, 8)`` also
            ``away``: the others train without it; ``back``: they have let it in again.
        host : str
        """

    def host(self, name: str, load: Mapping[str, float]) -> None:
        """Be told of the load of a host that has tasks, every ten seconds.

        Parameters
        ----------
        name : str
        load : mapping of str to float
            By MLflow's names: ``cpu_utilization_percentage``, ``system_memory_usage_megabytes``,
            ``system_memory_usage_percentage``, ``disk_usage_percentage`` (of the disk with the
            tasks' rows), ``network_receive_megabytes`` and ``network_transmit_megabytes`` (since
            the last time); and where a task has a GPU, ``gpu_0_utilization_percentage`` and
            ``gpu_0_memory_usage_percentage`` of each GPU of the host.
        """

    def progress(self, task: str, progress: TaskProgress) -> None:
        """Be told where a task is, at most twice a second for each task; again after a restart.

        Parameters
        ----------
        task : str
        progress : TaskProgress
            As in `JobHandle.report`.
        """

    def metrics(self, step: int, values: Mapping[str, float], task: str) -> None:
        """Be told of losses and metrics so far in an epoch, at most twice a second for each task.

        Parameters
        ----------
        step : int
            Steps of the task so far, over all epochs and fits. It grows with each call for a task:
            steps that are made again after a restart aren't told again.
        values : mapping of str to float
        task : str
        """

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        """Be told the results of an epoch, once.

        Parameters
        ----------
        number : int
            From 0, over all fits.
        values : mapping of str to float
            The chief's losses and metrics, with those of a validation.
        """

    def checkpoint(self, place: Place) -> None:
        """Be told that a checkpoint is complete, and of which ``fit``, ``epoch`` and ``step``."""

    def restart(self, cause: TaskFailure) -> None:
        """Be told that the group starts again, and which failure was the cause."""

    def end(self, outcome: JobEnd) -> None:
        """Be told how the job has ended, once, at last."""


def observers_of(given: Any) -> tuple[Observer, ...]:
    """Return the observers that a user gave, as objects or by names.

    Raises `InvalidArgument`: A name is unknown, or an object isn't an observer.
    """
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise InvalidArgument(f"observers= must be a list, such as [Notify(url=…)]; got {given!r}.")
    return tuple(map(_observer, given))


def _observer(given: Any) -> Observer:
    if isinstance(given, str):
        given = load("observer", given, GROUP)()
    if isinstance(given, type) or not all(callable(getattr(given, n, None)) for n in _METHODS):
        raise InvalidArgument(
            "observers= takes objects whose classes inherit gridflow.observers.Observer, such as "
            f"Notify(url=…), or names; got {given!r}."
        )
    observer: Observer = given
    return observer


class Observed:
    """Tells observers what happens, each in its own thread.

    `say`: Tells the user of an observer that fails.
    `drawn`: An observer that is told in the thread of another outlet, which it draws in.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        say: Callable[[str], None],
        drawn: tuple[Observer, Outlet] | None = None,
    ) -> None:
        self._say = say
        self._own = [(each, self._outlet_of(each)) for each in observers]
        self._all = [*self._own, *([] if drawn is None else [drawn])]
        self._failed: set[int] = set()
        #: By task: its steps in each epoch of each fit, and how many of all it was told of.
        self._steps: dict[str, dict[tuple[int, int], int]] = {}
        self._told: dict[str, int] = {}
        self._epochs: set[tuple[int, int]] = set()
        #: When which part of the load of which host was told.
        self._loads: dict[tuple[str, str], float] = {}

    def tell(self, what: str, *about: Any) -> None:
        """Tell all observers; of those too slow, only what may be left out is."""
        limit = None if what in _MAY_BE_LEFT_OUT else sys.maxsize
        lines = 0 if what == "progress" else 1  # the next one says all that it said
        for observer, outlet in self._all:
            action = partial(self._tell, observer, what, about)
            outlet.put(what, action, outlet.limit // _MOST_WAITING, lines, limit)

    def progress(self, task: str, progress: TaskProgress) -> None:
        """Tell where a task is, and of its metrics if they are news."""
        self.tell("progress", task, progress)
        if not self._own or progress.phase != "train" or not progress.logs:
            return
        made = self._steps.setdefault(task, {})
        fit, number, reached = progress.place
        place = fit, number
        for epoch in range(number):  # those before a checkpoint of another driver
            made.setdefault((fit, epoch), progress.steps_per_epoch or 0)
        made[place] = max(made.get(place, 0), reached)
        step = sum(count for each, count in made.items() if each < place) + reached
        if step > self._told.get(task, 0):
            self._told[task] = step
            self.tell("metrics", step, dict(progress.logs), task)

    def epoch(self, fit: int, epoch: int, values: Mapping[str, float]) -> None:
        """Tell the results of an epoch, unless that was done before a restart."""
        if (fit, epoch) not in self._epochs:
            self._epochs.add((fit, epoch))
            self.tell("epoch", sorted(self._epochs).index((fit, epoch)), dict(values))

    def load(self, host: str, values: Mapping[str, float], now: float) -> None:
        """Tell the load of a host, from whichever of its agents measures it first."""
        new = {
            name: value
            for name, value in values.items()
            if now - self._loads.get((host, name), -math.inf) > LOAD_SECONDS / 2
        }
        if new:
            self._loads |= dict.fromkeys(((host, name) for name in new), now)
            self.tell("host", host, new)

    def close(self) -> None:
        """Wait for the observers, but for none that does nothing."""
        for observer, outlet in self._own:
            if not outlet.close():
                self._say(
                    f"{type(observer).__name__} was given up: it has done nothing for "
                    f"{observer.patience:g} seconds"
                )

    def _outlet_of(self, observer: Observer) -> Outlet:
        return Outlet(
            f"gridflow-{type(observer).__name__}",
            limit=_MOST_WAITING,
            patience=observer.patience,
            longest=_LONGEST * observer.patience,
            on_gap=partial(self._missed, observer),
        )

    # In the threads of the outlets ---------------------------------------------------------------

    def _tell(self, observer: Observer, what: str, about: Iterable[Any]) -> None:
        try:
            getattr(observer, what)(*about)
        except Exception as error:  # noqa: BLE001 (observers of others raise anything)
            if id(observer) not in self._failed:
                self._failed.add(id(observer))
                name, why = type(observer).__name__, USER_OF_URL.sub("://…@", str(error))
                self._say(f"{name}.{what}() raised {type(error).__name__}: {why}. The job goes on")

    def _missed(self, observer: Observer, key: object, lines: int) -> None:
        self._say(f"{type(observer).__name__} is too slow: {lines:,} {key} were left out")
