"""What the ranks of a group do alike in a ``fit``: where it ends, who writes, what is trained.

Ranks that start from different states, or whose weights or learning rate something has changed on
one of them alone, would average gradients of different models. A rank that stops alone would leave
the others in a step that never ends. So ranks compare their models as a fit starts and at the end
of each epoch, and tell each other in each step whether they want to stop, or to save: with the
gradients, which is when a checkpoint that was asked for is heard of, or where a callback may stop
after any step, in a small exchange of its own. So all stop after the step after which one wants to.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gridflow._keras import own_callbacks
from gridflow._keras.results import flavour_of
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._collectives.host import HostGroup

#: The flags: a rank wants to stop, or was told to save, or to save and make no step after it, or
#: that the group forms anew; or to do the second at the end of an epoch, for more workers.
_STOP: Final = 1
_SAVE: Final = 2
_STAY: Final = 4
_CHANGE: Final = 8
_GROW: Final = 16
#: How far numbers of two ranks may be apart: their processors may round differently in each step.
_TOLERANCE: Final = 1e-3
#: The same for weights that are almost zero.
_SMALLEST: Final = 1e-6
_ALIKE: Final = (
    "What sets weights or the learning rate must do so on all ranks: not only if ctx.is_chief, nor "
    "in a callback of the chief alone. To restore, use ctx.callbacks(), or files that all of them "
    "read; see 'Programs with checkpoints of their own' in the documentation. What a layer counts "
    "in call, it counts for its rank: use a metric, or a variable of floats with aggregation='sum'"
)


class FitState(NamedTuple):
    """Where a rank is in a fit: as it starts, or when an epoch has ended.

    `epoch`: How many epochs are done; callbacks have restored their state.
    `updates`: Updates that the optimizer has made; -1: there is no optimizer.
    `rates`: The learning rates that callbacks can change.
    `weights` (list of [name, sum, norm]): Of what is trained; empty where ranks train apart for a
        while.
    `others` (list of [name, checksum]): Of variables that are neither trained nor floating-point
        numbers, as layers have.
    `stops`: Whether a callback wants to stop.
    """

    epoch: int
    updates: int
    rates: list[float]
    weights: list[Any]
    others: list[Any]
    stops: bool = False

    @property
    def place(self) -> str:
        """The position in words."""
        return f"epoch {self.epoch} after {self.updates} updates"


class Agreement:
    """The fits of this process in which all ranks train one model.

    `compares`: Whether weights are the same on all ranks at the end of an epoch.
    """

    def __init__(self, *, compares: bool = True) -> None:
        self._compares = compares
        self._group: HostGroup | None = None
        self._adds_up_steps = self._tells_after_steps = self._is_in_fit = False
        self._initial_epoch = 0
        self._asked = 0
        #: Whether what runs is a loop of one's own.
        self.is_in_loop = False
        #: Whether the driver wants another group than the one that is here.
        self.has_changed: Callable[[], bool] = lambda: False

    def join(self, group: HostGroup | None, *, in_steps: bool) -> None:
        """Agree with the ranks of a group from now on.

        `group`: None: with nobody yet.
        `in_steps`: Whether steps add up gradients through this group.
        """
        self._group, self._adds_up_steps = group, in_steps
        self.look_again()

    def look_again(self) -> None:
        """Tell the others with the next step what was asked of this rank."""
        if self._group is not None:
            self._group.asked = self._asked | _CHANGE * self.has_changed()

    def waited(self) -> float:
        """Return for how many seconds this rank has waited for others so far."""
        return 0.0 if self._group is None else self._group.waited

    def leave(self) -> None:
        """Take part in nothing more: the function has returned."""
        if self._group is not None:
            self._group.leave()

    def begin(self, callbacks: Sequence[Any], initial_epoch: int) -> list[Any]:
        """Start a fit of all ranks; return the callbacks that aren't the chief's alone.

        All ranks must call it.
        """
        self._initial_epoch = initial_epoch
        if self._group is None:
            return list(callbacks)
        self._group.told = self._group.heard = 0
        mine = own_callbacks.paths_of(callbacks), own_callbacks.may_stop_in_epoch(callbacks)
        everyone = self._gathered(mine)
        taken = everyone[0][0]
        self._tells_after_steps = not self._adds_up_steps or any(may for _, may in everyone)
        self._is_in_fit = True
        is_chief = self._group.rank == 0
        return list(callbacks) if is_chief else own_callbacks.without_writing(callbacks, taken)

    def begin_loop(self) -> None:
        """Start a loop of one's own, of all ranks."""
        if self._group is not None:
            self._group.told = self._group.heard = 0
        self._tells_after_steps, self._is_in_fit = not self._adds_up_steps, True
        self.is_in_loop = True

    def end(self) -> None:
        """End the fit or loop."""
        self._is_in_fit = self.is_in_loop = False

    def start(self, model: Any) -> None:
        """Compare where callbacks start a fit.

        Raises `GridflowError`: This rank starts elsewhere than the others, or with another model.
        """
        from gridflow._keras import statistics

        if self._is_in_fit:
            statistics.begin(model)
            self._compare(self._state(model, self.first_epoch(model)), starts=True)

    def first_epoch(self, model: Any) -> int:
        """Return at which epoch callbacks start the fit that runs, or else the program."""
        from gridflow._keras.patches.hooks import position

        return int(position.initial_epoch(model) or self._initial_epoch)

    def step_ended(self, *, wants: bool) -> bool:
        """Return whether all ranks stop after this step.

        `wants`: Whether a callback of this rank wants to.
        """
        if self._group is None or not self._is_in_fit:
            return wants
        self._group.told |= _STOP * wants
        if self._tells_after_steps:
            self._group.tell()
        return bool(self._group.heard & _STOP)

    def ask(self, *, stays: bool, at_end: bool = False) -> None:
        """Ask for a checkpoint of all ranks, from the thread that hears the driver.

        It is made after a step of the fit that runs, or of the next one that makes checkpoints.

        `stays`: Whether no rank makes another step after it.
        `at_end`: Whether to make it at the end of an epoch, after which none makes another step.
        """
        self._asked |= _GROW if at_end else _SAVE | _STAY * stays
        self.look_again()

    @property
    def changes(self) -> bool:
        """Whether any rank has heard that the group forms anew."""
        return self._group is not None and bool(self._group.heard & _CHANGE)

    @property
    def saves(self) -> bool:
        """Whether all ranks make a checkpoint now, as one was asked for."""
        return bool(self._flags & _SAVE)

    @property
    def _flags(self) -> int:
        if self._group is None:
            return self._asked
        return self._group.heard if self._is_in_fit else 0

    def take_request(self, *, may_grow: bool = False) -> tuple[bool, bool]:
        """Return whether the checkpoint that is made was asked for, and whether all stay then.

        `may_grow`: Whether it is one with which another number of workers can go on.
        """
        flags = self._flags
        taken = (_SAVE | _STAY) * bool(flags & _SAVE) | (flags & _GROW) * may_grow
        if taken:
            self._asked &= ~taken
            self.look_again()
            if self._group is not None:
                self._group.heard &= ~taken
        return bool(taken), bool(taken & (flags & _STAY | _GROW))

    def epoch_ended(self, model: Any, epoch: int, *, wants: bool) -> bool:
        """Compare the models at the end of an epoch; return whether all ranks stop.

        Raises `GridflowError`: This rank has another model than the others.
        """
        if not self._is_in_fit:
            return wants
        mine = self._state(model, epoch + 1, stops=wants)
        return any(each.stops for each in self._compare(mine, starts=False))

    def _state(self, model: Any, epoch: int, *, stops: bool = False) -> FitState:
        from gridflow._keras.resume import state

        weights = state.sums(model) if self._compares else []
        others = state.checksums(model) if self._compares else []
        rates = state.rates(model, flavour_of(model) or "keras")
        return FitState(epoch, _updates(model), rates, weights, others, stops)

    def _compare(self, mine: FitState, *, starts: bool) -> list[FitState]:
        everyone = [FitState(*each) for each in self._gathered(mine)]
        odd, difference = odd_one(everyone, starts=starts)
        if self._group is not None and odd == self._group.rank:
            raise GridflowError(
                f"{difference}: gradients of different models would be mixed. {_ALIKE}."
            )
        return everyone

    def _gathered(self, value: Any) -> list[Any]:
        return [json.loads(each) for each in self.gather(json.dumps(value).encode())]

    def gather(self, content: bytes) -> list[bytes]:
        """Return the bytes of all ranks; all must call it."""
        from gridflow._feed import allgather  # here: it brings libraries with threads

        if self._group is None:
            return [content]
        return allgather.with_arrays(content, self._group.all_gather)


def odd_one(everyone: Sequence[FitState], *, starts: bool) -> tuple[int, str]:
    """Return a rank that differs from the others, and how; -1 if there is none.

    `everyone`: By rank.
    `starts`: Whether the fit starts here, so that positions are compared, too.
    """
    apart = [(rank, _difference(everyone, rank, 0, starts=starts)) for rank in range(len(everyone))]
    apart = [(rank, words) for rank, words in apart if words]
    if not apart:
        return -1, ""
    others = range(2, len(everyone))
    are_alike = others and not any(_difference(everyone, r, 1, starts=starts) for r in others)
    if len(apart) == len(everyone) - 1 and are_alike:
        return 0, _difference(everyone, 0, 1, starts=starts)
    return apart[0]


def _difference(everyone: Sequence[FitState], rank: int, peer: int, *, starts: bool) -> str:
    mine, theirs = everyone[rank], everyone[peer]
    if starts and mine.place != theirs.place:
        return f"its fit starts at {mine.place}, but rank {peer}'s at {theirs.place}"
    words = _of_models(mine, theirs, peer)
    return words and f"at {mine.place}, {words}"


def _of_models(mine: FitState, theirs: FitState, peer: int) -> str:
    if len(mine.weights) != len(theirs.weights):
        return f"it trains {len(mine.weights)} weights, but rank {peer} {len(theirs.weights)}"
    for rate, other in zip(mine.rates, theirs.rates, strict=False):
        if _are_apart(rate, other, abs(other)):
            return f"its learning rate is {rate:.6g}, but rank {peer}'s {other:.6g}"
    for here, there in zip(mine.weights, theirs.weights, strict=True):
        name, total, norm = here
        scale = max(norm, there[2], _SMALLEST)
        if _are_apart(total, there[1], scale) or _are_apart(norm, there[2], scale):
            return (
                f"its weight {name!r} has the norm {norm:.6g} and the sum {total:.6g}, but rank "
                f"{peer}'s {there[2]:.6g} and {there[1]:.6g}"
            )
    for (name, checksum), (_, other) in zip(mine.others, theirs.others, strict=False):
        if checksum != other:
            return f"its variable {name!r} has other values than rank {peer}'s"
    return ""


def _are_apart(here: float, there: float, scale: float) -> bool:
    """Return whether numbers differ by more than rounding; those that aren't finite don't."""
    return math.isfinite(here) and math.isfinite(there) and abs(here - there) > _TOLERANCE * scale


def _updates(model: Any) -> int:
    found = getattr(getattr(model, "optimizer", None), "iterations", None)
    # JAX's arrays, which it is with gradient accumulation, are numbers as they are.
    return -1 if found is None else int(found.numpy() if hasattr(found, "numpy") else found)
