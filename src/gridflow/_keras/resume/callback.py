"""Checkpoints, and exact resume from them.

A checkpoint contains the model's weights, the optimizer's variables (including ``iterations``), the
seeds of random layers, the state of the metrics in the middle of an epoch, the History so far, and
the position in the data. A run that is killed at any step and restarted ends with the same weights
as an uninterrupted run (up to rounding, 1e-6), if its data come in the same order again:

* ``ctx.dataset(...)``: always, shuffled or not.
* A custom ``tf.data.Dataset``: its first batches are read again and dropped; with
  ``steps_per_epoch``, those of all epochs so far. With ``shuffle(reshuffle_each_iteration=True)``
  the order differs after a restart.
* Arrays: likewise, with ``shuffle=False``. With ``shuffle=True`` the order differs.

Other callbacks go on where they were, too (`gridflow._keras.resume.memory`). Therefore a checkpoint
is made when all of them have seen the end of a step or epoch, and restored when all have begun the
fit; in the middle of an epoch, once more when all have begun the epoch again, from what it began
with. Keras's list of callbacks says when (`gridflow._keras.patches.hooks.fits`); without the hook,
other callbacks start anew.

Not restored: in tf_keras the seeds of Dropout, which TensorFlow doesn't expose (unless
``tf_keras.backend.experimental.enable_tf_random_generator()`` is on).

A training function that calls ``fit`` more than once resumes the fit that was in progress; earlier
ones run again from the beginning.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gridflow._keras import statistics
from gridflow._keras.neutral import NeutralCallback, numbers
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import incremental, position
from gridflow._keras.resume import building, memory, state
from gridflow._keras.resume.checkpoint_file import Checkpoint, Entry
from gridflow._keras.resume.files import CheckpointFiles
from gridflow._keras.resume.interrupted import LastStep
from gridflow._keras.resume.memory import Memory
from gridflow._keras.runtime import current_fit, next_fit, repeat_fit
from gridflow._spec.place import Place
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from gridflow._keras.runtime import Runtime

_log = logging.getLogger(__name__)

_fits: weakref.WeakKeyDictionary[Runtime, int] = weakref.WeakKeyDictionary()


def fits_begun(runtime: Runtime) -> int:
    """Return how many fits with this callback have begun, or were passed over."""
    return _fits.get(runtime, 0)


def count_fit(runtime: Runtime) -> None:
    """Count a fit with this callback that begins, or that is passed over."""
    _fits[runtime] = fits_begun(runtime) + 1


def repeat_from(runtime: Runtime, fit: int) -> None:
    """Take the next fit for one that was interrupted."""
    _fits[runtime] = fit


@dataclass(frozen=True)
class _Memories:
    """What callbacks remember between two steps, and the learning rates there."""

    callbacks: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)


def _groups(there: Checkpoint) -> list[str]:
    others = [state.OTHER.format(i) for i in range(len(there.built))]
    return ["model", "optimizer", *others, "random"]


class CheckpointAndResume(NeutralCallback):
    """Writes checkpoints while ``fit`` runs, and makes it start at the last committed one.

    It must be passed to ``fit`` on all ranks: all take part in reading the variables, only the
    chief writes.

    `runtime`: There is a checkpoint every ``checkpoint_every`` steps and at the end of each epoch;
        ``resume_from`` is the file to resume from.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        every = runtime.training.checkpoint_every
        if every is not None and every < 1:
            raise InvalidArgument(
                f"checkpoint_every must be a number of steps, at least 1; got {every}."
            )
        self._runtime = runtime
        self._files = CheckpointFiles(runtime)
        self._goes_on = runtime.regrouping
        self._writer = runtime.writer
        self._data: Any = None
        #: All callbacks of the fit, if somebody calls `begins`, `begun` and so on.
        self._all: Sequence[Any] | None = None
        self._memory: Memory | None = None
        #: The epoch and its complete steps, and what the next step may change although it fails.
        self._at = 0, 0
        self._last: LastStep | None = None
        #: Whether some callbacks may have seen the end of a step or epoch that others haven't.
        self.is_telling = False
        position.install_imported()

    def begins(self, callbacks: Sequence[Any] | None) -> None:
        """Prepare for a fit with these callbacks, none of which has begun it.

        Raises `InvalidArgument`: It is a step of a loop of one's own, which makes the checkpoints.
        """
        if self._runtime.agreement.is_in_loop:
            raise InvalidArgument(
                "ctx.loop() and ctx.callbacks() would both make checkpoints. In the function of "
                "loop.run(), use ctx.callbacks(checkpoint=False)."
            )
        self._all, self._memory = callbacks, None
        self._data = position.data_of(self.model)  # now, because a validation has its own data
        incremental.at_sections(lambda: self._save(self._epoch, self._step, at_section=True))
        self._fit = fits_begun(self._runtime)
        count_fit(self._runtime)
        self._number = next_fit(self._runtime)
        self._epoch, self._step, self._batches, self._since = 0, 0, 0, 0
        self._history: dict[str, list[float]] = {}
        self._epochs: list[int] = []
        #: What the end of a step or epoch calls for, once all callbacks have seen it.
        self._due: functools.partial[None] | None = None
        self._is_finished = False
        self._resumed: Checkpoint | None = None
        self._awaited = 0
        self._last = None
        if self._goes_on is not None:
            self._goes_on.begins(self)
        if self._runtime.resume_from is not None:
            there = Checkpoint.read(self._runtime.resume_from)
            # An older checkpoint must not replace the one that is still needed.
            self._awaited = there.fit
            if there.fit == self._fit:
                self._resumed = there
                memory.continue_files(callbacks or (), there.callbacks)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Begin without the other callbacks if need be."""
        del logs
        if self._all is None:
            self.begins(None)
            self.begun()

    def begun(self) -> None:
        """Restore what can be restored before the first epoch; all callbacks have begun the fit."""
        self._note_positions()
        if self._goes_on is not None and self._resumed is None:
            self._at = self._runtime.agreement.first_epoch(self.model), 0
            self._last = self._last_step()
            self._resumed = self._goes_on.lent(self._start)
        is_restored = self._resumed is not None
        keeps = self._runtime.is_chief or self._goes_on is not None
        if self._all is not None and (keeps or is_restored):
            self._memory = Memory(self._all, self._known, is_restored=is_restored)
        self._before = _Memories()
        if self._resumed is not None:
            self._resume(self._resumed)
        elif keeps:
            self._before = self._remember()
        self._note_positions()

    def _note_positions(self) -> None:
        self._pending = [counter.pending for counter in self._runtime.epoch_counters]
        self._began, self._batches_before = self._pending, self._batches
        self._drawn: list[bool] | None = None

    def _start(self) -> Checkpoint:
        """Return what the fit starts from, before its first epoch.

        Raises `InvalidArgument`: The model isn't built, and can't be.
        """
        building.build(self.model, self.flavour)
        entries = LastStep.of(self.model, self.flavour).entries()
        return self._made(*self._at, _Memories(), entries)

    def _last_step(self) -> LastStep | None:
        is_built = self.model.built and private_parts.is_optimizer_built(self.model.optimizer)
        return LastStep.of(self.model, self.flavour) if is_built else None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Begin the epoch without the other callbacks if need be."""
        del logs
        self._epoch, self._drawn = epoch, None
        self._at = epoch, 0
        if self._all is None:
            self.epoch_begun()

    def epoch_begun(self) -> None:
        """Restore what Keras and callbacks have reset and changed, in the middle of an epoch."""
        there, self._resumed = self._resumed, None
        if there is not None:
            self._restore(there)
        if self._goes_on is not None:
            self._goes_on.restored()
            self._goes_on.begun(self._all or ())
            self._last = self._last_step()

    def _restore(self, there: Checkpoint) -> None:
        position.forget(self.model, self.flavour)
        if there.step:
            self._at = there.epoch, there.step
            state.restore(self.model, self.flavour, there, [*_groups(there), "metrics"])
            if self._memory is not None:
                self._memory.restore(there.callbacks, there.arrays("callbacks"))
        self._restore_history(there)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint if one is due."""
        del logs
        done = batch + 1 - self._step_before(batch)
        self._batches += done
        self._since += done
        self._at = self._epoch, batch + 1
        if self._last is not None:
            self._last.note()
        elif self._goes_on is not None:
            self._last = LastStep.of(self.model, self.flavour)
        if self._drawn is None:
            self._drawn = self._drawn_from()
        every = self._runtime.training.checkpoint_every
        steps = self.params.get("steps") or incremental.known_steps(self._data)
        # The last step's checkpoint is written at the epoch's end: no step would be left to resume.
        is_last = steps is not None and batch + 1 >= steps
        is_due = every is not None and self._since >= every
        if not is_last and (is_due or self._runtime.agreement.saves):
            self._due = functools.partial(self._save_step, batch + 1)
            if self._all is None:
                self.settle()

    def _drawn_from(self) -> list[bool]:
        """Return for each dataset whether it has started an iteration since the epoch's start."""
        now = [counter.pending for counter in self._runtime.epoch_counters]
        before = self._pending + now[len(self._pending) :]
        return [old != new for old, new in zip(before, now, strict=True)]

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Write the epoch's checkpoint."""
        if not incremental.is_empty(self.model):
            self._due = functools.partial(self._save_epoch, epoch, logs)
            if self._all is None:
                self.settle()

    def settle(self) -> None:
        """Write the checkpoint that is due, as all callbacks have seen the end of the step."""
        due, self._due = self._due, None
        if due is not None:
            due()

    def _save_step(self, step: int) -> None:
        if not self.model.stop_training:  # otherwise the epoch ends here
            self._save(self._epoch, step)

    def _save_epoch(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        self._note_epoch(epoch, logs)
        # A death between here and the fit's end must not make it go on.
        self._is_finished = self._all is not None and self._is_early(epoch)
        self._save(epoch + 1, 0, finished=self._is_finished)
        self._pending = [counter.pending for counter in self._runtime.epoch_counters]

    def _note_epoch(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        for name, value in numbers(logs).items():
            self._history.setdefault(name, []).append(value)
        self._epochs.append(epoch)
        self._drawn, self._last = None, None
        self._step, self._at = 0, (epoch + 1, 0)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Record that this fit is over, if it ends before its last epoch."""
        del logs
        if self._resumed is not None:
            self._restore_history(self._resumed)
        elif self._epoch + 1 < int(self.params.get("epochs") or 0) and not self._is_finished:
            self._save(self._epoch + 1, 0, finished=True)
        self._writer.wait()
        self._data = self._all = self._memory = self._last = None
        if self._goes_on is not None:
            self._goes_on.saver = None
        incremental.at_sections(None)
        position.forget(self.model, self.flavour)

    def _is_early(self, epoch: int) -> bool:
        return bool(self.model.stop_training) and epoch + 1 < int(self.params.get("epochs") or 0)

    def _step_before(self, batch: int) -> int:
        before, self._step = self._step, batch + 1
        return before

    def _resume(self, there: Checkpoint) -> None:
        if there.flavour != self.flavour:
            raise InvalidArgument(
                f"the checkpoint is of a {there.flavour} model, but this is a {self.flavour} model."
            )
        there.refuse_other_files(self._runtime.pulled)
        building.build(self.model, self.flavour)
        state.build(self.model, self.flavour, there.built)
        state.restore(self.model, self.flavour, there, _groups(there))
        if self._memory is not None:
            arrays = there.arrays("callbacks")
            self._before = _Memories(there.callbacks, arrays, there.rates)
            if there.step:
                self._before = _Memories(there.before, arrays, there.rates)
                state.set_rates(self.model, self.flavour, there.rates)
            self._memory.restore(self._before.callbacks, arrays)
        counters = self._runtime.epoch_counters
        position.tell(counters, there.counters)
        self._history = {name: list(values) for name, values in there.history.items()}
        self._epochs, self._batches = list(there.epochs), there.batches
        self._step, self._epoch = there.step, there.epoch
        self._tell_history()
        epoch, step = there.epoch, there.step
        if there.finished:
            epoch, step = int(self.params["epochs"]), 0
        skip = 0
        if not any(batch for _, batch in there.counters):
            skip = position.batches_to_drop(self.model, self.flavour, step, there.batches)
        ready = functools.partial(state.set_random_states, there)
        start = position.FitStart(epoch, step, skip, there.dealt, ready)
        position.begin_at(self.model, self.flavour, start)
        _log.info("resuming at epoch %d, step %d", epoch, step)

    def _tell_history(self) -> None:
        """Report the epochs of earlier runs, which a new driver doesn't know."""
        if not self._runtime.is_chief:
            return
        fit, epochs = current_fit(self._runtime), self._epochs
        for at, epoch in enumerate(epochs):
            # For a metric that is missing in some epochs, only the order is known.
            logs = {
                name: values[at - (len(epochs) - len(values))]
                for name, values in self._history.items()
                if at >= len(epochs) - len(values)
            }
            self._runtime.epoch_end(epoch, logs, fit=fit, restored=True)

    def _restore_history(self, there: Checkpoint) -> None:
        if self._memory is not None and there.callbacks:  # among which it is
            return
        history = self.model.history
        history.history.update({name: list(values) for name, values in self._history.items()})
        history.epoch[:] = self._epochs

    def _save(
        self,
        epoch: int,
        step: int,
        *,
        finished: bool = False,
        at_section: bool = False,
    ) -> None:
        self._since = 0
        if self._fit < self._awaited or self._runtime.saves_sections != at_section:
            return
        with self._runtime.spent.saving():
            self._save_now(epoch, step, finished=finished, at_section=at_section)

    def _save_now(self, epoch: int, step: int, *, finished: bool, at_section: bool) -> None:
        is_asked = stays = False
        if not at_section:
            is_left = epoch < int(self.params.get("epochs") or 0) and not finished
            may_grow = is_left and not step and not any(at for _, at in self._positions(step))
            is_asked, stays = self._runtime.agreement.take_request(may_grow=may_grow)
        place = Place(self._fit, epoch, step)
        self._writer.wait()  # one at a time: each holds a copy of all variables
        self._runtime.mark(place)
        statistics.synchronise(self.model)
        entries = state.collect(self.model, self.flavour, metrics=step > 0)
        if not self._runtime.is_chief:
            if stays:
                self._runtime.rest()
            return
        now = self._remember()
        made = self._made(epoch, step, now, entries, finished=finished)
        if not step:
            self._before = now
        self._files.write(made, place, is_awaited=is_asked)
        if at_section:  # the stream's state is valid now, but not once the next section has started
            self._writer.wait()
        if stays:
            self._writer.wait()
            self._runtime.rest()

    def _made(
        self, epoch: int, step: int, now: _Memories, entries: list[Entry], *, finished: bool = False
    ) -> Checkpoint:
        return Checkpoint(
            flavour=self.flavour,
            fit=self._fit,
            epoch=epoch,
            step=step,
            finished=finished,
            batches=self._batches,
            counters=self._positions(step),
            pulled=dict(self._runtime.pulled),
            dealt=position.dealt(self._data) if step else None,
            history={name: list(values) for name, values in self._history.items()},
            epochs=list(self._epochs),
            is_optimizer_built=private_parts.is_optimizer_built(self.model.optimizer),
            built=[
                state.places(self.model, each) for each in state.others(self.model, self.flavour)
            ],
            callbacks=now.callbacks,
            before=self._before.callbacks if step else {},
            rates=self._before.rates if step else now.rates,
            entries=entries
            + [
                Entry("callbacks", name, array)
                for name, array in {**(self._before.arrays if step else {}), **now.arrays}.items()
            ],
        )

    # Other ranks ----------------------------------------------------------------------------------

    @property
    def may_be_interrupted(self) -> bool:
        """Whether `interrupted` knows the state after the step that has ended."""
        is_known = self._last is not None and self._last.is_whole
        return self._all is not None and is_known and not self._hides_its_end

    @property
    def _is_at_an_end(self) -> bool:
        """Whether the last step of an epoch is done."""
        steps = self.params.get("steps")
        return steps is not None and self._at[1] >= steps > 0

    @property
    def _hides_its_end(self) -> bool:
        """Whether it is, and the dataset's position doesn't show it."""
        has_own = self.flavour != "keras" or getattr(self._data, "steps_per_epoch", None)
        return self._is_at_an_end and bool(has_own)

    def interrupted(self) -> Checkpoint | None:
        """Return the state after the last complete step, of a fit that a lost rank has interrupted.

        None if this rank can't tell: callbacks have seen different things, or the model isn't
        built. Of metrics, it has this rank's part.
        """
        if self._all is None or self.is_telling or self._resumed is not None:
            return None
        due, self._due = self._due, None
        if due is not None and due.func == self._save_epoch:  # all callbacks have seen its end
            self._note_epoch(*due.args)
        epoch, step = self._at
        if self._hides_its_end:
            return None
        if self._is_at_an_end:  # the next pass over the data is that of the next epoch
            self._drawn = None
        elif self._drawn is None and epoch == self._epoch:  # its first batches may be read already
            self._drawn = self._drawn_from()
        last = self._last
        if last is None and epoch != self._epoch:  # between two epochs
            last = LastStep.of(self.model, self.flavour)
        if last is None or not last.is_whole:
            return None
        return self._made(epoch, step, self._remember(), last.entries())

    def repeat(self) -> None:
        """Take the next fit for the one that was interrupted."""
        repeat_from(self._runtime, self._fit)
        repeat_fit(self._runtime, self._number)
        private_parts.forget_evaluation(self.model)

    def _remember(self) -> _Memories:
        if self._memory is None:
            return _Memories()
        return _Memories(*self._memory.read(), state.rates(self.model, self.flavour))

    def _known(self) -> list[Any]:
        """Return what callbacks may refer to that a checkpoint has anyway."""
        others = state.others(self.model, self.flavour)
        with contextlib.suppress(ValueError):  # a model of tf_keras that isn't built
            groups = state.variables(self.model, self.flavour, metrics=True)
            others += [variable for group in groups.values() for variable in group]
        return [self.model, self.model.optimizer, *others]

    def _positions(self, step: int) -> list[tuple[int, int]]:
        counters = self._runtime.epoch_counters
        a_pass = position.steps_of_a_pass(self.model)
        if a_pass is not None:
            return self._positions_in(a_pass)
        drawn = self._drawn or [False] * len(counters)
        return [
            (counter.pending[0] - 1, step) if is_drawn else counter.pending
            for counter, is_drawn in zip(counters, drawn, strict=False)
        ]

    def _positions_in(self, a_pass: int) -> list[tuple[int, int]]:
        """Return the positions in data with this many batches per pass, whatever an epoch is.

        The datasets' own positions are ahead of this, because of prefetched batches.
        """
        done = self._batches - self._batches_before
        counters = self._runtime.epoch_counters
        places = []
        for counter, began in zip(counters, self._began, strict=False):
            passes, batch = divmod(began[1] + done, a_pass)
            is_drawn = counter.pending != began
            places.append((began[0] + passes, batch) if is_drawn else counter.pending)
        return places + [counter.pending for counter in counters[len(places) :]]
