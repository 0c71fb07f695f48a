"""Lets a fit go on, in the same process, when another rank was lost, or comes back.

The ranks that are left notice it in an exchange. Each of them knows the state after its last
complete step (`gridflow._keras.resume.interrupted`), and the driver says that they form a group
again. The rank that has come furthest sends its state to all: one may have finished a step whose
end the others missed. Then all start the fit there, as they would from a checkpoint, but with
TensorFlow, the model and its traced steps as they are. The new process has run the function up to
its first fit; it passes over those that the others have behind them, and joins them in theirs.
Until then it exchanges nothing, and its variables have first values of their own.

Where no rank has begun the fit's first epoch, all begin the fit again. If one lacks what the others
start from, because it is new or was interrupted as its variables were made, a rank that has it
lends it to all once their models are built.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gridflow._collectives.errors import GroupChanges, PeerGone, is_loss
from gridflow._keras import own_callbacks
from gridflow._keras.callbacks import EpochResults
from gridflow._keras.patches.hooks import position
from gridflow._keras.results import flavour_of
from gridflow._keras.resume.callback import CheckpointAndResume, count_fit, fits_begun
from gridflow._keras.resume.checkpoint_file import Checkpoint
from gridflow._keras.resume.interrupted import MEANS, METRICS, SUMS, joined
from gridflow._keras.runtime import begin_fit
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gridflow._collectives.host import HostGroup
    from gridflow._feed.plan.epochs import Absence
    from gridflow._keras.runtime import Runtime


class _Exchange(Protocol):
    """What exchanges values with the other ranks.

    `group`: Through which; None: with nobody yet.
    `is_joining`: Whether variables keep the first values that this rank gives them, as they will
        get those that the others have.
    `may_join_later`: Whether it may become so if a rank is lost as variables are made.
    """

    group: HostGroup | None
    is_joining: bool
    may_join_later: bool


class _Groups(Protocol):
    """Where the groups of a process come from."""

    def first(self, gpus: Sequence[str]) -> tuple[HostGroup, list[list[str]]]:
        """Return the first group, and each rank's GPUs."""

    def next(self) -> HostGroup | None:
        """Wait until the driver says that the group forms again, and return it.

        None: It doesn't, within the time in which it would have.
        """


class _Saver(Protocol):
    """What knows the state of the fit or loop that runs."""

    @property
    def may_be_interrupted(self) -> bool:
        """Whether `interrupted` knows the state after the step that has ended."""

    def interrupted(self) -> Checkpoint | None:
        """Return the state after the last complete step; None if this rank can't tell."""

    def repeat(self) -> None:
        """Take the next fit or loop for the one that was interrupted."""


class Regrouping:
    """How the fits of this process go on, and its loops.

    `is_new`: Whether this process takes the place of one that has died, and has yet to join.
    `saver`: What knows the state of the fit or loop that runs, if there is one.
    """

    def __init__(self, runtime: Runtime, groups: _Groups, *, is_new: bool) -> None:
        self._runtime, self._groups, self.is_new = runtime, groups, is_new
        self._exchange: _Exchange | None = None
        self.saver: _Saver | None = None
        #: Whether the fit has yet to begin where the others took it up again, and what this rank
        #: knew then; None in a new process.
        self._is_entering = False
        self._mine: Checkpoint | None = None
        #: Whether this rank starts from what the function has made of the model, and the place
        #: among the ranks of the one that lends what it starts from to those that lack it.
        self._has_start = not is_new
        self._lender: int | None = None
        #: Whether callbacks have begun the fit that runs, and whether it was lost before that.
        self._has_begun = self._is_at_start = False
        #: In a new process: the number of the fit in which the others are, and what those before
        #: it have returned.
        self._awaits: int | None = None
        self._past: list[Any] = []
        self._group: HostGroup | None = None
        self._is_counted = False
        #: By rank, from which positions in the data to which it was away, so far.
        self._absences: dict[str, list[list[Any]]] = {}
        #: Those that take part.
        self.ranks: tuple[int, ...] = tuple(range(runtime.num_workers))
        self._told = () if is_new else self.ranks
        #: Of each loop of the group, and each fit with `CheckpointAndResume`: what processes are
        #: told that pass over it. Of a fit: its losses and metrics, its epochs.
        self._behind: list[Any] = []

    def meet(self, gpus: Sequence[str]) -> tuple[HostGroup, list[list[str]]] | None:
        """Return the first group, and each rank's GPUs; None: a new process joins with its fit.

        `gpus`: This rank's.
        """
        return None if self.is_new else self._groups.first(gpus)

    def use(self, exchange: _Exchange) -> None:
        """Exchange values through it; in a new process, once it has joined."""
        self._exchange = exchange
        exchange.is_joining, exchange.may_join_later = self.is_new, True

    def enter(self, model: Any, callbacks: Any) -> Any:
        """Join the others before a fit of a new process.

        Returns: The ``History`` of a fit that they have behind them; otherwise None.
        """
        given = own_callbacks.flat(callbacks)
        is_counted = any(isinstance(each, CheckpointAndResume) for each in given)
        if not self.passes_over([model], is_counted=is_counted):
            return None
        if any(isinstance(each, EpochResults) for each in given):
            begin_fit(self._runtime)
        history = importlib.import_module(flavour_of(model) or "keras").callbacks.History()
        if is_counted:
            history.history, history.epoch = self.passed()
        history.set_model(model)
        model.history = history
        return history

    def passes_over(self, models: Sequence[Any], *, is_counted: bool) -> bool:
        """Join the others before a fit or loop of a new process; return whether they are past it.

        `models`: What it trains.
        `is_counted`: Whether it is a loop, or a fit with `CheckpointAndResume`.
        """
        self._is_counted = is_counted
        if self.is_new:
            self.is_new = False
            if not self._go_on(None):
                raise PeerGone("connection closed by peer: the others have ended meanwhile")
            # Evaluations before their fit are this rank's own.
            self._use(None)
        if self._awaits is None:
            return False
        if not is_counted or fits_begun(self._runtime) != self._awaits:
            return True
        self._awaits = None
        self._use(self._group)
        for model in models:  # what was traced before exchanges nothing
            model.test_function = model.predict_function = None
        return False

    def passed(self) -> Any:
        """Count a fit or loop that is passed over, and return what the others tell of it."""
        count_fit(self._runtime)
        told = self._past[len(self._behind)]
        self._behind.append(told)
        return told

    def begins(self, saver: _Saver) -> None:
        """Let what knows the state of a fit or loop begin it."""
        self.saver, self._has_begun = saver, True

    def lent(self, make: Callable[[], Checkpoint]) -> Checkpoint | None:
        """Return what all ranks start a fit from, if one lacks it and there is no checkpoint.

        All must call it.

        `make`: Returns this rank's; raises `InvalidArgument` if the model can't be built yet.
        """
        if self._lender is None:
            return None
        assert self._group is not None
        content = b""
        if self._group.rank == self._lender:
            with contextlib.suppress(InvalidArgument):
                content = _written(make())
        lengths = self._runtime.agreement.gather(str(len(content)).encode())
        length = int(lengths[self._lender])
        if not length:
            raise GridflowError("connection closed by peer: no rank could build the model")
        return Checkpoint.read(self._sent(content, length, self._lender, "start.npz"))

    def leave(self) -> None:
        """Leave the step that has ended, if the fit can go on from there: the group changes.

        Raises `GroupChanges`: It can.
        """
        if self.saver is not None and self.saver.may_be_interrupted:
            raise GroupChanges("another rank takes part from here on")

    def begun(self, callbacks: Sequence[Any]) -> None:
        """Tell callbacks that have begun the fit if other ranks take part than before."""
        if self.ranks == self._told:
            return
        self._told = self.ranks
        for each in callbacks:
            tell = getattr(each, "on_group_changed", None)
            if tell is not None:
                tell(self.ranks)

    def restored(self) -> None:
        """Note that the model of this process is that of the others."""
        self._is_entering, self._mine = False, None
        self._has_start, self._lender = True, None
        if self._exchange is not None:
            self._exchange.is_joining = False

    def run(self, attempt: Callable[[], Any], told_of: Callable[[Any], Any] | None = None) -> Any:
        """Make a fit, or a loop, again and again if it was interrupted by the loss of a rank.

        `told_of`: Returns what processes are told that pass over it, given what it returns.
        """
        began = [counter.pending for counter in self._runtime.epoch_counters]
        while True:
            self._has_begun = False
            try:
                with self._keeps_first_values():
                    made = attempt()
            except BaseException as error:
                saver, self.saver = self.saver, None
                if not is_loss(error) or not self._knows_state(saver):
                    raise
                if self._is_at_start:
                    position.tell(self._runtime.epoch_counters, began)
                self._runtime.due.wait(waits=True)
                if not self._go_on(self._mine):
                    raise
                self._runtime.due.wait(waits=False)
                self._awaits = None  # in a new process that was in its fit already
                if saver is not None:
                    saver.repeat()
            else:
                self.restored()  # also if it was taken up again behind its last epoch
                self._tell_missed()
                if self._is_counted:
                    self._behind.append((told_of or _told)(made))
                return made

    def _knows_state(self, saver: _Saver | None) -> bool:
        """Return whether this rank knows where the fit was, or that the others do."""
        self._is_at_start = False
        if self._is_entering or not self._has_start:
            return True
        if saver is not None:
            self._mine = saver.interrupted()
        self._is_at_start = self._is_counted and not self._has_begun
        return self._is_at_start or self._mine is not None

    @contextlib.contextmanager
    def _keeps_first_values(self) -> Iterator[None]:
        """Let no rank go on alone in a block if another one is lost as variables are made."""
        if self._exchange is None:
            yield
            return
        self._exchange.may_join_later = False
        try:
            yield
        finally:
            self._exchange.may_join_later = True

    def _go_on(self, mine: Checkpoint | None) -> bool:
        """Form the group again, and take the state of the rank that is furthest."""
        while (group := self._groups.next()) is not None:
            self._group = group
            self._use(group)
            try:
                self._is_entering = self._take(mine)
            except PeerGone:
                continue  # another one was lost
            if self._exchange is not None:
                self._exchange.is_joining = self._is_entering or self._lender is not None
            return True
        return False

    def _use(self, group: HostGroup | None) -> None:
        assert self._exchange is not None
        self._exchange.group = group
        self._runtime.agreement.join(group, in_steps=True)

    def _take(self, mine: Checkpoint | None) -> bool:
        """Take the state of the rank that is furthest; return False if none has begun the fit."""
        content = b"" if mine is None else _written(mine)
        counters = [list(each.pending) for each in self._runtime.epoch_counters]
        news = [self._place(mine), len(content), self._behind, self._absences, counters]
        told = self._runtime.agreement.gather(json.dumps(news).encode())
        everyone = [json.loads(each) for each in told]
        places = [each[0] for each in everyone]
        furthest = places.index(max(places))
        (fit, epoch, _), length, past, absences, counters = everyone[furthest]
        has_begun = epoch >= 0
        if fit < 0 or not (has_begun or {each[0] for each in places} <= {-1, fit}):
            raise GridflowError("connection closed by peer: no rank knows where the fit was")
        if mine is None:
            self._awaits, self._past = fit, past
        self._lender = None
        if not has_begun:
            lacks = any(each != [fit, -1, 1] for each in places)
            self._lender = furthest if lacks else None
            self._count_absences(counters, absences)
            return False
        path = self._sent(content, length, furthest, "interrupted.npz")
        there = Checkpoint.read(path)
        self._count_absences(there.counters, absences)
        self._with_all(there, mine).write(path)
        self._runtime.resume_from = path
        return True

    def _place(self, mine: Checkpoint | None) -> list[int]:
        """Return the fit, the epoch, and its complete steps; -1 where nothing is known.

        Before the first epoch: whether all variables have the first values of all ranks.
        """
        if mine is not None:
            return [mine.fit, mine.epoch, mine.step]
        if not self._is_at_start:
            return [-1, -1, -1]
        has_all = self._exchange is None or not self._exchange.is_joining
        return [fits_begun(self._runtime), -1, int(has_all)]

    def _sent(self, content: bytes, length: int, sender: int, name: str) -> Path:
        """Return a file with the bytes of one rank."""
        assert self._group is not None
        padded = np.zeros(length, np.uint8)
        if self._group.rank == sender:
            padded[:] = np.frombuffer(content, np.uint8)
        path = self._runtime.work_dir / name
        path.write_bytes(self._group.of_rank(padded, sender).tobytes())
        return path

    def _count_absences(
        self, place: Sequence[Sequence[int]], so_far: dict[str, list[list[Any]]]
    ) -> None:
        """Note who has left and who has come, at a position in the data."""
        assert self._group is not None
        self.ranks = tuple(self._group.names)
        self._absences = so_far
        for rank in range(self._runtime.num_workers):
            here = [list(each) for each in place]
            note(so_far.setdefault(str(rank), []), here, is_there=rank in self.ranks)
        for at, counter in enumerate(self._runtime.epoch_counters):
            counter.absences = _of_dataset(at, so_far[str(self._runtime.rank)])

    def _tell_missed(self) -> None:
        """Report, at the end of a fit, what ranks have missed that are away.

        What comes after it is another absence, of which they report themselves if they come back.
        """
        counters = self._runtime.epoch_counters
        now = [list(each.pending) for each in counters]
        for rank, absences in self._absences.items():
            if not absences or absences[-1][1] is not None:
                continue
            absences[-1][1] = now
            for at, counter in enumerate(counters if self._runtime.is_chief else ()):
                if counter.tell_missed is not None:
                    counter.tell_missed(int(rank), _of_dataset(at, absences))
            absences.append([now, None])

    def _with_all(self, there: Checkpoint, mine: Checkpoint | None) -> Checkpoint:
        """Return the state with the metrics and statistics of all ranks that are left."""
        is_of_epoch = mine is not None and mine.epoch == there.epoch
        _, metrics = self._added_up(METRICS, there, mine if is_of_epoch else None)
        count, means = self._added_up(MEANS, there, mine)
        _, sums = self._added_up(SUMS, there, mine)
        means = [(each / count).astype(each.dtype) for each in means]
        return joined(there.with_values(METRICS, metrics), means, sums)

    def _added_up(
        self, group: str, there: Checkpoint, mine: Checkpoint | None
    ) -> tuple[float, list[np.ndarray]]:
        """Return how many ranks have values of a group of entries, and their sums.

        `there`: Has values of the same shapes.
        `mine`: This rank's; None: it has none.
        """
        assert self._group is not None
        shapes = [entry.value for entry in there.group(group)]
        parts = [] if mine is None else [entry.value for entry in mine.group(group)]
        has_parts = len(parts) == len(shapes) and mine is not None
        if not has_parts:
            parts = [np.zeros_like(each) for each in shapes]
        wide = (each.astype(np.float64).ravel() for each in parts)
        flat = np.concatenate([[float(has_parts)], *wide])
        count, *_ = total = self._group.all_reduce(flat)
        ends = 1 + np.cumsum([each.size for each in shapes], dtype=np.int64)
        return float(count), [
            part.reshape(like.shape).astype(like.dtype)
            for part, like in zip(np.split(total, [1, *ends])[1:], shapes, strict=False)
        ]


def note(absences: list[list[Any]], place: list[list[int]], *, is_there: bool) -> None:
    """Note whether a rank is there at positions in the datasets.

    `absences`: From which positions to which it was away; to None: it still is.
    """
    is_away = bool(absences) and absences[-1][1] is None
    if is_there and is_away:
        absences[-1][1] = place
    elif not is_there and not is_away:
        if absences and absences[-1][1] == place:  # it was back for no step
            absences[-1][1] = None
        else:
            absences.append([place, None])


def _of_dataset(number: int, absences: list[list[Any]]) -> list[Absence]:
    """Return the absences of a rank as positions in one of the datasets."""
    found: list[Absence] = []
    for left, back in absences:
        if number < len(back):
            # A dataset may have been made meanwhile.
            epoch, batch = left[number] if number < len(left) else (0, 0)
            found.append(((epoch, batch), (back[number][0], back[number][1])))
    return found


def _told(history: Any) -> tuple[dict[str, list[float]], list[int]]:
    """Return what processes are told of a fit that pass over it."""
    found = {}
    for name, values in history.history.items():
        with contextlib.suppress(TypeError, ValueError):  # a callback's own
            found[name] = [float(value) for value in values]
    return found, [int(epoch) for epoch in history.epoch]


def _written(state: Checkpoint) -> bytes:
    file = io.BytesIO()
    state.write_to(file)
    return file.getvalue()
