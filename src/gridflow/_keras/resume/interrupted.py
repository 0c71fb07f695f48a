"""The state of a model after the last complete step, when the step after it has failed.

A step changes what is trained only after gradients were exchanged. Until then it may have changed
what it needs no other rank for: metrics, moving statistics, random seeds, counters. So these are
read after each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._keras import statistics
from gridflow._keras.results import is_tensorflow
from gridflow._keras.resume import state
from gridflow._keras.resume.checkpoint_file import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._keras.resume.checkpoint_file import Checkpoint

#: Groups of entries: this rank's part of metrics, and of statistics that are averaged, or added up.
METRICS: Final = "metrics"
MEANS: Final = "means"
SUMS: Final = "sums"


class LastStep:
    """What a step may change although it fails, as it is after the last complete one.

    `groups`: All variables of a model, by group.
    `trained`: The ids of those that are trained.
    """

    def __init__(self, model: Any, groups: dict[str, list[Any]], trained: frozenset[int]) -> None:
        self._model, self._groups, self._trained = model, groups, trained
        self._early = [
            each for group, found in groups.items() for each in found if self._is_early(group, each)
        ]
        self._counters = [
            each for group, found in groups.items() if "optimizer" in group for each in found[:1]
        ]
        self._strategy = model.distribute_strategy if is_tensorflow(model) else None
        self._read = reader(self._strategy, self._early)
        self._values: Sequence[Any] = ()
        self._random: list[Entry] = []
        self.note()

    @classmethod
    def of(cls, model: Any, flavour: str) -> LastStep:
        """Return it for a model that is built and compiled."""
        trained = frozenset(id(variable) for variable in model.trainable_variables)
        return cls(model, state.variables(model, flavour, metrics=True), trained)

    def _is_early(self, group: str, variable: Any) -> bool:
        if "optimizer" in group:
            # Counters, the learning rate, the scale of losses. TensorFlow's empty shape is true.
            return len(variable.shape) == 0
        return group != "model" or id(variable) not in self._trained

    def note(self) -> None:
        """Note that a step is complete."""
        self._values = self._read()
        self._random = state.backends_random_states(self._model)

    @property
    def is_whole(self) -> bool:
        """Whether nothing that is trained was changed since.

        A step with several optimizers may fail after the first of them has made its update.
        """
        if len(self._counters) == 1:
            return True
        known = {id(each): value for each, value in zip(self._early, self._values, strict=True)}
        now = reader(self._strategy, self._counters)()
        return all(
            int(known[id(each)]) == int(value)
            for each, value in zip(self._counters, now, strict=True)
        )

    def entries(self) -> list[Entry]:
        """Return all variables: of metrics, this rank's part. No other rank is asked."""
        known = {id(each): value for each, value in zip(self._early, self._values, strict=True)}
        everything = [each for found in self._groups.values() for each in found]
        others = [each for each in everything if id(each) not in known]
        for each, value in zip(others, reader(self._strategy, others)(), strict=True):
            known[id(each)] = value
        entries = [
            Entry(
                group,
                state.name_of(each),
                np.asarray(known[id(each)]),
                is_trained=group != "model" or id(each) in self._trained,
            )
            for group, found in self._groups.items()
            for each in found
        ]
        return entries + self._random + self._statistics(entries)

    def _statistics(self, entries: list[Entry]) -> list[Entry]:
        """Return this rank's part of what ranks average or add up, by its place in the model."""
        places = {id(each): place for place, each in enumerate(self._groups["model"])}
        found = []
        for variable, common in statistics.of_rank(self._model):
            place = places.get(id(variable))
            if place is None:
                continue  # a metric's
            value = entries[place].value  # the model's come first
            if common is None:
                found.append(Entry(MEANS, f"{place}", value))
            else:
                found.append(Entry(SUMS, f"{place}", value - common))
        return found


def joined(
    there: Checkpoint, means: Sequence[np.ndarray], sums: Sequence[np.ndarray]
) -> Checkpoint:
    """Return a state with the statistics of all ranks.

    `means`, `sums`: In the order of its entries in these groups, of all ranks.
    """
    values = [entry.value for entry in there.group("model")]
    for entry, mean in zip(there.group(MEANS), means, strict=True):
        values[int(entry.name)] = mean
    for entry, total in zip(there.group(SUMS), sums, strict=True):
        values[int(entry.name)] = values[int(entry.name)] - entry.value + total
    return there.with_values("model", values)


def reader(strategy: Any, variables: Sequence[Any]) -> Any:
    """Return a function that reads variables on this rank, without the others.

    `strategy`: Of TensorFlow; None on another backend.
    """
    if strategy is None:
        return lambda: [np.array(each.numpy()) for each in variables]
    import tensorflow as tf

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def read() -> list[Any]:
        return [tf.identity(state.tensor_of(each)) for each in variables]

    def read_here() -> list[Any]:
        found: list[Any] = strategy.run(read) if variables else []
        return found

    return read_here
