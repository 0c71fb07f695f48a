"""What each process of `conformance.table` computes: all cells of a column."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from conformance import asynchronous, batch_cases, uneven, weighted
from conformance.cases import (
    MODELS,
    CaseResult,
    Lab,
    data_results,
    plain_data_results,
    plain_results,
    results,
)
from conformance.step_cases import plain_step_results, step_results
from gridflow._spec import backends

if TYPE_CHECKING:
    from conformance.outcomes import Cell

#: Keras 3 and tf_keras on TensorFlow, then Keras 3 on its other backends.
FLAVOURS: Final = ("keras", "tf_keras")
BACKENDS: Final = backends.BACKENDS[1:]
#: The GPU's memory of a replica that shares it with another one in its process.
_SPLIT_GPU_MIB: Final = 2048


def column(
    ctx: Any,
    flavour: str,
    replicas: int,
    shared: str,
    *,
    in_full: bool = True,
    models: int = len(MODELS),
    steps: bool = True,
    weights: bool = True,
    data_cases: bool = True,
) -> None:
    """Compute all cells of one strategy and flavour on one rank; a training function.

    Parameters
    ----------
    ctx : TrainingContext
        Its data are `rows` for this number of workers; each rank reads a contiguous share in order.
    flavour : str
        One of `FLAVOURS` or `BACKENDS`.
    replicas : int
        Replicas in this process: logical CPU devices for ``mirrored``.
    shared : str
        A folder that all ranks can access, for checkpoints and results.
    in_full : bool, default True
        Whether to also compute the cases of `uneven`, `batch_cases`, `step_results` and `weighted`;
        their results don't depend on the launcher.
    models : int, default all
        Number of `MODELS` to train.
    steps, weights : bool, default True
        With `in_full`: whether to include `step_results` and `weighted`.
    data_cases : bool, default True
        Whether to include `data_results`.
    """
    if replicas > 1:
        _split(replicas)
    lab = Lab(_keras_of(flavour), ctx.strategy)
    if lab.replicas != replicas * ctx.num_workers:
        raise AssertionError(f"got {lab.replicas} replicas, expected {replicas} per worker")
    found: dict[Cell, CaseResult] = {}
    for model in lab.models[:models]:
        for case, result in results(ctx, lab, model, shared).items():
            found[case, model] = result
    others = data_results(ctx, lab) if data_cases else {}
    if in_full:
        others |= uneven.results(ctx, lab)
    if in_full and lab.is_tensorflow:
        others |= batch_cases.results(lab)
    if in_full and steps:
        others |= step_results(ctx, lab)
    if in_full and weights:
        others |= weighted.results(ctx, lab)
    for case, result in others.items():
        found[case, MODELS[0]] = result
    Path(shared, f"rank-{ctx.rank}").write_bytes(cloudpickle.dumps(found))


def _split(replicas: int) -> None:
    """Make several devices of the GPU, or of the CPU if there is none."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    limit = _SPLIT_GPU_MIB if gpus else None
    tf.config.set_logical_device_configuration(
        (gpus or tf.config.list_physical_devices("CPU"))[0],
        [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for _ in range(replicas)],
    )


def plain(
    flavour: str,
    found_in: str,
    *,
    in_full: bool,
    models: int,
    steps: bool,
    weights: bool,
    data_cases: bool,
) -> None:
    """Compute the expected values of a flavour, in a process without a gridflow job."""
    keras = _keras_of(flavour)
    lab = Lab(keras, _Alone())
    found: dict[Cell, CaseResult] = {}
    for model in lab.models[:models]:
        for case, result in plain_results(lab, model).items():
            found[case, model] = result
    others = plain_data_results(lab) if data_cases else {}
    if in_full:
        others |= uneven.plain_results(lab)
    if in_full and lab.is_tensorflow:
        others |= batch_cases.plain_results(lab)
    if in_full and steps:
        others |= plain_step_results(lab)
    if in_full and weights:
        others |= weighted.plain_results(lab)
    for case, result in others.items():
        found[case, MODELS[0]] = result
    if lab.is_tensorflow:
        found |= asynchronous.plain_results(keras)
    Path(found_in).write_bytes(cloudpickle.dumps(found))


class _Alone:
    """Replaces the strategy in a single process."""

    num_replicas_in_sync = 1

    def scope(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _keras_of(flavour: str) -> Any:
    if flavour in FLAVOURS:
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)
    return importlib.import_module("keras" if flavour in BACKENDS else flavour)
