"""Converts the data of ``ctx.fit`` to a form that the workers' servers can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gridflow._keras.patches import private_parts
from gridflow._keras.servers.data import WorkerDataset
from gridflow._keras.servers.pushed import PushedRows
from gridflow.errors import InvalidArgument

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
