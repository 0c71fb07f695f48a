"""What trains behind Keras 3: TensorFlow, JAX or torch, and what each of them can do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from gridflow.errors import InvalidArgument
from gridflow.spec.cluster import TRAINING_ROLES
from gridflow.spec.options import choose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow.spec.cluster import Task

Backend = Literal["tensorflow", "jax", "torch"]
BACKENDS: Final = get_args(Backend)
#: What Keras itself reads, when it is imported.
KERAS_VARIABLE: Final = "KERAS_BACKEND"
#: Strategies that JAX and torch know, too: one model on all workers, or a model for each.
_COMMON_STRATEGIES: Final = ("multi_worker_mirrored", "none")


def check(
    backend: str, strategy: str, tasks: Sequence[Task], environment: Mapping[str, str]
) -> None:
    """Refuse what a backend can't do, or what contradicts it.

    Raises
    ------
    InvalidArgument
        With what was given, and what is allowed.
    """
    choose("backend", backend, BACKENDS)
    said = environment.get(KERAS_VARIABLE, backend)
    if said != backend:
        raise InvalidArgument(
            f"env= has {KERAS_VARIABLE}={said!r}, which contradicts backend={backend!r}. Say "
            f"backend={said!r}, and leave {KERAS_VARIABLE} to gridflow."
        )
    if backend == "tensorflow":
        return
    if strategy not in _COMMON_STRATEGIES:
        allowed = " or ".join(repr(name) for name in _COMMON_STRATEGIES)
        raise InvalidArgument(
            f"strategy={strategy!r} is one of TensorFlow alone; backend={backend!r} takes "
            f"{allowed}. Leave strategy= out, or use backend='tensorflow'."
        )
    idle = [str(task) for task in tasks if task.role not in TRAINING_ROLES]
    if idle:
        raise InvalidArgument(
            f"backend={backend!r} knows the roles {' and '.join(TRAINING_ROLES)} only; got "
            f"{', '.join(idle)}. Leave that role out, or use backend='tensorflow'."
        )


def needed(backend: str, strategy: str) -> tuple[str, ...]:
    """Return the packages that the tasks can't do without."""
    if backend != "tensorflow":
        return (backend, "keras")
    # Without a strategy the function needn't be one that uses TensorFlow.
    return () if strategy == "none" else ("tensorflow",)
