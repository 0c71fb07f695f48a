"""GPUs of a Spark application: its settings, and resource profiles for stages.

In Spark 4, a profile with only task resources changes what a stage uses of the existing executors.
Standalone, YARN and Kubernetes support this, ``local[N]`` doesn't. With dynamic allocation, a
profile gets its own executors instead, so there it also describes these: without GPUs for tasks
that need none.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from gridflow._launch.spark.slots import task_cpus
from gridflow._spec.gpus import GPU
from gridflow.errors import NotEnoughGpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._spec.gpus import GpuNeed

_EXECUTOR: Final = f"spark.executor.resource.{GPU}"
_TASK: Final = f"spark.task.resource.{GPU}.amount"
#: Executor settings that a profile doesn't inherit: the name in it, and its request method.
_SIZES: Final = {
    "spark.executor.memory": "memory",
    "spark.executor.memoryOverhead": "memoryOverhead",
    "spark.executor.pyspark.memory": "pysparkMemory",
}


@dataclass(frozen=True)
class SparkGpuSettings:
    """An application's GPU settings.

    `per_executor`: 0: Spark manages no GPUs.
    `per_task`: In the default profile.
    `is_dynamic`: Whether dynamic allocation is on.
    """

    per_executor: int
    per_task: Fraction
    is_dynamic: bool

    @classmethod
    def read(cls, setting: Callable[[str, str], str], *, is_dynamic: bool) -> SparkGpuSettings:
        """Read them; ``setting`` takes a name and a default."""
        master = setting("spark.master", "")
        alone = master.startswith("local") and not master.startswith("local-cluster")
        return cls(
            0 if alone else int(setting(f"{_EXECUTOR}.amount", "0")),
            Fraction(0) if alone else Fraction(setting(_TASK, "0")),
            is_dynamic,
        )

    @property
    def shares(self) -> int:
        """How many tasks of the default profile get the same GPU."""
        return int(1 / self.per_task) if 0 < self.per_task < 1 else 1

    def stage_amount(self, need: GpuNeed) -> Fraction | None:
        """Return the GPUs for a stage's profile; None for the default profile.

        Raises `NotEnoughGpus`: No executor has that many.
        """
        if not self.per_executor:
            return None  # the agents find GPUs by themselves
        amount = need.amount
        if amount is None or amount == self.per_task:
            return None
        if amount > self.per_executor:
            raise NotEnoughGpus(
                f"a task needs {need} GPUs, but each executor has {self.per_executor} "
                f"({_EXECUTOR}.amount). Reduce gpus=, or use executors with more GPUs.",
                need.count or 0,
                self.per_executor,
            )
        return amount

    def taken_by(self, need: GpuNeed) -> Fraction:
        """Return the GPUs that Spark reserves for a task."""
        if not self.per_executor:
            return Fraction(0)
        return self.per_task if need.amount is None else need.amount


def make_profile(
    amount: Fraction, settings: SparkGpuSettings, setting: Callable[[str, str], str]
) -> Any:
    """Return a ``ResourceProfile`` whose tasks get some number of GPUs."""
    from pyspark.resource import (
        ExecutorResourceRequests,
        ResourceProfileBuilder,
        TaskResourceRequests,
    )

    cpus = task_cpus(setting)
    # Before Spark 4.3, a number of cores had to be an int.
    tasks = TaskResourceRequests().cpus(int(cpus) if cpus.denominator == 1 else float(cpus))
    if amount:
        tasks = tasks.resource(GPU, float(amount))
    builder = ResourceProfileBuilder().require(tasks)
    if settings.is_dynamic:
        executors = ExecutorResourceRequests().cores(int(setting("spark.executor.cores", "1")))
        for name, method in _SIZES.items():
            if setting(name, ""):
                getattr(executors, method)(setting(name, ""))
        if amount:
            script = setting(f"{_EXECUTOR}.discoveryScript", "")
            vendor = setting(f"{_EXECUTOR}.vendor", "")
            executors.resource(GPU, settings.per_executor, script, vendor)
        builder.require(executors)
    return builder.build


def shortage(
    needs: Sequence[GpuNeed], settings: SparkGpuSettings, executors: int | None
) -> NotEnoughGpus | None:
    """Return the error for an application with too few GPUs; None if it has enough.

    `needs`: The needs of all tasks.
    `executors`: How many there are or can be; None if unknown.
    """
    if not settings.per_executor or executors is None:
        return None
    amounts = [settings.taken_by(need) for need in needs]
    required, available = sum(amounts, Fraction(0)), executors * settings.per_executor
    # All GPUs of a task are on one executor: what is left over on each is of no use to such tasks.
    most = max(amounts, default=Fraction(0))
    fit = executors * int(settings.per_executor / most) if most else len(amounts)
    if required <= available and amounts.count(most) <= fit:
        return None
    return NotEnoughGpus(
        f"the job's tasks need {_text(required)} GPUs, but the application has {available}: "
        f"{executors} executors with {settings.per_executor} each ({_EXECUTOR}.amount). All GPUs "
        "of a task must be on one executor. Use fewer workers, smaller gpus=, or more executors.",
        -(-required.numerator // required.denominator),
        available,
    )


def _text(number: Fraction) -> str:
    return f"{float(number):g}"
