"""Variables of which each rank has a part, or whose assignments are parts.

All others are TensorFlow's plain variables, with the same values on all ranks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

_SUM: Final = tf.VariableAggregation.SUM
_MEAN: Final = tf.VariableAggregation.MEAN
#: The extended strategy of a variable.
_OWNER: Final = "_gridflow_extended"


def adopt(variable: Any, extended: Any, synchronization: Any, aggregation: Any) -> Any:
    """Return a variable that a strategy has created, with the behaviour that it was declared with.

    `extended`: Of the strategy.
    """
    setattr(variable, _OWNER, extended)
    kind: Any = type(variable)
    if synchronization == tf.VariableSynchronization.ON_READ:
        variable.__class__ = _read_together(kind)
    elif aggregation in {_SUM, _MEAN} and variable.dtype.is_floating:
        variable.__class__ = _assigned_together(kind)
    return variable


def is_adopted(variable: Any, extended: Any) -> bool:
    """Return whether a strategy has created a variable."""
    return getattr(variable, _OWNER, None) is extended


@functools.cache
def _read_together(kind: type[Any]) -> type:
    class ReadTogether(kind):  # type: ignore[misc]
        """One rank's part in a step, and that of all ranks elsewhere."""

        def _read_variable_op(self, no_copy: bool = False) -> Any:
            mine, extended = super()._read_variable_op(no_copy), getattr(self, _OWNER)
            if not extended.is_across() or self.aggregation not in {_SUM, _MEAN}:
                return mine
            (total,) = extended.reduced(self.aggregation == _MEAN, [mine])
            return total

        def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
            """Assign a value; the sum of all parts is then that value."""
            extended = getattr(self, _OWNER)
            if extended.is_across() and extended.exchange.place and self.aggregation == _SUM:
                value = tf.zeros_like(value)
            return super().assign(value, *args, **kwargs)

    return ReadTogether


@functools.cache
def _assigned_together(kind: type[Any]) -> type:
    def reduced(name: str) -> Callable[..., Any]:
        original = getattr(kind, name)

        @functools.wraps(original)
        def write(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            extended = getattr(self, _OWNER)
            if extended.reduces_assignments():
                value = tf.convert_to_tensor(value, self.dtype)
                (value,) = extended.reduced(self.aggregation == _MEAN, [value])
            return original(self, value, *args, **kwargs)

        return write

    names = ("assign", "assign_add", "assign_sub")
    return type("AssignedTogether", (kind,), {name: reduced(name) for name in names})
