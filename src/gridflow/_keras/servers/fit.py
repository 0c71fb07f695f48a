"""``fit`` under ParameterServerStrategy, for both flavours of Keras.

Keras 3 has none, and that of tf_keras has no step callbacks. A ClusterCoordinator schedules the
steps of an epoch, a few more than there are workers. When a step completes, metrics are added up
and callbacks called. Rows of ``run(data=…)`` are used once each (`pulled`), pushed rows are
distributed by the chief (`pushed`). For other data, another worker repeats the step of a worker
that died.

Checkpoints are made when no step is in progress, so that they contain exactly what was done.
"""

from __future__ import annotations

import functools
import importlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.neutral import numbers
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import position
from gridflow._keras.results import flavour_of
from gridflow._keras.resume import building
from gridflow._keras.servers.data import WorkerDataset
from gridflow._keras.servers.pulled import Puller
from gridflow._keras.servers.pushed import Dealer, PushedRows
from gridflow._keras.servers.steps import fetch, make_steps, updates
from gridflow._spec.option_checks import whole_number
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gridflow._keras.servers.steps import Steps

#: Steps scheduled per worker before the first result is collected.
_AHEAD: Final = 3


class ServerTrainer:
    """Trains one model with a ClusterCoordinator.

    `num_workers`: Number of workers.
    `model`: A compiled model of either flavour, made in the strategy's scope.
    `checkpoint_every`: Steps after which to wait for the workers and make a checkpoint.
    """

    def __init__(
        self, coordinator: Any, num_workers: int, model: Any, checkpoint_every: int | None = None
    ) -> None:
        self._coordinator, self._model = coordinator, model
        self._flavour = flavour_of(model) or "keras"
        self._most = _AHEAD * num_workers
        self._checkpoint_every = checkpoint_every
        if model.distribute_strategy is not coordinator.strategy or model.optimizer is None:
            raise InvalidArgument(
                "ctx.fit needs a model that was created and compiled under the parameter servers' "
                "strategy: with ctx.strategy.scope(): model = …; model.compile(…)."
            )

    def fit(
        self,
        data: Data | PushedRows,
        *,
        epochs: int,
        steps_per_epoch: int | None,
        validation: Data | None,
        validation_steps: int | None,
        callbacks: Sequence[Any],
        verbose: int,
        initial_epoch: int = 0,
        class_weight: Mapping[int, float] | None = None,
    ) -> Any:
        """See `TrainingContext.fit`.

        Returns: Of the model's flavour.
        """
        model = self._model
        whole_number("epochs", epochs, 1)
        whole_number("initial_epoch", initial_epoch, 0)
        steps: int | None = None
        if isinstance(data, PushedRows):
            _check_pass(epochs, steps_per_epoch)
        else:
            check(data)
            steps = _steps(data, steps_per_epoch, "steps_per_epoch")
        if validation is not None:
            check(validation)
            if not isinstance(validation, WorkerDataset):
                _steps(validation, validation_steps, "validation_steps")
        seen = given(data)
        held = position.Held(seen.spec)
        position.hold(model, held)
        self._build(seen.spec)
        made = make_steps(model, self._flavour, self._coordinator.strategy, class_weight)
        by_row = steps_per_epoch is None
        train = self._trainer_of(data, seen.source, made, steps, held, by_row=by_row)
        flavour = importlib.import_module(self._flavour)
        every = flavour.callbacks.CallbackList(
            list(callbacks),
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )
        model.stop_training = False
        logs: dict[str, float] = {}
        every.on_train_begin()
        begin = position.where_to_begin(model, self._flavour)
        if begin.epoch < initial_epoch:  # nothing to resume
            begin = position.FitStart(initial_epoch, 0)
        for epoch in range(begin.epoch, epochs):
            every.on_epoch_begin(epoch)
            logs = train(begin if epoch == begin.epoch else position.FitStart(epoch, 0), every)
            if validation is not None:
                found = self._test(made, validation, validation_steps, every)
                logs = {**logs, **{f"val_{name}": value for name, value in found.items()}}
            every.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        every.on_train_end(logs)
        return model.history

    def evaluate(self, data: Data, *, steps: int | None) -> dict[str, float]:
        """See `TrainingContext.evaluate`."""
        check(data)
        if not isinstance(data, WorkerDataset):
            _steps(data, steps, "steps")
        self._build(given(data).spec)
        made = make_steps(self._model, self._flavour, self._coordinator.strategy)
        flavour = importlib.import_module(self._flavour)
        every = flavour.callbacks.CallbackList([], model=self._model)
        return self._test(made, data, steps, every)

    # ---------------------------------------------------------------------------------------------

    def _build(self, spec: Any) -> None:
        with self._coordinator.strategy.scope():
            if self._flavour == "keras":
                building.build_sharded(self._model, spec)
            building.build_for(self._model, self._flavour, spec)

    def _trainer_of(
        self,
        data: Data | PushedRows,
        source: Any,
        made: Steps,
        steps: int | None,
        held: position.Held,
        *,
        by_row: bool,
    ) -> Callable[[position.FitStart, Any], dict[str, float]]:
        """Return a function that runs the steps of an epoch and calls callbacks."""
        if isinstance(data, PushedRows):
            return functools.partial(self._train_on_pushed, made, data)
        if by_row and isinstance(data, WorkerDataset):
            puller = Puller(self._coordinator, data, made.train_step, made.nothing, self._most)
            return functools.partial(self._train_on_each, made, data, puller, held)
        iterator = iter(self._coordinator.create_per_worker_dataset(source))
        assert steps is not None
        return functools.partial(self._train_epoch, made, iterator, steps)

    def _train_on_pushed(
        self, made: Steps, rows: PushedRows, start: position.FitStart, every: Any
    ) -> dict[str, float]:
        made.reset()
        deal = Dealer(self._coordinator, self._model, rows, made, every)
        deal.train(start.step, self._most, self._checkpoint_every)
        return numbers(made.logs(final=True))

    def _train_on_each(
        self,
        made: Steps,
        data: WorkerDataset,
        puller: Puller,
        held: position.Held,
        start: position.FitStart,
        every: Any,
    ) -> dict[str, float]:
        made.reset()
        account = data.account(start.dealt)
        held.dealt = lambda: account.state
        before, step = updates(self._model), start.step

        def room() -> int:  # so that no step is in progress when a checkpoint is made
            return self._next_checkpoint(step) - step

        every.on_train_batch_begin(step)
        for found in puller.results(account, start.epoch, room):
            made.add(found)
            every.on_train_batch_end(step, made.logs())
            step += 1
            if self._model.stop_training:
                break
            if not account.is_done:
                every.on_train_batch_begin(step)
        for found in puller.drain(account):  # if training is stopped
            made.add(found)
        data.tell(account, start.epoch, updates(self._model) - before)
        return numbers(made.logs(final=True))

    def _train_epoch(
        self, made: Steps, iterator: Any, end: int, start: position.FitStart, every: Any
    ) -> dict[str, float]:
        made.reset()
        under_way: deque[Any] = deque()
        handed_out = done = start.step
        while done < end and not self._model.stop_training:
            until = min(end, self._next_checkpoint(done))
            while handed_out < until and len(under_way) < self._most:
                every.on_train_batch_begin(handed_out)
                under_way.append(self._coordinator.schedule(made.train, args=(iterator,)))
                handed_out += 1
            found = fetch(under_way.popleft())
            if found is not None:
                made.add(found)
            every.on_train_batch_end(done, made.logs())
            done += 1
        self._coordinator.join()  # steps in progress when training is stopped
        for found in map(fetch, under_way):
            if found is not None:
                made.add(found)
        return numbers(made.logs(final=True))

    def _next_checkpoint(self, done: int) -> int:
        every = self._checkpoint_every
        return done + (every - done % every if every else self._most + 1)

    def _test(self, made: Steps, data: Data, steps: int | None, every: Any) -> dict[str, float]:
        """Evaluate each row once if the rows are known, else a number of steps."""
        made.reset()
        every.on_test_begin()
        for step, found in enumerate(self._tested(made, data, steps)):
            every.on_test_batch_begin(step)
            if found is not None:
                made.add(found)
            every.on_test_batch_end(step, made.logs())
        logs = numbers(made.logs(final=True))
        every.on_test_end(logs)
        return logs

    def _tested(self, made: Steps, data: Data, steps: int | None) -> Iterator[Any]:
        """Yield the result of each step, or None if it is lost."""
        if isinstance(data, WorkerDataset) and steps is None:
            data = replace(data, shuffle=False)
            puller = Puller(self._coordinator, data, made.test_step, made.nothing, self._most)
            yield from puller.results(data.account())
            return
        iterator = iter(self._coordinator.create_per_worker_dataset(given(data).source))
        under_way: deque[Any] = deque()
        for handed_out in range(steps or 0):
            under_way.append(self._coordinator.schedule(made.test, args=(iterator,)))
            if handed_out + 1 >= self._most:
                yield fetch(under_way.popleft())
        while under_way:
            yield fetch(under_way.popleft())


def _check_pass(epochs: int, steps_per_epoch: int | None) -> None:
    if epochs != 1 or steps_per_epoch is not None:
        raise InvalidArgument(
            "rows of ctx.stream() come once, and their number isn't known: with "
            "strategy='parameter_server' ctx.fit takes all of them in one epoch, without "
            f"steps_per_epoch; got epochs={epochs}, steps_per_epoch={steps_per_epoch}. To train on "
            "them several times, send them again with feed(epochs=…)."
        )


def _steps(data: Data, steps: int | None, what: str) -> int:
    if steps is not None:
        return whole_number(what, steps, 1)
    if isinstance(data, WorkerDataset):
        return data.steps
    raise InvalidArgument(
        f"{what} is required for custom datasets: workers read them in an endless loop, each at "
        "its own pace. It isn't needed for rows passed to run(data=…), whose number is known."
    )


# Converts the data of ``ctx.fit`` to a form that the workers' servers can read.

#: Forms of a dataset: rows of ``run(data=…)``, a function that returns batches, or a
#: ``tf.data.Dataset``.
Data = WorkerDataset | Callable[[], Any] | Any


@dataclass(frozen=True)
class Given:
    """Checked data.

    `spec`: The spec of the batches.
    `source`: For ``ClusterCoordinator.create_per_worker_dataset``.
    """

    spec: Any
    source: Any


def given(data: Data | PushedRows) -> Given:
    """Check data without running their pipeline here.

    Raises `InvalidArgument`: The data can't be sent to the workers.
    """
    import tensorflow as tf

    if isinstance(data, PushedRows):
        return Given(data.spec, None)
    if isinstance(data, WorkerDataset):
        with tf.Graph().as_default():
            return Given(data().element_spec, data)
    if isinstance(data, tf.data.Dataset):
        return _made_here(data)
    return _traced(data) or _made_here(data())


def check(data: Any) -> None:
    """Reject data that several workers can't use.

    Raises `InvalidArgument`: The message says what is allowed.
    """
    import tensorflow as tf

    if isinstance(data, PushedRows):
        raise InvalidArgument(
            "rows of ctx.stream() come once and are only for training: the model can't be "
            "evaluated on them. Use rows of run(data=…), or a function that returns a "
            "tf.data.Dataset."
        )
    if not callable(data) and not isinstance(data, tf.data.Dataset):
        raise InvalidArgument(
            "data must be a dataset's name, the result of ctx.dataset(), a tf.data.Dataset, or a "
            f"function that returns one; got {type(data).__name__}, which can't be sent to the "
            "workers."
        )


def _traced(function: Callable[[], Any]) -> Given | None:
    """Trace a function so that it runs in the workers; return None if it must run here.

    It must run here if it uses tensor values, or returns an existing dataset.
    """
    import tensorflow as tf

    def endless() -> Any:
        return _checked(function()).repeat()

    try:
        traced = tf.function(endless).get_concrete_function()
    except InvalidArgument:
        raise
    except Exception:  # noqa: BLE001 (what is wrong with it is said when it runs here)
        return None
    if any(tensor.dtype == tf.variant for tensor in traced.captured_inputs):
        return None
    _refuse_python(traced.graph.as_graph_def())
    return Given(traced.structured_outputs.element_spec, traced)


def _made_here(dataset: Any) -> Given:
    """Use a dataset created here; its pipeline runs in the workers."""
    endless = _checked(dataset).repeat()
    _refuse_python(private_parts.graph_of(endless))
    return Given(endless.element_spec, endless)


def _checked(dataset: Any) -> Any:
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidArgument(
            "a function passed as data must return a tf.data.Dataset of batches; this one "
            f"returned {type(dataset).__name__}."
        )
    return dataset


def _refuse_python(graph: Any) -> None:
    found = private_parts.python_functions(graph)
    if found:
        raise InvalidArgument(
            f"the dataset calls Python ({', '.join(found)}), which the workers' servers can't run "
            "with strategy='parameter_server'. Pass rows with run(data=…), or read files with "
            "tf.data's own operations."
        )
