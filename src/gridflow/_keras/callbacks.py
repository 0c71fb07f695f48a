"""The callbacks of ``ctx.callbacks()``, and how to use other callbacks with them.

Keras callbacks that write files (ModelCheckpoint, BackupAndRestore, TensorBoard, CSVLogger) know
nothing of ranks. If all ranks train one model and use the same path, only the chief's callback
writes to it. Custom callbacks must be wrapped in `chief_only`, or get a different path on each rank
(``ctx.work_dir``). Callbacks that make decisions (EarlyStopping, ReduceLROnPlateau,
LearningRateScheduler, TerminateOnNaN) belong on all ranks, unwrapped: they see the same logs
everywhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras import kubeflow, own_callbacks
from gridflow._keras.neutral import NeutralCallback, numbers
from gridflow._keras.patches.hooks import incremental, position
from gridflow._keras.results import is_tensorflow
from gridflow._keras.resume.callback import CheckpointAndResume
from gridflow._keras.runtime import begin_fit, current, current_fit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._keras.runtime import Phase, Runtime

_log = logging.getLogger(__name__)

_REPORT_SECONDS: Final = 0.5


def build(
    runtime: Runtime,
    checkpoint: bool = True,
    tensorboard: bool | None = None,
    progress: bool = True,
) -> list[Any]:
    """Return gridflow's callbacks, in the order in which they must run.

    They work with models of Keras 3 and of tf_keras; which one it is is known when ``fit`` starts.

    `runtime`: The training process.
    `checkpoint`: Write checkpoints, and resume from the runtime's checkpoint.
    `tensorboard`: Write TensorBoard's event files, on the chief. Default: if the package is
        installed.
    `progress`: Report steps and logs to the driver, and to Kubeflow Trainer if it asks for them.
    """
    callbacks: list[Any] = [EpochResults(runtime)]
    if checkpoint:
        callbacks.append(CheckpointAndResume(runtime))
    may_be_chief = runtime.is_chief or runtime.chief_changes
    if tensorboard is not False and may_be_chief:
        if all(importlib.util.find_spec(name) for name in ("tensorboard", "tensorflow")):
            callbacks.append(_of_chief(runtime, TensorBoardOf(runtime)))
        elif tensorboard or runtime.training.tensorboard.copy_to is not None:
            _log.warning(
                "can't write event files for TensorBoard: pip install 'gridflow[tensorboard]'"
            )
    if progress:
        callbacks.append(ProgressReporter(runtime))
        if may_be_chief and os.environ.get(kubeflow.URL):
            callbacks.append(_of_chief(runtime, kubeflow.TrainerStatus()))
    return callbacks


def _of_chief(runtime: Runtime, callback: Any) -> Any:
    """Return a callback that does something on the chief only, whichever rank that is then."""
    if runtime.chief_changes:
        return own_callbacks.WhileChief(callback, lambda: runtime.is_chief)
    return callback if runtime.is_chief else NeutralCallback()


def chief_only(callback: Any) -> Any:
    """Return the callback on the chief, and one that does nothing on the other ranks.

    With ``num_workers=(2, 8)``, where a rank that is lost may be the chief, each rank returns one
    that does something while this rank is the chief.

    For callbacks that write files. Keras's own (ModelCheckpoint, TensorBoard, CSVLogger) needn't be
    wrapped if all ranks train one model: of several callbacks with the same path, only the chief's
    writes. Don't wrap callbacks that change the training, which must run on all ranks: if one of
    your own sets the learning rate or weights on the chief alone, it raises InvalidArgument. Nor
    ModelCheckpoint for a tf_keras model with BatchNormalization either: reading its statistics
    involves all ranks, so give each rank a different path.

    Parameters
    ----------
    callback
        A callback of either flavour of Keras.

    Raises
    ------
    InvalidArgument
        The callback is one of Keras's that change the training (EarlyStopping,
        LearningRateScheduler, ReduceLROnPlateau, SwapEMAWeights, TerminateOnNaN) or restore it
        (BackupAndRestore). Later, in ``fit``: it is one of your own, and has changed the learning
        rate or weights.
    GridflowError
        Outside a training process.
    """
    own_callbacks.refuse_on_chief_alone(callback)
    runtime = current()
    if runtime.trains_together and (runtime.is_chief or runtime.chief_changes):
        own_callbacks.watch_on_chief_alone(callback)
    return _of_chief(runtime, callback)


class EpochResults(NeutralCallback):
    """Hands the logs of each epoch to the runtime, on the chief.

    It does so immediately, because the process may die, and again before the next epoch if later
    callbacks have added their own metrics, as in Keras's History.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._fit = 0
        self._told: tuple[int, dict[str, float], Mapping[str, Any] | None] | None = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Remember the number of the fit."""
        del logs
        self._fit = begin_fit(self._runtime)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Complete the logs of the last epoch."""
        self._complete()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Hand the logs over."""
        if self._runtime.is_chief and not incremental.is_empty(self.model):
            self._told = epoch, numbers(logs), logs
            self._runtime.epoch_end(epoch, self._told[1], fit=self._fit)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Complete the logs of the last epoch."""
        self._complete()

    def _complete(self) -> None:
        if self._told is not None:
            (epoch, before, logs), self._told = self._told, None
            if repr(numbers(logs)) != repr(before):  # NaN is like NaN there
                self._runtime.epoch_end(epoch, numbers(logs), fit=self._fit)


class TensorBoardOf(NeutralCallback):
    """Keras's own TensorBoard callback, in the flavour of the model being trained."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._delegate: Any = None

    def set_model(self, model: Any) -> None:
        """Create the delegate for the model's flavour."""
        super().set_model(model)
        if not is_tensorflow(model):
            # Keras writes event files with TensorFlow, which would reserve the GPUs' memory.
            tensorflow = importlib.import_module("tensorflow")
            tensorflow.config.set_visible_devices([], "GPU")
        flavour = importlib.import_module(self.flavour)
        self._delegate = flavour.callbacks.TensorBoard(
            log_dir=str(self._runtime.tensorboard_dir), write_graph=False, update_freq="epoch"
        )
        self._delegate.set_params(self.params)
        self._delegate.set_model(model)

    def set_params(self, params: Mapping[str, Any] | None) -> None:
        """Pass the call on."""
        super().set_params(params)
        if self._delegate is not None:
            self._delegate.set_params(params)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Pass the call on."""
        self._delegate.on_train_begin(logs)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Pass the call on."""
        self._delegate.on_train_end(logs)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Pass the call on."""
        self._delegate.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Pass the call on."""
        if not incremental.is_empty(self.model):
            self._delegate.on_epoch_end(epoch, numbers(logs))

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Pass the call on."""
        self._delegate.on_test_begin(logs)

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Pass the call on."""
        self._delegate.on_test_end(logs)


class ProgressReporter(NeutralCallback):
    """Reports steps and logs, at most twice a second, and the end."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._training = False
        self._fit = self._epoch = self._step = self._rows = 0
        self._reported = 0.0
        self._rows_a_step = 0
        self._data: Any = None
        position.install_imported()

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Report at the first step."""
        del logs
        self._training, self._reported = True, 0.0
        self._fit = current_fit(self._runtime)
        # Read it now, because a validation has its own data.
        self._data = position.data_of(self.model)
        self._rows_a_step = self._runtime.spent.rows_a_step = self._rows_of_a_step()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Count the epoch's steps from its start."""
        del logs
        self._epoch, self._step = epoch, -1

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report, if it is due."""
        steps = batch - self._step if self._step >= 0 else 1
        self._step = batch
        self._rows += steps * self._rows_a_step
        self._report("train", batch + 1, logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report the epoch's last step."""
        del epoch
        self._report("train", self._step + 1, logs, now=True)

    def on_test_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report a sign of life."""
        self._report("test", batch + 1, logs)

    def on_predict_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report a sign of life, without the outputs."""
        del logs
        self._report("predict", batch + 1, None)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Report that no step is expected."""
        self._training, self._data = False, None
        self._report("idle", self._step + 1, logs, now=True)

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Report that no step is expected, unless this was a validation."""
        if not self._training:
            self._report("idle", 0, logs, now=True)

    def on_predict_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Report that no step is expected."""
        del logs
        if not self._training:
            self._report("idle", 0, None, now=True)

    def _report(
        self, phase: Phase, step: int, logs: Mapping[str, Any] | None, *, now: bool = False
    ) -> None:
        clock = time.monotonic()
        if not now and clock - self._reported < _REPORT_SECONDS:
            return
        self._reported = clock
        steps = self.params.get("steps") or incremental.known_steps(self._data)
        self._runtime.progress(
            epoch=self._epoch,
            step=step,
            steps_per_epoch=steps if phase == "train" else None,
            phase=phase,
            rows=self._rows,
            # Converting tensors to numbers waits for the step, so it is done only here.
            logs=numbers(logs),
            fit=self._fit,
        )
        self._rows = 0

    def _rows_of_a_step(self) -> int:
        """Return this rank's rows in a step, or 0 if unknown."""
        if not is_tensorflow(self.model):  # then each rank has its own data
            return position.batch_size(self.model) or 0
        rows = position.first_dimension(position.element_spec(self.model, self.flavour))
        replicas: int = self.model.distribute_strategy.num_replicas_in_sync
        if rows is not None:
            return rows * max(1, replicas // self._runtime.num_workers)
        # Data that isn't distributed yet is split among the workers.
        whole = position.batch_size(self.model) or 0
        return whole // min(replicas, self._runtime.num_workers)
