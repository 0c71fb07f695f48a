"""Updates of a variable on a parameter server, one after another.

An optimizer updates a variable by several operations: Adam reads and writes its two slots, and then
divides one by the other. They run on the parameter server, beside those of another worker's step.
That one may read a slot that is updated and another that isn't yet: a momentum divided by a
velocity that is still zero is millions, and the model is lost. So each variable has a mutex, held
from the first operation of its update to the last, on the server that holds it.

It is taken when all that comes from elsewhere is there, the gradient above all. So nobody waits for
a worker while it is held, and a worker that dies in a step leaves no mutex behind. Nor does who
holds one wait for another: two workers would wait for one another for ever.
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
    """Updates of a graph, of each variable one at most."""

    #: What all of them wait for: the ends of the round before.
    after: list[Any]
    taken: set[int] = field(default_factory=set)
    ends: list[Any] = field(default_factory=list)


def lock_updates(strategy: Any) -> Any:
    """Let ``strategy.extended.update``, which all optimizers use, hold the variable's mutex.

    Parameters
    ----------
    strategy : tf.distribute.ParameterServerStrategy

    Returns
    -------
    tf.distribute.ParameterServerStrategy
        The same.
    """
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
    """Return the handle of a variable's mutex, which lies where the variable does."""
    with _making:
        mutex = getattr(variable, _MUTEX, None)
        if mutex is None:
            name = f"gridflow_mutex_{ops.uid()}"
            with tf.init_scope(), tf.device(variable.device):
                mutex = kernels.mutex_v2(shared_name=name)
            setattr(variable, _MUTEX, mutex)
        return mutex


def _holding(mutex: Any, work: Callable[[], Any]) -> Any:
    """Do work, in a graph or at once, while a mutex is held."""
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
    # Functions let operations with effects wait for one another in the order of the program: this
    # one would wait for all updates before it.
    manager = part(graph, "experimental_acd_manager")
    if manager is not None:
        manager.run_independently(end)
    return result


def _round_of(graph: Any, mutex: Any) -> _Round:
    """Return the round that an update belongs to: another one where its variable has had its turn.

    An optimizer that decays weights updates each of them twice, and a step may apply gradients
    twice. What an update reads, such as the count of steps, may wait for all that came before.
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
