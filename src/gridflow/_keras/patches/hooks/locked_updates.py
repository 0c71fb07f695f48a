"""Serialises updates of a variable on a parameter server.

An optimizer updates a variable in several operations: Adam reads and writes its two slots, and then
divides one by the other. They run on the parameter server, concurrently with those of other
workers' steps. Such a step may read one slot after its update and another before: a momentum
divided by a velocity that is still zero is in the millions, and the model is ruined. So each
variable has a mutex on its server, held from the first operation of an update to the last.

The mutex is taken when all inputs from elsewhere have arrived, the gradient above all. So nobody
waits for a worker while it is held, and a worker that dies in a step leaves no mutex locked. The
holder of a mutex doesn't wait for another one: two workers could deadlock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_resource_variable_ops as kernels

from gridflow._keras.patches.private_parts import part

if TYPE_CHECKING:
    from collections.abc import Callable

_MUTEX: Final = "_gridflow_mutex"
_ROUND: Final = "_gridflow_round"
_making = threading.Lock()


@dataclass
class _Round:
    """Updates in a graph, at most one of each variable."""

    #: What all of them wait for: the end of the previous round.
    after: list[Any]
    taken: set[int] = field(default_factory=set)
    ends: list[Any] = field(default_factory=list)


def lock_updates(strategy: Any) -> Any:
    """Make ``strategy.extended.update``, which all optimizers use, hold the variable's mutex."""
    extended = strategy.extended
    original = part(extended, "_update")

    def _update(
        var: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], group: Any
    ) -> Any:
        def locked(native: Any, *args: Any, **kwargs: Any) -> Any:
            return _holding(_mutex_of(native), lambda: fn(native, *args, **kwargs))

        return original(var, locked, args, kwargs, group)

    extended._update = _update
    return strategy


def _mutex_of(variable: Any) -> Any:
    """Return the handle of a variable's mutex, on the variable's device."""
    with _making:
        mutex = getattr(variable, _MUTEX, None)
        if mutex is None:
            name = f"gridflow_mutex_{ops.uid()}"
            with tf.init_scope(), tf.device(variable.device):
                mutex = kernels.mutex_v2(shared_name=name)
            setattr(variable, _MUTEX, mutex)
        return mutex


def _holding(mutex: Any, work: Callable[[], Any]) -> Any:
    """Do work, in a graph or eagerly, while a mutex is held."""
    if tf.executing_eagerly():
        lock = kernels.mutex_lock(mutex)
        result = work()
        kernels.consume_mutex_lock(lock)
        return result
    graph = ops.get_default_graph()
    together = _round_of(graph, mutex)
    lock = kernels.mutex_lock(mutex)
    before = len(graph.get_operations())
    with tf.control_dependencies([lock]):
        result = work()
    done = graph.get_operations()[before:]
    inside = {operation.name for operation in [*done, lock.op]}
    needed = {
        source.name: source
        for operation in done
        for source in [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
        if source.name not in inside
    }
    lock.op._add_control_inputs([*needed.values(), *together.after])
    with tf.control_dependencies(done), ops.colocate_with(mutex):
        end = kernels.consume_mutex_lock(lock)
    together.ends.append(end)
    # Functions order operations with side effects as in the program, so this one would wait for all
    # earlier updates.
    manager = part(graph, "experimental_acd_manager")
    if manager is not None:
        manager.run_independently(end)
    return result


def _round_of(graph: Any, mutex: Any) -> _Round:
    """Return the round of an update: a new one if its variable was already updated in this one.

    An optimizer with weight decay updates each variable twice, and a step may apply gradients
    twice. What an update reads, such as the step count, may wait for everything before it.
    """
    found = getattr(graph, _ROUND, None)
    if found is None or id(mutex) in found.taken:
        after = []
        if found is not None:
            with tf.control_dependencies(found.ends):
                after.append(tf.no_op())
        found = _Round(after)
        setattr(graph, _ROUND, found)
    found.taken.add(id(mutex))
    return found
