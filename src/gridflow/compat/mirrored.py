"""The interface of spark-tensorflow-distributor 1.0: `MirroredStrategyRunner`.

A program written for that package changes one import::

    from gridflow.compat.mirrored import MirroredStrategyRunner
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import re
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.gpus import GPU, VISIBLE
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow._training.context import TrainingContext

__all__ = ["MirroredStrategyRunner"]

_log = logging.getLogger("MirroredStrategyRunner")
_SSL: Final = "spark.ssl.enabled"
_IGNORE_SSL: Final = "tensorflow.spark.distributor.ignoreSsl"
_INDEX: Final = re.compile(r"0|[1-9][0-9]*")


class MirroredStrategyRunner:
    """Run a training function in Spark tasks under one ``MultiWorkerMirroredStrategy``.

    Parameters
    ----------
    num_slots : int
        Total number of GPUs (``use_gpu=True``) or of tasks.
    local_mode : bool, default False
        Call the function in the driver's process.
    use_gpu : bool, default True
        Train on the GPUs that Spark assigns to its tasks.
    gpu_resource_name : str, default "gpu"
        Spark's name for the GPU resource. Distributed mode supports only ``gpu``.
    use_custom_strategy : bool, default False
        Whether the function creates its own strategy. Otherwise it is called in the scope of one.

    Raises
    ------
    InvalidArgument
        If `num_slots` is invalid, or if Spark doesn't schedule such GPUs.

    Notes
    -----
    The interface is that of spark-tensorflow-distributor in tensorflow/ecosystem. In distributed
    mode the function runs in a separate process next to each Spark task. There, pyspark's
    ``BarrierTaskContext.get()`` returns a replacement with ``partitionId``, ``getTaskInfos``,
    ``allGather``, ``barrier`` and ``resources``.

    Examples
    --------
    >>> from gridflow.compat.mirrored import MirroredStrategyRunner
    >>> runner = MirroredStrategyRunner(num_slots=4, use_gpu=False)  # doctest: +SKIP
    >>> runner.run(train, epochs=3)  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        num_slots: int,
        local_mode: bool = False,
        use_gpu: bool = True,
        gpu_resource_name: str = GPU,
        use_custom_strategy: bool = False,
    ) -> None:
        from pyspark.sql import SparkSession

        if isinstance(num_slots, bool) or not isinstance(num_slots, int) or num_slots <= 0:
            raise InvalidArgument(
                f"num_slots must be a whole number of at least 1; got {num_slots!r}."
            )
        self._num_slots = num_slots
        self._local_mode, self._use_gpu = local_mode, use_gpu
        self._gpu_resource_name = gpu_resource_name
        self._use_custom_strategy = use_custom_strategy
        self._spark = SparkSession.builder.getOrCreate()
        self.sc = self._spark.sparkContext
        if local_mode:
            _log.warning("local mode: the function will run in the driver's process.")
            return
        if use_gpu and gpu_resource_name != GPU:
            raise InvalidArgument(
                f"gpu_resource_name={gpu_resource_name!r}: gridflow uses the GPUs that Spark "
                f"schedules under the name {GPU!r}. Rename the resource in Spark's settings."
            )
        _log.info("will run with %d Spark tasks.", self.get_num_tasks())

    def get_num_tasks(self) -> int:
        """Return the number of Spark tasks used for training.

        Raises
        ------
        InvalidArgument
            If Spark assigns no GPUs of this name to tasks, or only fractions of one.
        """
        if not self._use_gpu:
            return self._num_slots
        key = f"spark.task.resource.{self._gpu_resource_name}.amount"
        amount = self.sc.getConf().get(key)
        if amount is None:
            raise InvalidArgument(
                f"{key} is not set, so Spark assigns no GPUs to its tasks. Set it (and "
                f"spark.executor.resource.{self._gpu_resource_name}.amount with a discovery "
                "script), or pass use_gpu=False."
            )
        try:
            gpus = int(amount)
        except ValueError:
            gpus = 0
        if gpus < 1:
            raise InvalidArgument(f"{key} must be a whole number of at least 1; it is {amount}.")
        return math.ceil(self._num_slots / gpus)

    def run(self, train_fn: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``train_fn(**kwargs)`` in every task, and return the first task's result.

        Parameters
        ----------
        train_fn : callable
        **kwargs
            Passed to `train_fn`.

        Returns
        -------
        object
            A Keras model is returned as a `gridflow.TrainedModel`, except in local mode.

        Raises
        ------
        GridflowError
            If ``spark.ssl.enabled`` is true, because gradients would travel unencrypted. Set
            ``tensorflow.spark.distributor.ignoreSsl`` to true to allow it.
        TrainingFailed
            If the function raised; contains its traceback.
        """
        if self._local_mode:
            return self._run_here(train_fn, kwargs)
        self._check_encryption()
        from gridflow._distributor import TensorflowDistributor
        from gridflow._launch.spark.launcher import SparkLauncher
        from gridflow._spec.option_groups import Deadlines

        distributor = TensorflowDistributor(
            self.get_num_tasks(),
            # The task creates the strategy, after it has chosen its GPUs.
            "none",
            launcher=SparkLauncher(self._spark),
            gpus=None if self._use_gpu else 0 if self._has_gpu_tasks() else None,
            deadlines=Deadlines(step=None),
            progress=False,
        )
        settings = _Settings(
            self._num_slots,
            self._use_gpu,
            self._use_custom_strategy,
            self.sc.getConf().get(f"spark.executorEnv.{VISIBLE}"),
        )
        return distributor.run(_train, settings, train_fn, kwargs).value

    def _has_gpu_tasks(self) -> bool:
        return self.sc.getConf().contains(f"spark.task.resource.{GPU}.amount")

    def _run_here(self, train_fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
        before = os.environ.get(VISIBLE)
        chosen = ""
        if self._use_gpu:
            name = self._gpu_resource_name
            resources = self.sc.resources
            if name not in resources:
                raise InvalidArgument(
                    f"the driver has no GPUs named {name!r}; its resources: "
                    f"{', '.join(resources) or 'none'}. Set "
                    f"spark.driver.resource.{name}.amount and …discoveryScript."
                )
            owned = _owned(resources[name].addresses, before)
            if self._num_slots > len(owned):
                raise InvalidArgument(
                    f"num_slots={self._num_slots} in local mode, but the driver has only "
                    f"{len(owned)} GPUs."
                )
            chosen = ",".join(random.sample(owned, self._num_slots))
        elif self._num_slots > 1:
            raise InvalidArgument(
                f"num_slots must be 1 in local mode without GPUs; got {self._num_slots}."
            )
        os.environ[VISIBLE] = chosen
        try:
            if self._use_custom_strategy:
                return train_fn(**kwargs)
            import tensorflow as tf

            with tf.distribute.MirroredStrategy().scope():
                return train_fn(**kwargs)
        finally:
            if before is None:
                del os.environ[VISIBLE]
            else:
                os.environ[VISIBLE] = before

    def _check_encryption(self) -> None:
        if not self._is_set(_SSL):
            return
        words = "TensorFlow's tasks exchange gradients, and possibly rows, without encryption"
        if not self._is_set(_IGNORE_SSL):
            raise GridflowError(
                f"{_SSL} is true, but {words}. Set {_IGNORE_SSL}=true to train anyway."
            )
        _log.warning("%s is true, but %s.", _SSL, words)

    def _is_set(self, name: str) -> bool:
        value = str(self.sc.getConf().get(name, "false"))
        if value.lower() not in {"true", "false"}:
            raise InvalidArgument(f"{name} must be true or false; it is {value!r}.")
        return value.lower() == "true"


class _Settings:
    """The runner's settings, as the tasks need them.

    Parameters
    ----------
    num_slots : int
    use_gpu, use_custom_strategy : bool
    visible : str or None
        ``CUDA_VISIBLE_DEVICES`` of the executors; Spark's addresses are indices into it.
    """

    def __init__(
        self, num_slots: int, use_gpu: bool, use_custom_strategy: bool, visible: str | None
    ) -> None:
        self.num_slots, self.use_gpu = num_slots, use_gpu
        self.use_custom_strategy, self.visible = use_custom_strategy, visible


def _train(
    ctx: TrainingContext,
    settings: _Settings,
    train_fn: Callable[..., Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run the training function in one task."""
    chosen: list[str] = []
    if settings.use_gpu:
        owned = _owned(ctx.gpus, settings.visible)
        share, more = divmod(settings.num_slots, ctx.num_workers)
        chosen = random.sample(owned, share + (ctx.rank < more))
        _log.info("using GPUs %s", chosen)
    os.environ[VISIBLE] = ",".join(chosen)
    task = {"type": ctx.task.role, "index": ctx.task.index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": ctx.cluster_spec.as_dict(), "task": task})
    _stand_in(ctx)
    if settings.use_custom_strategy:
        value = train_fn(**kwargs)
    else:
        import tensorflow as tf

        from gridflow._keras.patches.hooks import untuned

        untuned.install()
        alone = ctx.num_workers == 1
        kind = (
            tf.distribute.MirroredStrategy if alone else tf.distribute.MultiWorkerMirroredStrategy
        )
        with kind().scope():
            value = train_fn(**kwargs)
    return value if ctx.is_chief else None


def _owned(addresses: Sequence[str], visible: str | None) -> list[str]:
    """Return the values for ``CUDA_VISIBLE_DEVICES`` that match Spark's addresses."""
    if any(_INDEX.fullmatch(address) is None for address in addresses):
        raise InvalidArgument(
            f"Spark's GPU addresses are {list(addresses)}; {VISIBLE} takes whole numbers without "
            "leading zeros. Change the discovery script."
        )
    if not visible:
        return list(addresses)
    names = visible.split(",")
    return [names[int(address)] for address in addresses]


def _stand_in(ctx: TrainingContext) -> None:
    """Make ``BarrierTaskContext.get()`` work as it does inside a Spark task."""
    try:
        from pyspark import BarrierTaskContext
    except ImportError:
        return
    barrier = _Barrier(ctx)
    BarrierTaskContext.get = classmethod(lambda _: barrier)  # type: ignore[assignment, method-assign]


class _Barrier:
    """The commonly used part of ``BarrierTaskContext``, built on TensorFlow's collectives.

    Parameters
    ----------
    ctx : TrainingContext
    """

    def __init__(self, ctx: TrainingContext) -> None:
        self._ctx = ctx

    def partitionId(self) -> int:
        """Return the task's rank."""
        return self._ctx.rank

    def getTaskInfos(self) -> list[Any]:
        """Return the addresses of all tasks, by rank."""
        from pyspark import BarrierTaskInfo

        spec = self._ctx.cluster_spec
        return [BarrierTaskInfo(spec.address(task)) for task in spec.ranks]

    def allGather(self, message: str = "") -> list[str]:
        """Return the messages of all tasks, by rank; every task must call it."""
        if self._ctx.num_workers == 1:
            return [message]
        import tensorflow as tf

        from gridflow._feed import allgather

        strategy = tf.distribute.get_strategy()
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise GridflowError(
                "allGather() and barrier() need a MultiWorkerMirroredStrategy: call them inside "
                "'with strategy.scope():'."
            )
        return [each.decode() for each in allgather.with_tensorflow(strategy, message.encode())]

    def barrier(self) -> None:
        """Wait until all tasks have called it."""
        self.allGather()

    def resources(self) -> dict[str, Any]:
        """Return the task's GPUs, if it has any."""
        from pyspark.resource import ResourceInformation

        gpus = list(self._ctx.gpus)
        return {GPU: ResourceInformation(GPU, gpus)} if gpus else {}
