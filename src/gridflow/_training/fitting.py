"""Training and evaluation that gridflow drives itself: ``ctx.fit``, ``ctx.evaluate`` and more."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gridflow._keras import runtime as _runtime
from gridflow._wire.reports import Evaluated
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from gridflow._training.runtime import TaskRuntime


class Fitting:
    """The part of a `TrainingContext` for strategies that ``model.fit`` alone can't serve."""

    callbacks: Any
    dataset: Any
    _runtime: TaskRuntime

    @property
    def coordinator(self) -> Any:
        """The ``ClusterCoordinator`` of ``parameter_server``, for training loops of your own.

        Raises
        ------
        GridflowError
            Under another strategy, or not on the chief.
        """
        return self._runtime.mode.coordinator

    def fit(
        self,
        model: Any,
        data: Any = "train",
        *,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        validation: Any = None,
        validation_steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        verbose: int = 0,
        initial_epoch: int = 0,
        class_weight: Mapping[int, float] | None = None,
        **columns: Any,
    ) -> Any:
        """Train a model of Keras 3 or tf_keras under ``parameter_server``, as ``fit`` would.

        Under JAX and torch the same call is ``model.fit``, which works there, too.

        Parameters
        ----------
        model
            Made and compiled in ``ctx.strategy.scope()``.
        data : str, WorkerDataset, tf.data.Dataset or callable, default "train"
            What ``ctx.dataset`` returns; or a dataset's name, with the arguments of
            ``ctx.dataset`` as `columns`; or a ``tf.data.Dataset`` of batches, or a function without
            arguments that returns one, made of operations alone: it runs inside the workers'
            servers, where no Python lives. Or what ``ctx.stream`` returns, in one epoch.
        epochs : int, default 1
        steps_per_epoch : int, optional
            Steps of all workers together, who draw their rows without end. Default: each row of
            ``run(data=…)`` is trained on once; needed with other data.
        validation : optional
            Like `data`; rows of ``run(data=…)`` are tested once each.
        validation_steps : int, optional
            Needed with other data than rows of ``run(data=…)``.
        callbacks : sequence, optional
            Keras callbacks. Default: ``ctx.callbacks()``.
        verbose : int, default 0
            As for Keras; the progress bar of the driver is there in any case.
        initial_epoch : int, default 0
            The epoch to begin with, as for Keras; a checkpoint that is resumed goes before it.
        class_weight : mapping of int to float, optional
            How much a row counts in training, by the class that is its label. Classes are
            numbered from 0 on.
        **columns
            Arguments of ``ctx.dataset``, where a name is given: ``batch_size``, ``features``,
            ``label``, ``sample_weight``, ``shuffle``, ``seed``.

        Returns
        -------
        History
            Of the model's flavour of Keras.

        Raises
        ------
        GridflowError
            Under another strategy: ``model.fit`` works there.
        InvalidArgument
            The model or the data can't be used so.
        """
        from gridflow._keras.patches.hooks import fits

        if callbacks is None:
            callbacks = self.callbacks()
        trainer = self._runtime.mode.trainer(model)
        # Everywhere else it is Keras's own, which is counted itself.
        hands_out = self._runtime.facts.hands_out_steps
        with fits.counting(self._runtime) if hands_out else contextlib.nullcontext():
            return trainer.fit(
                self._named(data, columns),
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation=self._named(validation, columns),
                validation_steps=validation_steps,
                callbacks=callbacks,
                verbose=verbose,
                initial_epoch=initial_epoch,
                class_weight=class_weight,
            )

    def alone(self) -> AbstractContextManager[None]:
        """Let this process train models by itself in a block, beside the group's.

        Where several processes or devices train one model, ``fit`` and ``train_on_batch`` refuse a
        model that was made outside of ``ctx.strategy.scope()``: each process would train its own.
        In this block they don't.

        Examples
        --------
        >>> with ctx.alone():
        ...     baseline.fit(x, y)
        """
        return _runtime.alone()

    def evaluate(
        self,
        model: Any,
        data: Any = "validation",
        *,
        steps: int | None = None,
        **columns: Any,
    ) -> dict[str, float]:
        """Return loss and metrics of a model under ``parameter_server``, found by the workers.

        Parameters are those of `fit`. Rows of ``run(data=…)`` are tested once each. Under JAX and
        torch the same call is ``model.evaluate``.
        """
        from gridflow._keras.patches.hooks import fits

        trainer = self._runtime.mode.trainer(model)
        with fits.counting(self._runtime):
            return trainer.evaluate(self._named(data, columns), steps=steps)

    def evaluate_checkpoints(
        self, model: Any, data: Any, *, steps: int | None = None
    ) -> list[dict[str, float]]:
        """Evaluate each new checkpoint of the running training; what an evaluator does.

        Returns when the training has ended and its last checkpoint was evaluated. Checkpoints that
        come while another one is being evaluated are skipped, but for the newest. The results go
        to ``result.evaluation`` and, as scalars ``evaluation_<name>``, to TensorBoard.

        Parameters
        ----------
        model
            The same model as in training, compiled; made under ``ctx.strategy.scope()`` or not.
        data
            What ``model.evaluate`` takes; it is read once for each checkpoint. The rows of
            ``run(data=…)`` don't come to an evaluator.
        steps : int, optional
            Batches for each evaluation. Default: all.

        Returns
        -------
        list of dict
            ``epoch``, ``step``, loss and metrics of each evaluation.

        Raises
        ------
        GridflowError
            On a task that is no evaluator.
        """
        runtime = self._runtime
        if not runtime.is_evaluator:
            raise GridflowError(
                f"evaluate_checkpoints() is for the evaluator; this is {runtime.task}. Branch on "
                "ctx.is_evaluator."
            )
        from gridflow._keras import evaluation

        return evaluation.follow(
            model,
            data,
            steps=steps,
            inbox=runtime.inbox,
            tensorboard_dir=runtime.tensorboard_dir,
            report=lambda place, logs: runtime.channel.send(Evaluated(place, logs)),
        )

    def _named(self, data: Any, columns: Mapping[str, Any]) -> Any:
        return self.dataset(data, **columns) if isinstance(data, str) else data
