"""What ``ctx.fit`` is given as data, in a form in which the workers' servers can read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.patches import private_parts
from gridflow._keras.servers.data import WorkerDataset
from gridflow._keras.servers.pushed import PushedRows
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Operations that call Python functions, of which a worker's server knows none.
_PYTHON: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})

#: What a dataset is given as: rows of ``run(data=…)``, a function that returns batches, or a
#: ``tf.data.Dataset``.
Data = WorkerDataset | Callable[[], Any] | Any


@dataclass(frozen=True)
class Given:
    """Data that were looked at.

    Attributes
    ----------
    spec
        What the batches look like.
    source
        What ``ClusterCoordinator.create_per_worker_dataset`` takes.
    """

    spec: Any
    source: Any


def given(data: Data | PushedRows) -> Given:
    """Look at data, without running anything of their pipeline here.

    Raises
    ------
    InvalidArgument
        They can't reach the workers.
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
    """Refuse what isn't data for several workers.

    Raises
    ------
    InvalidArgument
        With what can be given.
    """
    import tensorflow as tf

    if isinstance(data, PushedRows):
        raise InvalidArgument(
            "rows of ctx.stream() come once, to be trained on: they can't be tested on. Give "
            "rows of run(data=…), or a function that returns a tf.data.Dataset."
        )
    if not callable(data) and not isinstance(data, tf.data.Dataset):
        raise InvalidArgument(
            "data is a dataset's name, what ctx.dataset() returns, a tf.data.Dataset, or a "
            f"function that returns one; got {type(data).__name__}, which can't reach the workers."
        )


def _traced(function: Callable[[], Any]) -> Given | None:
    """Trace a function, which then runs in the workers; None where it must run here.

    It must where it uses values of tensors, or returns a dataset that was made before.
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
    """Take a dataset that was made here; its pipeline runs in the workers."""
    endless = _checked(dataset).repeat()
    _refuse_python(private_parts.graph_of(endless))
    return Given(endless.element_spec, endless)


def _checked(dataset: Any) -> Any:
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidArgument(
            "a function that is given as data returns a tf.data.Dataset of batches; this one "
            f"returned {type(dataset).__name__}."
        )
    return dataset


def _refuse_python(graph: Any) -> None:
    functions: Iterable[Any] = (function.node_def for function in graph.library.function)
    for nodes in (graph.node, *functions):
        if any(node.op in _PYTHON for node in nodes):
            raise InvalidArgument(
                "the dataset calls Python (from_generator, py_function, numpy_function), which "
                "doesn't run in the workers' servers under strategy='parameter_server'. Give rows "
                "by run(data=…), or read files by tf.data's own operations."
            )
