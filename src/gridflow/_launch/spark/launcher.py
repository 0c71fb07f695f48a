"""Agents as the tasks of Spark stages.

The tasks that are fed are the last stage of the data. All others (parameter servers, an evaluator,
the chief of parameter servers) form another stage, in a separate Spark job.
"""

from __future__ import annotations

import os
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from gridflow._gpu.grant import check_host
from gridflow._launch.base import Placement
from gridflow._launch.spark import connect, detached_launch, feeding
from gridflow._launch.spark.bodies import agent_body
from gridflow._launch.spark.detached_launch import DetachedLaunch
from gridflow._launch.spark.gpus import SparkGpuSettings, make_profile, shortage
from gridflow._launch.spark.launch import SparkLaunch
from gridflow._launch.spark.session import (
    check_session,
    default_folder,
    hide_stage_bar,
    make_thread,
    refuse_stopped,
    register_profile,
    registered_executors,
    replace_executor,
    run_this_python_where_it_can,
    session_of,
    setting_of,
    task_slots,
)
from gridflow._launch.spark.slots import (
    is_dynamic,
    most_executors,
    no_slot_for_feeders,
    promised_slots,
    refuse_speculation,
    slots_per_executor,
    too_few,
    wait_for_slots,
)
from gridflow._spec.gpus import group
from gridflow.errors import NotEnoughSlots

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from gridflow._feed.ingest.base import RankRows
    from gridflow._feed.ingest.frames import FrameSource
    from gridflow._feed.ingest.partitions import Repartition
    from gridflow._feed.push.sender import Destination
    from gridflow._launch.base import Launch, LaunchListener
    from gridflow._spec.gpus import GpuNeed
    from gridflow._spec.job import JobSpec
    from gridflow._wire.payload import AgentPayload
    from gridflow.errors import NotEnoughGpus

    #: From tasks, rows and shares of GPUs to the function of the stage.
    MakeBody = Callable[[tuple[int, ...], RankRows | None, int], Any]


class SparkLauncher:
    """Run every task on an executor of a Spark application.

    Parameters
    ----------
    spark : SparkSession, optional
        Default: the active session, or the default session of this process.
    repartition : {'auto', 'always', 'never'}, default 'auto'
        Whether to redistribute the rows over the ranks. ``auto``: unless the DataFrame already
        has one partition per rank.
    detached : bool, default False
        Whether agents release their slots. Set it with ``LaunchOptions(detached=True)``.
    replaces_agents : bool, default False
        Whether Spark starts the task of a lost agent again while the others go on. Set it with
        ``Restarts(max_replacements=)``.

    Raises
    ------
    InvalidArgument
        `spark` isn't a session, there is none, or `repartition` has another value.
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        repartition: Repartition = "auto",
        detached: bool = False,
        replaces_agents: bool = False,
    ) -> None:
        from gridflow._feed.ingest.partitions import check_repartition

        check_repartition(repartition)
        self._spark = session_of() if spark is None else spark
        check_session(self._spark)
        run_this_python_where_it_can(self._spark)
        self._repartition = repartition
        self._source: tuple[Mapping[str, Any], FrameSource] | None = None
        self._launched = 0
        self._is_detached, self._replaces_agents = detached, replaces_agents
        self._kept: Collection[str] = ()

    def for_job(self) -> SparkLauncher:
        """Return a new launcher for the same session."""
        return SparkLauncher(
            self._spark,
            repartition=self._repartition,
            detached=self._is_detached,
            replaces_agents=self._replaces_agents,
        )

    def detached(self) -> SparkLauncher:
        """Return a launcher whose agents release their slots for other tasks."""
        return SparkLauncher(self._spark, repartition=self._repartition, detached=True)

    def replacing(self) -> SparkLauncher:
        """Return a launcher whose agents go on when one of them is lost, and is started again."""
        if self._is_detached:  # no task would start it
            return self
        return SparkLauncher(self._spark, repartition=self._repartition, replaces_agents=True)

    @property
    def replaces_agents(self) -> bool:
        """Whether Spark starts the task of a lost agent again while the others go on."""
        return self._replaces_agents

    def place(
        self,
        num_tasks: int,
        data: Mapping[str, Any],
        start_timeout: float,
        *,
        fed: Sequence[int] | None = None,
        gpus: Sequence[GpuNeed] = (),
    ) -> Placement:
        """Check the DataFrames' columns, count the slots and the GPUs."""
        refuse_stopped(self._spark)
        source = self._source_of(data)
        fed = range(num_tasks) if fed is None else fed
        source.check(len(fed), is_barrier=not self._is_plain())
        refuse_speculation(self._setting)
        if self._is_detached:
            detached_launch.refuse(data, gpus, is_dynamic=self._is_dynamic())
        settings = self._gpu_settings()
        stages = _stages(num_tasks, fed, gpus, has_data=bool(data))
        amounts = [settings.stage_amount(need) for _, need in stages]
        if not settings.per_executor and self._setting("spark.master", "").startswith("local"):
            check_host(gpus, os.environ)
        # GPUs are counted separately; slots are then cores, whatever the default profile uses.
        lean = any(amount is not None for amount in amounts) and not settings.is_dynamic
        profile = None
        if lean:
            plain = make_profile(Fraction(0), settings, self._setting)
            profile = register_profile(self._spark, plain)
        slots = wait_for_slots(
            self._spark,
            self._setting,
            num_tasks,
            start_timeout,
            profile,
            lambda: self._lacks_gpus(gpus, settings),
        )
        short = self._lacks_gpus(gpus, settings)
        if short is not None:
            raise short
        if slots is not None and slots < num_tasks:
            raise NotEnoughSlots(too_few(self._setting, num_tasks, slots), num_tasks, slots)
        master = self._setting("spark.master", "connect")
        details = {
            **({"slots": "released once the agents run"} if self._is_detached else {}),
            "stage": f"plain ({plain})" if (plain := self._why_plain()) else "barrier",
            "spark": self._spark.version,
            **source.details(),
        }
        if connect.is_connect(self._spark):
            details["connect"] = (
                "the coordinator runs in this client if a first task reaches it, else in that task"
            )
        if len(fed) < num_tasks:
            details["stages"] = f"{len(fed)} tasks that are fed, {num_tasks - len(fed)} others"
        target = f"spark ({master})"
        return Placement(
            target,
            *self._driver_addresses(),
            slots,
            details,
            source.left_out,
            source.columns,
            default_folder(self._spark),
            "" if self._is_detached else no_slot_for_feeders(num_tasks, slots),
        )

    def launch(
        self, payload: AgentPayload, data: Mapping[str, Any], listener: LaunchListener
    ) -> Launch:
        """Start the Spark jobs, each in its own thread."""
        source = self._source_of(data)
        self._launched = 0 if self._is_detached else len(payload.spec.tasks)
        self._kept = payload.spec.feed.columns
        hide_stage_bar(self._spark)
        stages = _stages(
            len(payload.spec.tasks), payload.spec.fed, payload.spec.gpus, has_data=bool(data)
        )

        if self._is_detached:
            return self._launch_detached(payload, stages, listener)

        def make_frame(places: tuple[int, ...], need: GpuNeed) -> DataFrame:
            rows = source if data and places[0] in payload.spec.fed else None
            return self._agents_frame(payload, places, rows, need)

        return SparkLaunch(
            self._spark,
            payload,
            stages,
            make_frame,
            listener,
            has_data=bool(data),
            is_barrier=not self._is_plain(),
            is_dynamic=self._is_dynamic(),
            check=self._refuse_unreachable(payload),
        )

    def _launch_detached(
        self,
        payload: AgentPayload,
        stages: Sequence[tuple[tuple[int, ...], GpuNeed]],
        listener: LaunchListener,
    ) -> DetachedLaunch:
        """Start agents that outlive the tasks which start them."""

        def frame_of(body: Any, places: tuple[int, ...], need: GpuNeed) -> DataFrame:
            frame = self._spark.range(0, len(places), 1, len(places))
            return self._stage(frame, body, need, barrier=True)

        host, _ = self._driver_addresses()
        return DetachedLaunch(self._spark, payload, stages, frame_of, listener, host)

    def _refuse_unreachable(self, payload: AgentPayload) -> Callable[[], None] | None:
        """Return the check to make before the first agents are started."""
        if payload.launch > 1 or not connect.is_connect(self._spark):
            return None
        tasks = len(payload.spec.tasks)
        return partial(connect.refuse_unreachable, self._spark, payload.coordinator, tasks)

    def feed(
        self,
        destination: Destination,
        rows: Any,
        columns: Sequence[str] | None,
        has_ended: Callable[[float], bool],
    ) -> int:
        """Push rows in a separate Spark job."""
        self._refuse_full()
        return feeding.feed(self._spark, destination, rows, columns, has_ended, self._kept)

    def feed_stream(
        self,
        rows: DataFrame,
        feed_batch: Callable[[DataFrame, str], None],
        covered: str | None,
        options: Mapping[str, Any],
        has_ended: Callable[[float], bool],
    ) -> None:
        """Push a stream by ``foreachBatch``."""
        connect.refuse_streams(self._spark)
        self._refuse_full()
        feeding.feed_stream(rows, feed_batch, covered, options, has_ended)

    def infer(self, destination: Destination, rows: Any, schema: str, timeout: float) -> DataFrame:
        """Return a DataFrame whose tasks ask the agents."""
        self._refuse_full()
        return feeding.infer(destination, rows, schema, timeout)

    def why_not_inside(self, spec: JobSpec, data: Mapping[str, Any]) -> str:
        """Return why a job can't be one Spark job, including the coordinator; empty if it can."""
        if self._is_dynamic():
            return "dynamic allocation is on, so the tasks can't find each other"
        stages = _stages(len(spec.tasks), spec.fed, spec.gpus, has_data=bool(data))
        if len(stages) > 1:
            return f"its tasks form {len(stages)} Spark jobs: those that are fed, and others"
        return ""

    def run_inside(
        self, job: str, spec: JobSpec, data: Mapping[str, Any], schema: str, make_body: MakeBody
    ) -> tuple[connect.WholeJob, Iterator[Any]]:
        """Return a job that is one Spark job, and its rows: asking for the first starts it."""
        ((places, need),) = _stages(len(spec.tasks), spec.fed, spec.gpus, has_data=bool(data))
        limit = spec.start_timeout
        whole = connect.WholeJob(
            self._spark, f"gridflow-{job}", limit, len(places), has_data=bool(data)
        )

        def make_frame() -> DataFrame:
            rows = None
            frame = self._spark.range(0, len(places), 1, len(places))
            if data:
                frame, rows = self._source_of(data).stage(len(places), spec.feed.columns)
            shares = self._gpu_settings().shares if need.count is None else 1
            return self._stage(frame, make_body(places, rows, shares), need, schema, barrier=True)

        return whole, whole.rows(make_frame)

    def replace_executor(self, executor: str) -> None:
        """Ask the cluster manager for it: Spark itself would notice after two minutes."""
        replace = partial(replace_executor, self._spark, executor)
        make_thread(self._spark, replace, f"gridflow-replace-{executor}").start()

    def make_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Return a thread that has the caller's Spark properties (job group, description, tags)."""
        return make_thread(self._spark, target, name)

    def close(self) -> None:
        """Do nothing: a job leaves nothing behind here."""

    def _source_of(self, data: Mapping[str, Any]) -> FrameSource:
        """Return the source of the data; reuse it for the same data."""
        from gridflow._feed.ingest.frames import FrameSource

        if self._source is None or self._source[0] is not data:
            self._source = data, FrameSource(self._spark, data, self._repartition)
        return self._source[1]

    # ---------------------------------------------------------------------------------------------

    def _agents_frame(
        self,
        payload: AgentPayload,
        places: tuple[int, ...],
        source: FrameSource | None,
        need: GpuNeed,
    ) -> DataFrame:
        num_tasks = len(places)
        rows = None
        if source is not None:
            spec = payload.spec
            frame, rows = source.stage(num_tasks, spec.feed.columns, spec.hosts.spool.dir)
        else:
            frame = self._spark.range(0, num_tasks, 1, num_tasks)
        settings = self._gpu_settings()
        body = agent_body(payload, places, rows, settings.shares if need.count is None else 1)
        return self._stage(frame, body, need, barrier=not self._is_plain())

    def _stage(
        self,
        frame: DataFrame,
        body: Any,
        need: GpuNeed,
        schema: str = "rank int",
        *,
        barrier: bool,
    ) -> DataFrame:
        """Return the stage whose tasks run a function, with their GPUs."""
        settings = self._gpu_settings()
        amount = settings.stage_amount(need)
        profile = None if amount is None else make_profile(amount, settings, self._setting)
        return frame.mapInArrow(body, schema, barrier=barrier, profile=profile)

    def _refuse_full(self) -> None:
        """Refuse to push rows if no slot is left for the feeding tasks.

        Raises `NotEnoughSlots`: With the numbers, and how to fix it.
        """
        slots = None
        if not self._is_dynamic():
            slots = task_slots(self._spark)
            if connect.is_connect(self._spark):
                slots = promised_slots(self._setting, slots_per_executor(self._setting) or 1)
        full = no_slot_for_feeders(self._launched, slots)
        if full:
            raise NotEnoughSlots(full, 1, 0)

    def _gpu_settings(self) -> SparkGpuSettings:
        return SparkGpuSettings.read(self._setting, is_dynamic=self._is_dynamic())

    def _lacks_gpus(
        self, needs: Sequence[GpuNeed], settings: SparkGpuSettings
    ) -> NotEnoughGpus | None:
        return shortage(needs, settings, self._most_executors()) if settings.per_executor else None

    def _most_executors(self) -> int | None:
        """Return how many executors there are or can be; None if unknown."""
        if self._is_dynamic():
            return most_executors(self._setting)
        return registered_executors(self._spark)

    def _is_dynamic(self) -> bool:
        return is_dynamic(self._setting)

    def _is_plain(self) -> bool:
        return bool(self._why_plain())

    def _why_plain(self) -> str:
        """Return why the agents' stage isn't a barrier stage; empty if it is one."""
        if self._is_dynamic():
            return "dynamic allocation is on"
        return "lost agents are replaced" if self._replaces_agents else ""

    def _driver_addresses(self) -> tuple[str, str]:
        """Return the address that Spark's driver binds, and its name for executors."""
        from gridflow._spec.network import local_address

        if connect.is_connect(self._spark):
            address = connect.client_address(self._spark)
            return address, address
        host = self._setting("spark.driver.host", "")
        bound = self._setting("spark.driver.bindAddress", "")
        if bound and bound != host:
            return bound, host or bound
        address = local_address(f"{host}:1") if host else "127.0.0.1"
        return address, address

    def _setting(self, name: str, default: str) -> str:
        return setting_of(self._spark, name, default)


def _stages(
    num_tasks: int, fed: Sequence[int], gpus: Sequence[GpuNeed], *, has_data: bool
) -> list[tuple[tuple[int, ...], GpuNeed]]:
    """Return the tasks of each stage, and the GPUs that they need.

    The tasks that are fed are one stage, the last one of the data.
    """
    others = [place for place in range(num_tasks) if place not in fed]
    return [*group(fed, gpus, together=has_data), *group(others, gpus, together=False)]
