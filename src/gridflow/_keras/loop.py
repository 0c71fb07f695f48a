"""Keeps the state of a training loop of one's own, so that it goes on when the group has changed.

`fit` has callbacks that know where it is. A loop tells it itself: which variables, datasets and
plain values are its state, and where a step ends. With these the loop's function is called again
after the loss of a rank, and in a restarted group.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gridflow._feed.dataset.source import source_of
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import fits, position
from gridflow._keras.resume import building, state
from gridflow._keras.resume.callback import count_fit, fits_begun, repeat_from
from gridflow._keras.resume.checkpoint_file import Checkpoint, Entry, check_same
from gridflow._keras.resume.files import CheckpointFiles
from gridflow._keras.resume.interrupted import METRICS, reader
from gridflow._spec.place import Place
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from gridflow._feed.plan.epochs import EpochCounter
    from gridflow._keras.runtime import Runtime

_FLAVOUR: Final = "loop"
_OWN: Final = frozenset({"batches", "keep", "run"})


class _Pass(NamedTuple):
    """A position in a dataset: the pass over it, its batches so far, and whether that is all."""

    epoch: int
    batch: int = 0
    is_over: bool = False

    @property
    def next(self) -> _Pass:
        return _Pass(self.epoch + 1)


@dataclass(frozen=True)
class _State:
    """What a loop has kept at the end of a step.

    `steps`: How many there were.
    `place`: How many passes over data have ended, and the steps since then.
    `values`: The plain values, as JSON.
    `passes`: By dataset.
    `arrays`: Of the variables, as their backend has them.
    """

    steps: int
    place: tuple[int, int]
    values: str
    passes: tuple[_Pass, ...]
    arrays: Sequence[Any]


class Loop:
    """What a training loop goes on with when its group has changed; ``ctx.loop`` makes it.

    The plain values are attributes. They can be set, and are kept with the next step.
    """

    def __init__(self, runtime: Runtime, kept: Sequence[Any], values: Mapping[str, Any]) -> None:
        for name in values:
            if name in _OWN or name.startswith("_"):
                raise InvalidArgument(
                    f"a loop can't keep a value by the name of {name!r}: choose one that doesn't "
                    f"begin with an underscore, and isn't one of {', '.join(sorted(_OWN))}."
                )
        self._runtime, self._names = runtime, tuple(values)
        self.__dict__.update(values)
        self._data = [each for each in kept if _is_dataset(each)]
        self._objects = [each for each in kept if not _is_dataset(each)]
        self._models = [each for each in self._objects if hasattr(each, "test_function")]
        #: Of TensorFlow; None on another backend.
        self._strategy = runtime.group if hasattr(runtime.group, "extended") else None
        self._objects += self._own_optimizers()
        self._variables = _Variables(self._strategy, self._objects)
        self._passes = [_Pass(*_pending(each)) for each in self._data]
        self._steps = self._saved = 0
        self._place = 0, 0
        self._files = CheckpointFiles(runtime)
        self._is_iterating = self._is_running = False
        self._fit = self._awaited = -1
        self._last = self._state()

    def _own_optimizers(self) -> list[Any]:
        """Return the optimizers of compiled models.

        A new process passes over a `fit` that has built them in the others.
        """
        found = []
        for model in self._models:
            optimizer = getattr(model, "optimizer", None)
            if optimizer is None:
                continue
            found.append(optimizer)
            if model.built and not _is_built(optimizer):
                with _scope_of(self._strategy):
                    building.build_optimizer(optimizer, model.trainable_variables)
        return found

    def __getattr__(self, name: str) -> Any:
        """Refuse names that aren't kept."""
        kept = ", ".join(self.__dict__.get("_names", ())) or "none"
        raise AttributeError(f"the loop has no value {name!r}; it keeps: {kept}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a value that is kept."""
        if not name.startswith("_") and name not in self._names:
            raise AttributeError(
                f"the loop has no value {name!r}: name it at the start, ctx.loop(…, {name}=…)."
            )
        super().__setattr__(name, value)

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function that trains, and again from the last complete step if need be.

        That is when a rank was lost, or takes part again, and where workers can be replaced, or
        come and go. In a group that was restarted, the function begins at the checkpoint.

        Parameters
        ----------
        function
            Is called without arguments. It finds the loop's values, variables and datasets as they
            were after the last complete step, whatever it has changed since.

        Returns
        -------
        object
            What the function returns. None in a process that takes the place of a lost one, if the
            others have this loop behind them: then only the values are theirs.
        """
        if self._is_running or self._runtime.due.depth:
            raise GridflowError("a loop can't run within another one, or within fit.")
        goes_on = self._runtime.regrouping
        if goes_on is not None and goes_on.passes_over(self._models, is_counted=True):
            self.__dict__.update(goes_on.passed())
            return None
        with fits.counting(self._runtime, together=self._runtime.trains_together):
            if goes_on is None:
                return self._attempt(function)
            return goes_on.run(lambda: self._attempt(function), lambda _: self._plain())

    def batches(self, *data: Any) -> Iterator[Any]:
        """Yield the rest of a pass over a dataset; a step ends where its next batch is asked for.

        Parameters
        ----------
        data
            One of the datasets that the loop keeps; or several, which are read side by side: then
            tuples of their batches.

        Raises
        ------
        InvalidArgument
            The loop doesn't keep the dataset, or is still in a pass over one.
        """
        places = [self._place_of(each) for each in data]
        if not places:
            raise InvalidArgument("loop.batches() takes one of the datasets of ctx.loop(…).")
        if not self._is_running:
            raise InvalidArgument("loop.batches() is for the function that loop.run() calls.")
        if self._is_iterating:
            raise InvalidArgument(
                "the loop is in a pass over its data already: loop.batches(a, b) reads several "
                "datasets side by side, and one that isn't kept can be read within a pass."
            )
        return self._iterated(places)

    def keep(self) -> None:
        """End a step that needs no batch: if it is interrupted, the next one begins here.

        All ranks must call it after the same step.
        """
        if not self._is_running:
            raise InvalidArgument("loop.keep() is for the function that loop.run() calls.")
        self._end_step(is_over=False)

    # Data -----------------------------------------------------------------------------------------

    def _place_of(self, dataset: Any) -> int:
        for place, each in enumerate(self._data):
            if each is dataset:
                return place
        raise InvalidArgument(
            "the loop doesn't keep this dataset: pass it to ctx.loop(…) as well, so that the loop "
            "can go on in the middle of it."
        )

    def _iterated(self, places: Sequence[int]) -> Iterator[Any]:
        self._is_iterating = True
        try:
            if not any(self._passes[place].is_over for place in places):
                yield from self._steps_of(places)
        finally:
            self._is_iterating = False
            for place in places:
                self._passes[place] = self._passes[place].next

    def _steps_of(self, places: Sequence[int]) -> Iterator[Any]:
        open_ones = [_begun(self._data[place], self._passes[place]) for place in places]
        while True:
            try:
                found = [next(each) for each in open_ones]
            except StopIteration:
                if not any(self._passes[place].is_over for place in places):
                    self._end_pass(places)
                return
            yield found[0] if len(found) == 1 else tuple(found)
            for place in places:
                now = self._passes[place]
                is_over = now.batch + 1 >= _length(self._data[place])
                self._passes[place] = _Pass(now.epoch, now.batch + 1, is_over)
            self._end_step(is_over=any(self._passes[place].is_over for place in places))

    def _end_pass(self, places: Sequence[int]) -> None:
        """Keep that data have ended whose length wasn't known."""
        for place in places:
            self._passes[place] = _Pass(*self._passes[place][:2], is_over=True)
        self._place = self._place[0] + 1, 0
        self._keep()

    # State ----------------------------------------------------------------------------------------

    def _attempt(self, function: Callable[[], Any]) -> Any:
        runtime, goes_on = self._runtime, self._runtime.regrouping
        self._fit = fits_begun(runtime)
        count_fit(runtime)
        runtime.agreement.begin_loop()
        if goes_on is not None:
            goes_on.begins(_Saver(lambda: self._made(self._last), self._repeat))
        if runtime.resume_from is not None:
            there = Checkpoint.read(runtime.resume_from)
            self._awaited = there.fit
            if there.fit == self._fit:
                self._restore(there)
        if goes_on is not None:
            goes_on.restored()
            goes_on.begun(())
        self._last = self._state()
        self._is_running = True
        try:
            with nullcontext() if goes_on is None else self._counting_members():
                result = function()
            runtime.writer.wait()
            return result
        finally:
            self._is_running = False
            runtime.agreement.end()

    def _counting_members(self) -> AbstractContextManager[None]:
        """Let the strategy's ``num_replicas_in_sync`` be the number of those that are there."""
        if self._strategy is None:
            return nullcontext()
        found: AbstractContextManager[None] = self._strategy.extended.counting_members()
        return found

    def _end_step(self, *, is_over: bool) -> None:
        """Note that a step has ended, with which a pass over data may be over."""
        passes, steps = self._place
        self._steps += 1
        self._place = (passes + 1, 0) if is_over else (passes, steps + 1)
        self._keep()

    def _keep(self) -> None:
        """Note the state after a step, and do what is due there."""
        runtime, goes_on = self._runtime, self._runtime.regrouping
        if goes_on is not None:
            self._last = self._state()
        runtime.due.step_ended()
        runtime.agreement.step_ended(wants=False)
        if goes_on is not None and runtime.agreement.changes:
            goes_on.leave()
        every = runtime.training.checkpoint_every
        is_due = every is not None and self._steps - self._saved >= every
        is_over = not self._place[1]
        if is_due or is_over or runtime.agreement.saves:
            self._save()

    def _save(self) -> None:
        """Write a checkpoint; all ranks read the variables."""
        runtime = self._runtime
        self._saved = self._steps
        if self._fit < self._awaited or runtime.saves_sections:
            return
        with runtime.spent.saving():
            may_grow = all(each.is_over or not each.batch for each in self._passes)
            is_asked, stays = runtime.agreement.take_request(
                may_grow=may_grow and not self._place[1]
            )
            place = Place(self._fit, *self._place)
            runtime.writer.wait()  # one at a time: each holds a copy of all variables
            runtime.mark(place)
            made = self._made(self._state(self._variables.of_all()))
            if runtime.is_chief:
                self._files.write(made, place, is_awaited=is_asked)
            if stays:
                runtime.writer.wait()
                runtime.rest()

    def _plain(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self._names}

    def _state(self, arrays: Sequence[Any] | None = None) -> _State:
        if arrays is None:
            keeps = self._runtime.regrouping is not None
            arrays = self._variables.read() if keeps else ()
        try:
            values = json.dumps(self._plain(), default=_number)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"a value of the loop can't be kept: {error}. Values are numbers, strings, None, "
                "and lists and dicts of these; arrays are kept as tf.Variable or keras.Variable."
            ) from None
        return _State(self._steps, self._place, values, tuple(self._passes), arrays)

    def _made(self, kept: _State) -> Checkpoint:
        positions = [each.pending for each in self._runtime.epoch_counters]
        for dataset, at in zip(self._data, kept.passes, strict=True):
            for place, counter in enumerate(self._runtime.epoch_counters):
                if counter in _counters(dataset):
                    positions[place] = (at.epoch + 1, 0) if at.is_over else (at.epoch, at.batch)
        return Checkpoint(
            flavour=_FLAVOUR,
            fit=self._fit,
            epoch=kept.place[0],
            step=kept.place[1],
            batches=kept.steps,
            counters=positions,
            pulled=dict(self._runtime.pulled),
            callbacks={"values": kept.values, "passes": kept.passes},
            entries=self._variables.entries(kept.arrays),
        )

    def _restore(self, there: Checkpoint) -> None:
        if there.flavour != _FLAVOUR:
            raise InvalidArgument(
                f"the checkpoint is of a {there.flavour} model that fit trained, but here is a "
                "loop: the function must do the same as before the restart."
            )
        there.refuse_other_files(self._runtime.pulled)
        values = json.loads(there.callbacks["values"])
        if set(values) != set(self._names) or len(there.callbacks["passes"]) != len(self._data):
            raise InvalidArgument(
                f"the checkpoint is of a loop that kept {sorted(values)} and "
                f"{len(there.callbacks['passes'])} datasets; this one keeps {sorted(self._names)} "
                f"and {len(self._data)}: the function must do the same as before the restart."
            )
        self._variables.restore(there)
        self.__dict__.update(values)
        self._passes = [_Pass(*each) for each in there.callbacks["passes"]]
        self._steps, self._place = there.batches, (there.epoch, there.step)
        self._saved = self._steps
        position.tell(self._runtime.epoch_counters, there.counters)

    def _repeat(self) -> None:
        repeat_from(self._runtime, self._fit)
        for each in self._models:
            private_parts.forget_evaluation(each)


@dataclass(frozen=True)
class _Saver:
    """What tells the others of the loop that runs (see `gridflow._keras.regrouping`).

    `interrupted`: Returns the state after the last complete step.
    `repeat`: Takes the next loop for the one that was interrupted.
    """

    interrupted: Callable[[], Checkpoint]
    repeat: Callable[[], None]
    may_be_interrupted: bool = True


class _Variables:
    """The variables of what a loop keeps, by group of entries: of metrics, each rank has its part.

    `strategy`: Of TensorFlow; None on another backend.
    """

    def __init__(self, strategy: Any, objects: Sequence[Any]) -> None:
        seen: set[int] = set()
        metrics = [each for one in objects for each in _metrics_of(one)]
        of_metrics = _unseen(metrics, seen)
        self._groups = {"kept": _unseen(objects, seen), METRICS: of_metrics}
        self._all = [each for found in self._groups.values() for each in found]
        self._strategy = strategy
        #: Returns the values on this rank; no other one is asked.
        self.read: Callable[[], Sequence[Any]] = reader(strategy, self._all)

    def of_all(self) -> Sequence[Any]:
        """Return the values of all ranks; all must call it."""
        return [state.read(each, is_tensor=self._strategy is not None) for each in self._all]

    def entries(self, arrays: Sequence[Any]) -> list[Entry]:
        """Return the entries of a checkpoint with these values."""
        values = iter(arrays)
        return [
            Entry(group, state.name_of(each), np.asarray(next(values)), bool(each.trainable))
            for group, found in self._groups.items()
            for each in found
        ]

    def restore(self, there: Checkpoint) -> None:
        """Set all variables.

        Raises `InvalidArgument`: The checkpoint has others.
        """
        for group, found in self._groups.items():
            entries, names = there.group(group), [state.name_of(each) for each in found]
            check_same(entries, names, [tuple(each.shape) for each in found], "loop")
            with _scope_of(self._strategy):
                for entry, variable in zip(entries, found, strict=True):
                    variable.assign(entry.value)


def _scope_of(strategy: Any) -> AbstractContextManager[Any]:
    """Return a context in which variables are made and set; None: on another backend."""
    found: AbstractContextManager[Any] = nullcontext() if strategy is None else strategy.scope()
    return found


def _is_variable(each: Any) -> bool:
    return hasattr(each, "assign") and hasattr(each, "shape")


def _is_dataset(each: Any) -> bool:
    return hasattr(each, "__iter__") and not _is_variable(each) and not hasattr(each, "variables")


def _variables_of(each: Any) -> list[Any]:
    """Return the variables of an object.

    Raises `InvalidArgument`: It has none, or has yet to make them.
    """
    if _is_variable(each):
        return [each]
    what = type(each).__name__
    if not _is_built(each):
        raise InvalidArgument(
            f"a loop can't keep the {what}, as it isn't built: build a model with an Input layer "
            "or model.build(shape), and an optimizer with "
            "optimizer.build(model.trainable_variables), before ctx.loop(…)."
        )
    if not hasattr(each, "variables"):
        raise InvalidArgument(
            f"a loop can't keep a {what}: ctx.loop(…) takes models, optimizers, metrics, variables "
            "and datasets, and plain values by name."
        )
    return state.variables_of(each)


def _is_built(each: Any) -> bool:
    if not hasattr(each, "apply_gradients"):
        return bool(getattr(each, "built", True))
    # Legacy optimizers of tf_keras don't say so, and have no variables before.
    return private_parts.is_optimizer_built(each) and bool(state.variables_of(each))


def _metrics_of(each: Any) -> list[Any]:
    return [each] if hasattr(each, "update_state") else list(getattr(each, "metrics", None) or ())


def _unseen(objects: Sequence[Any], seen: set[int]) -> list[Any]:
    found = [variable for each in objects for variable in _variables_of(each)]
    return [variable for variable in found if state.is_new(variable, seen)]


def _counters(dataset: Any) -> list[EpochCounter]:
    """Return the counters of the job's rows of which a dataset is made.

    Raises `InvalidArgument`: They are pushed, and come once.
    """
    tensorflow: Any = sys.modules.get("tensorflow")
    is_pipeline = tensorflow is not None and isinstance(dataset, tensorflow.data.Dataset)
    made_of = private_parts.inputs_of(dataset) if is_pipeline else [dataset]
    found: list[Any] = [source for source in map(source_of, made_of) if source is not None]
    if not all(hasattr(each, "counter") for each in found):  # of a stream
        raise InvalidArgument(
            "a loop can't keep ctx.stream(): its rows come once. Leave it out of ctx.loop(…)."
        )
    return list({id(each.counter): each.counter for each in found}.values())


def _pending(dataset: Any) -> tuple[int, int]:
    return next((each.pending for each in _counters(dataset)), (0, 0))


def _begun(dataset: Any, at: _Pass) -> Iterator[Any]:
    """Return the rest of a pass over a dataset; what can't start there is read and dropped."""
    starts_there = source_of(dataset) is not None
    for counter in _counters(dataset):
        counter.set(at.epoch, at.batch if starts_there else 0)
    found: Iterator[Any] = iter(dataset)
    for _ in range(0 if starts_there else at.batch):
        next(found, None)
    return found


def _length(dataset: Any) -> float:
    """Return how many batches a pass has; infinity if that isn't known."""
    try:
        return len(dataset)
    except TypeError:
        return math.inf


def _number(value: Any) -> Any:
    """Return a scalar of an array library as a number of Python."""
    if tuple(getattr(value, "shape", [0])):
        raise TypeError(f"{type(value).__name__} isn't a plain value")
    return np.asarray(value).item()
