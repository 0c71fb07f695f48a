"""The ``tf.distribute.Strategy`` of a group: one replica in each process.

Variables are TensorFlow's plain ones and a step is a plain call, so conditions, loops and
optimizers work as they do in one process. See `gridflow._keras.group.steps` for what steps compute.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from gridflow._collectives.errors import PeerGone
from gridflow._keras.group import data, steps, variables
from gridflow._keras.patches.bugs import shares
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow._keras.group.collective import CollectiveExchange
    from gridflow._keras.group.exchange import GroupExchange

_MEAN: Final = tf.distribute.ReduceOp.MEAN
_CPU: Final = "/device:CPU:0"


class GroupStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """Synchronous training on several processes, of which each is one replica.

    It is a ``MultiWorkerMirroredStrategy`` to programs that ask, and shares nothing with it.
    """

    def __init__(self, cluster_resolver: Any = None, communication_options: Any = None) -> None:
        """Do nothing: Python calls this when a program makes TensorFlow's (see `programs`)."""
        del cluster_resolver, communication_options

    @classmethod
    def of(
        cls, exchange: GroupExchange | CollectiveExchange, resolver: Any = None
    ) -> GroupStrategy:
        """Return the strategy of a group.

        `resolver`: Tells programs which task this is.
        """
        self = object.__new__(cls)
        tf.distribute.Strategy.__init__(self, Extended(self, exchange, resolver))
        return self

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Run a function on this rank, on its part of the data."""
        model = steps.model_of(fn)
        if model is not None and args and not steps.scales_itself(model):
            fn = functools.partial(self.extended.step_of_keras, fn, model)
        return super().run(fn, args, kwargs, options)


class Replica(distribute_lib.ReplicaContext):  # type: ignore[misc]
    """The only replica of this process."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this rank."""
        found: tuple[str, ...] = self._strategy.extended.worker_devices
        return found

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Reduce values over all ranks."""
        extended = self._strategy.extended
        step = extended.step
        reduce = functools.partial(super().all_reduce, options=options)
        is_sparse = any(isinstance(each, tf.IndexedSlices) for each in tf.nest.flatten(value))
        if step is None or extended.has_summed or is_sparse:
            return reduce(reduce_op, value)
        return steps.reduced_by_rows(reduce, reduce_op, value, step)


class Extended(distribute_lib.StrategyExtendedV1):  # type: ignore[misc]
    """What TensorFlow asks of a strategy."""

    def __init__(
        self, strategy: GroupStrategy, exchange: GroupExchange | CollectiveExchange, resolver: Any
    ) -> None:
        super().__init__(strategy)
        gpus = tf.config.list_logical_devices("GPU")
        self._device = "/device:GPU:0" if gpus else _CPU
        self.exchange, self._local = exchange, threading.local()
        self._counts_members = False
        if resolver is not None:
            self._cluster_resolver = resolver

    # Steps ----------------------------------------------------------------------------------------

    @property
    def step(self) -> steps.Step | None:
        """The step of a Keras model that this thread runs."""
        return getattr(self._local, "step", None)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.exchange.size

    @property
    def averages(self) -> bool:
        """Whether gradients are means over the rows of all ranks, and not sums."""
        return self.step is not None

    @property
    def has_summed(self) -> bool:
        """Whether the gradients that an optimizer has are those of all ranks."""
        return getattr(self._local, "has_summed", False)

    @contextlib.contextmanager
    def _knowing(self, **facts: Any) -> Iterator[None]:
        before = {name: getattr(self._local, name, None) for name in facts}
        vars(self._local).update(facts)
        try:
            yield
        finally:
            vars(self._local).update(before)

    def step_of_keras(self, fn: Callable[..., Any], model: Any, batch: Any, *args: Any) -> Any:
        """Run the step of a Keras model on this rank's part of a batch."""
        part = None if self.exchange.size == 1 else steps.part_of(batch, self.exchange)
        if part is None:
            return fn(batch, *args)
        with self._knowing(step=steps.Step(part.rows)), shares.of(part):
            if steps.is_compiled(fn, model):
                return in_two_parts(self, fn, model, batch, part.rows)
            return fn(batch, *args)

    def mean_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients of the whole batch: means in a Keras model's step, else sums."""
        step = self.step
        if step is not None:
            return self.exchange.mean(grads, step.rows)
        there = [place for place, each in enumerate(grads) if each is not None]
        found = list(grads)
        sums = self.exchange.sums([grads[place] for place in there])
        for place, total in zip(there, sums, strict=True):
            found[place] = total
        return found

    def after_sum(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which an optimizer's gradients are those of all ranks."""
        return self._knowing(has_summed=True)

    def reduced(self, is_mean: bool, values: Sequence[Any]) -> list[Any]:
        """Return sums or means over all ranks."""
        return (
            list(values) if self.exchange.size == 1 else self.exchange.sums(values, means=is_mean)
        )

    def is_across(self) -> bool:
        """Return whether code runs outside of steps, where variables are those of all ranks."""
        replica = tf.distribute.get_replica_context()
        return replica is None or replica.strategy.extended is not self

    def reduces_assignments(self) -> bool:
        """Return whether what a variable is assigned is this rank's part: in a loop's step."""
        is_update = distribute_lib.get_update_replica_id() is not None
        return self.step is None and not is_update and not self.is_across()

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        replica = Replica(self._container_strategy(), self.exchange.rank)
        with tf.device(self._device), replica:
            return fn(*args, **(kwargs or {}))

    def _use_merge_call(self) -> bool:
        return False

    # Variables ------------------------------------------------------------------------------------

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        kwargs.pop("colocate_with", None)  # all are on one device
        kwargs["initial_value"] = self._of_chief(kwargs["initial_value"], kwargs.get("dtype"))
        with tf.device(self._device):
            variable = next_creator(**kwargs)
        kinds = kwargs.get("synchronization"), kwargs.get("aggregation")
        return variables.adopt(variable, self, *kinds)

    def _of_chief(self, value: Any, dtype: Any) -> Any:
        """Return the first value of a variable, which is the chief's."""
        if value is None or self.exchange.size == 1 or self.exchange.is_joining:
            return value
        with tf.init_scope():
            if not tf.executing_eagerly():
                return value
            mine = value() if callable(value) else value
            if tf.is_tensor(mine) and not hasattr(mine, "numpy"):
                return value  # a tensor of the graph that is being traced
            mine = tf.convert_to_tensor(mine, dtype)
            if mine.dtype in {tf.string, tf.resource, tf.variant}:
                return mine
            try:
                found = self.exchange.of_chief(mine.numpy())
            except PeerGone:
                if not self.exchange.may_join_later:
                    raise
                self.exchange.is_joining = True  # a fit gives all ranks the same values
                found = mine.numpy()
        # Not a tensor from outside of the function that may be traced here: it couldn't be lifted.
        return functools.partial(tf.constant, found, mine.dtype) if callable(value) else found

    def variable_created_in_scope(self, v: Any) -> bool:
        """Return whether a variable is this strategy's."""
        return variables.is_adopted(v, self)

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        del colocate_with_variable

    def _replica_ctx_update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        return self._update(var, fn, args, kwargs, group)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        del colocate_with
        with tf.device(self._device), distribute_lib.UpdateContext(self._device):
            result = fn(*args, **(kwargs or {}))
        return result if group else tf.nest.map_structure(self._local_results, result)

    def read_var(self, v: Any) -> Any:
        """Return the value of a variable."""
        return tf.identity(v)

    # Values ---------------------------------------------------------------------------------------

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        return self._batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def _batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        del options
        return self.reduced(reduce_op == _MEAN, [value for value, _ in value_destination_pairs])

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del options
        if self.has_summed:
            return value
        found = self.reduced(reduce_op == _MEAN, tf.nest.flatten(value))
        return tf.nest.pack_sequence_as(value, found)

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        del destinations, options
        return self.exchange.concatenated(value, axis)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        del destinations
        return tensor

    def _local_results(self, val: Any) -> tuple[Any]:
        return (val,)

    def value_container(self, value: Any) -> Any:
        return value

    # Data -----------------------------------------------------------------------------------------

    def _input_context(self) -> Any:
        size = self.exchange.size
        return tf.distribute.InputContext(size, self.exchange.rank, size)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if self.exchange.size == 1 or data.is_part(dataset):
            return dataset
        strategy = self._container_strategy()
        context = self._input_context()
        return data.distributed(dataset, strategy, self._device, context, options, self.exchange)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        del options
        return data.from_function(dataset_fn, self._input_context(), self.exchange)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        return value_fn(distribute_lib.ValueContext(self.exchange.rank, self.exchange.size))

    # Facts ----------------------------------------------------------------------------------------

    def _in_multi_worker_mode(self) -> bool:
        return False  # Keras's own branches for several workers are for TensorFlow's strategy

    @property
    def _num_replicas_in_sync(self) -> int:
        if self.step is not None:
            return 1
        return self.exchange.members if self._counts_members else self.exchange.size

    @contextlib.contextmanager
    def counting_members(self) -> Iterator[None]:
        """Count as replicas, in a block, only the ranks that take part now."""
        self._counts_members = True
        try:
            yield
        finally:
            self._counts_members = False

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of this rank."""
        return (self._device,)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device of this rank."""
        return (self._device,)

    def non_slot_devices(self, var_list: Any) -> tuple[str, ...]:
        """Return the device of this rank."""
        del var_list
        return (self._device,)

    @property
    def experimental_should_init(self) -> bool:
        """Whether this rank initializes its variables: each does."""
        return True

    @property
    def experimental_between_graph(self) -> bool:
        """Whether ranks have graphs of their own, in which they see one replica: no."""
        return False

    @property
    def should_checkpoint(self) -> bool:
        """Whether this rank writes checkpoints."""
        return self.exchange.rank == 0

    should_save_summary = should_checkpoint

    @property
    def _global_batch_size(self) -> bool:
        return True

    @property
    def _support_per_replica_values(self) -> bool:
        return False

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        del replica_id_in_sync_group
        return 0


def current() -> Extended | None:
    """Return the extended strategy in a step of a group of several ranks, else None."""
    replica = tf.distribute.get_replica_context()
    if replica is None or not isinstance(replica.strategy, GroupStrategy):
        return None
    found: Extended = replica.strategy.extended
    return found if found.exchange.size > 1 else None


# A training step that XLA compiles on both sides of the exchange.
#
# XLA can't compile a Python function, which the exchange is. So the step is compiled in two parts:
# up to the gradients, and from their means on.


def in_two_parts(extended: Any, step: Callable[..., Any], model: Any, batch: Any, rows: Any) -> Any:
    """Make the training step of a Keras model, and return its logs.

    `extended`: Of the group's strategy, `gridflow._keras.group.strategy`.
    `step`: The model's own, which takes a batch and applies gradients once, at its end.
    `model`: Built, with its optimizer.
    `rows`: How many this rank has in it.
    """
    optimizer = model.optimizer

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def gradients(batch: Any) -> Any:
        asked: list[list[Any]] = []

        def note(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            del trainable_variables
            asked.append(list(grads))

        vars(optimizer)["apply"] = note  # bypasses Keras's __setattr__
        try:
            with extended.exchange.compiling():
                logs = step(batch)
        finally:
            del vars(optimizer)["apply"]
        if len(asked) != 1:
            raise InvalidArgument(
                f"jit_compile=True is for steps that apply gradients once, and {type(model)} does "
                f"it {len(asked)} times. Leave jit_compile out."
            )
        return logs, asked[0]

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def update(grads: Sequence[Any]) -> None:
        with extended.after_sum():
            optimizer.apply(grads, model.trainable_variables)

    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    logs, grads = gradients(batch)
    update(extended.exchange.mean(grads, rows))
    return logs
