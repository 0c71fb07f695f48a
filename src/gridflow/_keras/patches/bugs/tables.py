"""The patch for lookup tables (StringLookup and others) in branches under parameter servers.

Each worker has a copy of a table created in the scope of ``ParameterServerStrategy``; which copy a
step uses is known when it is called. TensorFlow asks for it in the graph that uses the table. If
that is an inner graph (a branch, a ``map``), nobody answers.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.ps_values import DistributedTable
from tensorflow.python.framework.func_graph import FuncGraph

from gridflow._keras.patches.registry import Patch


class _Table(DistributedTable):  # type: ignore[misc]
    """A table without contents."""

    def __init__(self) -> None:
        """Make no copies."""
        self._coordinator_instance = SimpleNamespace(resource_handle=None)

    def _maybe_build_distributed_table(self) -> None: ...


def _branches_are_not_told() -> bool:
    outer = FuncGraph("step")
    with outer.as_default():
        inner = FuncGraph("branch")
        with inner.as_default():
            handle = _Table().resource_handle
    return handle.graph is not outer


def _patch() -> None:
    plain = DistributedTable.resource_handle.fget

    def resource_handle(self: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, FuncGraph) and isinstance(graph.outer_graph, FuncGraph):
            graph = graph.outer_graph
        # Inner graphs capture it from there, like any tensor.
        with graph.as_default() if isinstance(graph, FuncGraph) else contextlib.nullcontext():
            return plain(self)

    DistributedTable.resource_handle = property(resource_handle)


def fix(flavour: str) -> Patch:
    return Patch(
        "lookup tables in branches",
        flavour,
        "models with StringLookup and other lookup tables fail under ParameterServerStrategy if "
        "a step runs in a branch (missing placeholder)",
        _branches_are_not_told,
        _patch,
    )
