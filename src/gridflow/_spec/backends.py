"""Keras 3's backends TensorFlow, JAX and torch, and what each of them can do. Pure.

Other code asks this table and never compares names. A new backend is an entry of this table, a
module of `gridflow._training.groups`, and one of `gridflow._keras.patches.bugs` and ``hooks`` each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from gridflow._spec import strategies
from gridflow._spec.cluster import ROLES, TRAINING_ROLES
from gridflow._spec.option_checks import choose
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._spec.cluster import Task

Backend = Literal["tensorflow", "jax", "torch"]
BACKENDS: Final = get_args(Backend)
#: The variable that Keras reads when it is imported.
KERAS_VARIABLE: Final = "KERAS_BACKEND"
#: Strategies that JAX and torch support, too: one model on all workers, or one model each.
_COMMON_STRATEGIES: Final = ("multi_worker_mirrored", "none")


@dataclass(frozen=True)
class BackendFacts:
    """What a backend can do.

    `name`: As Keras calls it: the package.
    `title`: As its documentation calls it.
    `packages`: What the tasks import.
    `patches`: The module of Keras's patches, and that of its hooks.
    `imported_with`: What else a process imports that trains with it.
    `is_always_needed`: Whether they also import it under a strategy that doesn't need it.
    `mode`: The module of `gridflow._training.modes` that trains with it; None: the strategy's.
    `strategies`, `roles`: Those that it supports.
    `reads_tf_config`: Whether it finds its peers through ``TF_CONFIG``.
    `takes_communication`: Whether its collective operations support `CommunicationOptions`.
    `can_replace`: Whether a rank's process can be replaced while the others go on.
    `shares_gpus`: Whether ranks that exchange values may share a GPU, which NCCL refuses.
    `compiles_each_size`: Whether it recompiles a model for each new batch size.
    `has_random_state`: Whether Keras's layers draw from a random state of its own, besides Keras's
        seeds.
    `profiler`: What starts and what stops its profiler for TensorBoard.
    `export_packages`: The formats to which Keras can export models with it, and the packages that
        each needs.
    """

    name: Backend
    title: str
    packages: tuple[str, ...]
    patches: str
    imported_with: tuple[str, ...] = ()
    is_always_needed: bool = True
    mode: str | None = "neutral"
    strategies: tuple[str, ...] = _COMMON_STRATEGIES
    roles: tuple[str, ...] = TRAINING_ROLES
    reads_tf_config: bool = False
    takes_communication: bool = False
    can_replace: bool = False
    shares_gpus: bool = True
    compiles_each_size: bool = False
    has_random_state: bool = False
    profiler: tuple[str, str] | None = None
    export_packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_FACTS: Final = (
    BackendFacts(
        "tensorflow",
        "TensorFlow",
        ("tensorflow",),
        "keras3",
        imported_with=(
            "h5py",
            "gridflow._keras.callbacks",
            "gridflow._keras.resume.callback",
            "gridflow._keras.runtime",
            "gridflow._training.modes.synchronous",
        ),
        is_always_needed=False,
        mode=None,
        strategies=strategies.STRATEGIES,
        roles=ROLES,
        reads_tf_config=True,
        takes_communication=True,
        can_replace=True,
        profiler=("profiler.experimental.start", "profiler.experimental.stop"),
        export_packages={
            "saved_model": ("tensorflow",),
            "onnx": ("tf2onnx", "onnx"),
            "openvino": ("openvino",),
            "litert": ("tensorflow",),
        },
    ),
    BackendFacts(
        "jax",
        "JAX",
        ("jax", "keras"),
        "jax",
        shares_gpus=False,
        compiles_each_size=True,
        profiler=("profiler.start_trace", "profiler.stop_trace"),
        export_packages={
            "saved_model": ("tensorflow",),
            "onnx": ("jax2onnx", "onnx"),
            "openvino": ("openvino", "tensorflow"),
        },
    ),
    BackendFacts(
        "torch",
        "torch",
        ("torch", "keras"),
        "torch",
        can_replace=True,
        has_random_state=True,
        export_packages={
            "saved_model": ("tensorflow", "torch_xla"),
            "onnx": ("onnx", "onnxscript"),
            "openvino": ("openvino",),
            "litert": ("litert_torch",),
            "torch": ("torch",),
        },
    ),
)
_BY_NAME: Final = {facts.name: facts for facts in _FACTS}


def of(name: str) -> BackendFacts:
    return _BY_NAME[name]  # type: ignore[index]


def check(
    backend: str, strategy: str, tasks: Sequence[Task], environment: Mapping[str, str]
) -> None:
    """Refuse options that a backend can't use, or that contradict it.

    Raises `InvalidArgument`: With what was given, and what is allowed.
    """
    choose("backend", backend, BACKENDS)
    if strategies.of(strategy).runs_programs:
        if strategy not in of(backend).strategies:
            raise InvalidArgument(
                "under strategy='command' each program chooses its own backend; got "
                f"backend={backend!r}. Use env={{{KERAS_VARIABLE!r}: {backend!r}}} instead."
            )
        return
    said = environment.get(KERAS_VARIABLE, backend)
    if said != backend:
        raise InvalidArgument(
            f"env= sets {KERAS_VARIABLE}={said!r}, which contradicts backend={backend!r}. Use "
            f"backend={said!r}, and leave {KERAS_VARIABLE} to gridflow."
        )
    facts = of(backend)
    if strategy not in facts.strategies:
        allowed = " or ".join(repr(name) for name in facts.strategies)
        raise InvalidArgument(
            f"strategy={strategy!r} works only with TensorFlow; backend={backend!r} supports "
            f"{allowed}. Leave strategy= out, or use backend='tensorflow'."
        )
    idle = [str(task) for task in tasks if task.role not in facts.roles]
    if idle:
        raise InvalidArgument(
            f"backend={backend!r} supports only the roles {' and '.join(facts.roles)}; got "
            f"{', '.join(idle)}. Leave that role out, or use backend='tensorflow'."
        )


def sharing_gpus() -> str:
    """Name the backends whose ranks may share a GPU, for a message."""
    return " and ".join(repr(facts.name) for facts in _FACTS if facts.shares_gpus)


def replacing() -> str:
    """Name the backends on which a rank's process can be replaced, for a message."""
    return " or ".join(repr(facts.name) for facts in _FACTS if facts.can_replace)


def needed(backend: str, strategy: str) -> tuple[str, ...]:
    """Return the packages that the tasks need."""
    facts = of(backend)
    is_needed = facts.is_always_needed or strategies.of(strategy).needs_backend
    return facts.packages if is_needed else ()
