"""The slots of a session: how many there are and can be, what uses them, how long to wait."""

from __future__ import annotations

import math
import re
import time
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gridflow._launch.spark.errors import slots_of_master
from gridflow._launch.spark.session import (
    ask_for_executors,
    classic_context,
    executors_of,
    registered_executors,
    setting_of,
    task_slots,
)
from gridflow._spec import jvm
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from gridflow.errors import NotEnoughGpus

    #: From the name of a Spark setting and a default to its value.
    Setting = Callable[[str, str], str]

#: Executors of a young application may still be registering: for this long, having fewer slots than
#: tasks isn't an error.
_REGISTRATION_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 4.0
#: The same for executors that are certain to be started, initially or in place of a dead one: of a
#: local cluster, or requested from YARN or Kubernetes. A node may have to unpack an environment.
_ASKED_SECONDS: Final = 120.0
_MOST_EXECUTORS: Final = "spark.dynamicAllocation.maxExecutors"
_ROOM_SECONDS: Final = 14.0
#: Over Spark Connect, where slots are unknown: by then, tasks with a slot have started.
_A_START_SECONDS: Final = 30.0


def what_runs(spark: SparkSession, tag: str, num_tasks: int, seconds: float) -> str:
    """Return what keeps the tasks of a launch from starting; empty if unknown.

    `tag`: The tag of the launch's own jobs.
    `num_tasks`: Slots that the launch needs.
    `seconds`: Seconds since the launch started.
    """
    context = classic_context(spark)
    if context is None:
        if seconds < _A_START_SECONDS:
            return ""
        return (
            f"the job needs {num_tasks} task slots at the same time. Over Spark Connect, gridflow "
            f"can't tell how many are free: the server's Spark UI shows what uses them."
        )
    tracker = context.statusTracker()
    own = _stages_of(context, tag)
    look_up, slots = partial(setting_of, spark), task_slots(spark)
    if is_dynamic(look_up) and slots is not None and slots < num_tasks:
        limit = look_up(_MOST_EXECUTORS, "")
        return (
            f"Spark has {slots} of the {num_tasks} task slots that the job needs, on "
            f"{registered_executors(spark)} executors, and has requested more from its cluster"
            f"{f', up to {_MOST_EXECUTORS}={limit}' if limit else ''}. They start when the cluster "
            "has room; other applications may be using it."
        )
    running = {}
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None and info.numActiveTasks:
            running[stage] = info
    at_work = "; ".join(
        f"stage {stage}, {info.numCompletedTasks} of {info.numTasks} tasks done"
        for stage, info in running.items()
        if stage in own
    )
    if at_work:
        return (
            f"Spark is working on the job's own stages ({at_work}): it computes the rows, if any, "
            "and starts the tasks."
        )
    others = [
        f"stage {stage} ({info.name}) runs {info.numActiveTasks} of its {info.numTasks} tasks"
        for stage, info in running.items()
        if stage not in own
    ]
    if others:
        return (
            f"Spark has {slots} task slots, and the job needs {num_tasks} at the same time, but "
            f"some are in use: {'; '.join(others)}. The tasks start once enough are free."
        )
    if slots is not None and slots < num_tasks:
        return f"Spark has {slots} task slots so far; the job needs {num_tasks} at the same time."
    return ""


def tasks_of_others(spark: SparkSession, tag: str) -> int:
    """Return how many slots the tasks of other jobs use.

    `tag`: The tag of the launch's own jobs.
    """
    context = classic_context(spark)
    if context is None:
        return 0
    tracker, own = context.statusTracker(), _stages_of(context, tag)
    others = (tracker.getStageInfo(each) for each in tracker.getActiveStageIds() if each not in own)
    return sum(each.numActiveTasks for each in others if each is not None)


def ask_for_slots(spark: SparkSession, more: int) -> None:
    """Let dynamic allocation start executors for more tasks than there are.

    By itself, Spark asks for those of tasks that wait. The request stands until Spark wants another
    number of executors.
    """
    context = classic_context(spark)
    if context is None:
        return
    setting = partial(setting_of, spark)
    executors, limit = math.ceil(more / (slots_per_executor(setting) or 1)), most_executors(setting)
    if limit is not None:
        executors = min(executors, limit - executors_of(context))
    if executors > 0:
        jvm.scala_context(context).requestExecutors(executors)


def wait_for_room(spark: SparkSession, tasks: int, give_up: Callable[[], bool]) -> None:
    """Wait a moment for the replacements of lost executors.

    Spark checks the slots for a barrier stage when that is submitted, and again after 15 seconds.
    """
    end = time.monotonic() + _ROOM_SECONDS
    has_asked = False
    while not give_up() and time.monotonic() < end:
        slots = task_slots(spark)
        if slots is None or slots >= tasks:
            return
        if not has_asked:
            ask_for_executors(spark, is_dynamic=False)
            has_asked = True
        time.sleep(0.1)


def task_cpus(setting: Setting) -> Fraction:
    """Return the cores of a slot: since Spark 4.3 also a part of one, or one and a half."""
    return Fraction(setting("spark.task.cpus", "1"))


def is_dynamic(setting: Setting) -> bool:
    """Return whether dynamic allocation is on; Spark then refuses barrier stages (SPARK-24942).

    A local master ignores the setting.
    """
    is_here = re.match(r"local($|\[)", setting("spark.master", ""))
    return not is_here and setting("spark.dynamicAllocation.enabled", "false") == "true"


def refuse_speculation(setting: Setting) -> None:
    """Refuse speculative copies of training tasks, which Spark starts except in barrier stages.

    Raises `InvalidArgument`: ``spark.speculation`` is on, and so is dynamic allocation.
    """
    if is_dynamic(setting) and setting("spark.speculation", "false") == "true":
        raise InvalidArgument(
            "spark.speculation=true would start training tasks twice. Turn it off, or turn "
            "spark.dynamicAllocation.enabled off, as barrier stages are never speculated."
        )


def most_executors(setting: Setting) -> int | None:
    """Return the maximum number of executors of dynamic allocation; None without a limit."""
    limit = setting(_MOST_EXECUTORS, "")
    return int(limit) if limit.isdigit() else None


def most_slots(setting: Setting) -> int | None:
    """Return the maximum number of slots of dynamic allocation; None without a limit."""
    cpus = task_cpus(setting)
    limits = []
    executors, each = most_executors(setting), slots_per_executor(setting)
    if executors is not None and each is not None:
        limits.append(executors * each)
    cores = setting("spark.cores.max", "")
    if cores.isdigit() and setting("spark.master", "").startswith("spark:"):
        limits.append(int(cores) // cpus)
    return min(limits, default=None)


def slots_per_executor(setting: Setting) -> int | None:
    """Return the slots of each executor; None if it uses all cores of its host."""
    default = "" if setting("spark.master", "").startswith("spark:") else "1"
    cores = setting("spark.executor.cores", default)
    return max(1, int(cores) // task_cpus(setting)) if cores else None


def too_few(setting: Setting, tasks: int, slots: int) -> str:
    """Return the message for a job with more tasks than available slots."""
    cpus = setting("spark.task.cpus", "1")
    where = f"{setting('spark.master', 'the cluster')} has {slots} free for it"
    more = "start the application with more executors or cores"
    if is_dynamic(setting):
        names = (_MOST_EXECUTORS, "spark.executor.cores", "spark.cores.max")
        given = [f"{name}={setting(name, '')}" for name in names if setting(name, "")]
        where = f"dynamic allocation can't give it more than {slots} ({', '.join(given)})"
        more = "raise these limits"
    return (
        f"the job has {tasks} tasks that must run at the same time, but {where} "
        f"(spark.task.cpus={cpus}). Use num_workers={slots} or fewer (tasks of all roles count), "
        f"or {more}."
    )


def slots_asked_for(setting: Setting, per_executor: int) -> int:
    """Return the slots of the executors that Spark requests from its cluster, and replaces.

    0 if it doesn't request a number of them, as on a standalone cluster.

    `setting`: From the name of a setting and a default to its value.
    `per_executor`: Slots of each.
    """
    if not setting("spark.master", "").startswith(("yarn", "k8s:")):
        return 0
    return int(setting("spark.executor.instances", "2")) * per_executor


def promised_slots(setting: Setting, per_executor: int) -> int | None:
    """Return the slots that follow from an application's settings alone; None if unknown.

    More isn't known over Spark Connect, whose clients can't list executors.

    `setting`: From the name of a setting and a default to its value.
    `per_executor`: Slots of each executor.
    """
    cpus = task_cpus(setting)
    of_master = slots_of_master(setting("spark.master", ""), cpus)
    if of_master is not None:
        return of_master
    most = setting("spark.cores.max", "")
    return slots_asked_for(setting, per_executor) or (int(most) // cpus if most else None)


def no_slot_for_feeders(tasks: int, slots: int | None) -> str:
    """Return why rows can't be pushed if the job itself uses all slots, or an empty string."""
    if slots is None or slots > tasks:
        return ""
    return (
        f"the job's {tasks} tasks use all {slots} task slots of Spark, so none is left for the "
        "tasks that push rows into it. Use fewer workers, more executors or cores, or pass the "
        "rows to run(data=…), which needs no further slot. Without GPUs, "
        "LaunchOptions(detached=True) releases the job's own slots once its tasks run."
    )


def _stages_of(context: Any, tag: str) -> set[int]:
    scala = jvm.scala_context(context)
    tracker = scala.statusTracker()
    found: set[int] = set()
    for job in tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        if info.isDefined():
            found.update(info.get().stageIds())
    return found


def wait_for_slots(
    spark: SparkSession,
    setting: Setting,
    num_tasks: int,
    start_timeout: float,
    profile: Any,
    lacks_gpus: Callable[[], NotEnoughGpus | None],
) -> int | None:
    """Return the slots, after waiting for executors that are still starting."""
    if classic_context(spark) is None and not is_dynamic(setting):
        return promised_slots(setting, slots_per_executor(setting) or 1)
    if is_dynamic(setting):
        # The stage itself makes Spark request executors; start_timeout limits that.
        can_be = most_slots(setting)
        return can_be if can_be is not None and can_be < num_tasks else None
    most = slots_of_master(setting("spark.master", ""), task_cpus(setting))
    asked = slots_asked_for(setting, slots_per_executor(setting) or 1)
    if most is not None:  # a local cluster restarts an executor that died
        asked = most
    patience = max(_REGISTRATION_SECONDS - _seconds_up(spark), _SETTLE_SECONDS)
    if asked >= num_tasks:
        patience = max(patience, _ASKED_SECONDS)
    give_up = time.monotonic() + min(patience, start_timeout)
    slots = task_slots(spark, profile)
    if slots is not None and slots < num_tasks:
        # Some may have been removed since the last job.
        ask_for_executors(spark, is_dynamic=False)
    settled = time.monotonic() + _SETTLE_SECONDS
    while slots is not None and (slots < num_tasks or lacks_gpus() is not None):
        now = time.monotonic()
        if (most is not None and most < num_tasks) or now > give_up:
            break
        are_to_come = slots < num_tasks <= asked
        if slots and now > settled and not are_to_come:  # some have started, and no more will
            break
        time.sleep(0.1)
        before, slots = slots, task_slots(spark, profile)
        if slots != before:
            settled = time.monotonic() + _SETTLE_SECONDS
    return slots


def _seconds_up(spark: SparkSession) -> float:
    context = classic_context(spark)
    if context is None:
        return float("inf")
    return time.time() - float(context.startTime) / 1000
