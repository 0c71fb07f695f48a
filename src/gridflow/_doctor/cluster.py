"""Checks of a Spark application: a stage with a task in each slot looks around."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gridflow._agent.executor import executor_above
from gridflow._doctor import checks, machine
from gridflow._doctor.findings import Diagnosis, has_errors
from gridflow._doctor.host import Host, look, within
from gridflow._doctor.meeting import Attendance, Meeting, attend
from gridflow._files.systems import absolute_path, where
from gridflow._launch.spark.configured import QUIET
from gridflow._launch.spark.errors import explain
from gridflow._launch.spark.launcher import SparkLauncher
from gridflow._launch.spark.session import (
    cancel,
    classic_context,
    forget_tag,
    setting_of,
    tag_this_thread,
    task_slots,
)
from gridflow._launch.spark.slots import (
    is_dynamic,
    most_slots,
    promised_slots,
    slots_per_executor,
    too_few,
    wait_for_slots,
    what_runs,
)
from gridflow._spec.network import Network
from gridflow.deploy.drivers.in_process import start_session
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from gridflow.deploy.description.description import Job

_TAG: Final = "gridflow-doctor"
#: More tasks than that say nothing more.
_MOST_TASKS: Final = 256
_FEWEST_TASKS: Final = 2
_STOP_SECONDS: Final = 20.0
_MEND_LISTENING: Final = (
    "choose other ports with --port and Network(port=…), or an address of this host with "
    "spark.driver.bindAddress"
)
_MEND_FOLDER: Final = "name a folder that the driver can write to"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What to check of a cluster.

    `settings`: Of Spark.
    `job`: Whose tasks must find room.
    `shared`: Folders that all hosts should see.
    `port`: As of `gridflow.Network`.
    `timeout`: Seconds until all must be over.
    """

    settings: Mapping[str, str]
    job: Job | None = None
    shared: Sequence[str] = ()
    spool: str | None = None
    backend: str
    port: str | None = None
    timeout: float


class _Check:
    """One run of the checks, in a thread that may be left behind."""

    def __init__(self, wishes: Wishes) -> None:
        self.wishes = wishes
        self.network = Network(port=wishes.port)
        self.findings: list[Diagnosis] = []
        self.session: SparkSession | None = None
        self.tasks = 0

    def run(self) -> None:
        settings = {**QUIET, **self.wishes.settings}
        self.session = spark = start_session("gridflow doctor", settings)
        if classic_context(spark) is None:
            raise InvalidArgument(
                "gridflow doctor needs a classic session: with Spark Connect, run it where the "
                "server runs, with the server's spark.master instead of spark.remote."
            )
        spark.sparkContext.setLogLevel("OFF")  # what fails is a finding
        look_up = partial(setting_of, spark)
        self.tasks = self._wait_for_slots(look_up)
        if not self.tasks:
            return
        launcher = SparkLauncher(spark)
        placement = launcher.place(1, {}, self.wishes.timeout)
        network = self.network.or_else(placement.host, placement.advertise)
        assert network.host is not None
        assert network.advertise is not None
        ports = network.ports or (0, 0)
        try:
            meeting = Meeting(network.host, range(ports[0], ports[1] + 1), self.tasks)
        except OSError as error:
            self.findings.append(Diagnosis("to the driver", "error", str(error), _MEND_LISTENING))
            return
        with meeting, _planted(self.wishes.shared, placement.default_folder) as planted:
            address = network.address(meeting.port)
            shared = {path: content for path, content in planted.values() if content}
            wishes = {"spool": self.wishes.spool, "shared": shared}
            body = probe_body((network.advertise, meeting.port, meeting.key), wishes)
            seen = self._ask(spark, body)
            self._judge(seen, address, planted, str(spark.conf.get("spark.sql.session.timeZone")))

    def _wait_for_slots(self, look_up: Any) -> int:
        assert self.session is not None
        job = self.wishes.job
        promised = promised_slots(look_up, slots_per_executor(look_up) or 1)
        # Without a promise: until no more executors come.
        wanted = promised or _MOST_TASKS
        wait_for_slots(self.session, look_up, wanted, self.wishes.timeout, None, lambda: None)
        there = task_slots(self.session) or 0
        if is_dynamic(look_up):
            wanted = max(there, job.tasks if job else _FEWEST_TASKS)
            there = min(wanted, most_slots(look_up) or wanted)
        if job and there < job.tasks:
            found = too_few(look_up, job.tasks, there)
            mend = "change roles.ROLE.replicas, or Spark's settings"
            self.findings.append(Diagnosis("slots", "error", found, mend))
        elif not there:
            found = f"{look_up('spark.master', '')} has started no executor"
            mend = "look at the cluster manager's log; ask for less memory or fewer cores"
            self.findings.append(Diagnosis("slots", "error", found, mend))
        else:
            self.findings.append(Diagnosis("slots", "ok", f"{there} tasks can run at once"))
        return min(there, _MOST_TASKS)

    def _ask(self, spark: SparkSession, body: Any) -> list[Seen]:
        tag_this_thread(spark, _TAG)
        try:
            frame = spark.range(0, self.tasks, 1, self.tasks)
            rows = frame.mapInArrow(body, SCHEMA).collect()
        finally:
            forget_tag(spark, _TAG)
        return [read(row.found) for row in rows]

    def _judge(
        self,
        seen: Sequence[Seen],
        address: str,
        planted: Mapping[str, tuple[str, str]],
        session_zone: str,
    ) -> None:
        by_executor = {each.attendance.executor: each for each in reversed(seen)}
        names = {
            executor: f"executor {executor} ({each.host.name})"
            for executor, each in sorted(
                by_executor.items(), key=lambda item: (len(item[0]), item[0])
            )
        }
        executors = {names[executor]: by_executor[executor].host for executor in names}
        attendances = {
            f"{names[each.attendance.executor]}, task {each.attendance.task}": each.attendance
            for each in seen
        }
        firsts = {names[executor]: by_executor[executor].attendance for executor in names}
        driver = look(spool=self.wishes.spool)
        hosts = {f"driver ({driver.name})": driver, **executors}
        self.findings += [
            *checks.each_host(hosts),
            *checks.environments(driver, executors, self.wishes.backend),
            *checks.zones(hosts, session_zone),
            *checks.clocks(firsts),
            *checks.to_driver(firsts, address),
            *checks.among_executors(attendances, self.tasks),
        ]
        for folder, (path, content) in planted.items():
            self.findings += (
                checks.shared(folder, executors, path)
                if content
                else [Diagnosis("shared folder", "error", f"{folder}: {path}", _MEND_FOLDER)]
            )
        job = self.wishes.job
        if job and any(role.resources.gpu for role in job.roles.values()):
            self.findings += checks.job_gpus(executors)


def check_cluster(wishes: Wishes) -> list[Diagnosis]:
    """Return what is found on a cluster, within some seconds more than the timeout.

    Raises `InvalidArgument`: A setting can't be used.
    """
    java = machine.java()
    if has_errors([java]):
        return [java]
    check = _Check(wishes)
    try:
        within(wishes.timeout, check.run)
    except TimeoutError:
        found = f"Spark hasn't run {check.tasks or 'the'} tasks after {wishes.timeout:g} s"
        mend = (
            "free slots or start more executors; raise --timeout for a cluster that starts slowly"
        )
        check.findings.append(Diagnosis("spark", "error", f"{found}. {_why(check)}", mend))
    except InvalidArgument:
        raise
    except Exception as error:  # noqa: BLE001  (whatever Spark raises is what was looked for)
        cause = explain(error, has_data=False)[2] or error
        found, _, mend = str(cause).partition("\n")
        mend = mend or "see the log of the driver or the executor"
        check.findings.append(Diagnosis("spark", "error", found, mend))
    finally:
        _end(check)
    return [java, *check.findings]


def _why(check: _Check) -> str:
    session = check.session
    if session is None:
        return "The application itself hasn't started."
    with contextlib.suppress(Exception):  # a JVM that doesn't answer is one reason more
        return within(
            _STOP_SECONDS, lambda: what_runs(session, _TAG, check.tasks, check.wishes.timeout)
        )
    return "Its driver doesn't answer."


def _end(check: _Check) -> None:
    session = check.session
    if session is None:
        return
    for end in (partial(cancel, session, _TAG), session.stop):
        with contextlib.suppress(Exception):  # the JVM ends with this process
            within(_STOP_SECONDS, end)


@contextlib.contextmanager
def _planted(folders: Sequence[str], base: str) -> Iterator[dict[str, tuple[str, str]]]:
    """Put a file into each folder, and remove it at the end.

    Yields the file's path and content for each folder; without a content, why there is none.
    """
    planted: dict[str, tuple[str, str]] = {}
    with contextlib.ExitStack() as stack:
        for folder in folders:
            content = secrets.token_hex(16)
            try:
                whole = absolute_path(folder, base or str(Path.cwd())).rstrip("/")
                path = f"{whole}/.gridflow-doctor-{content[:8]}"
                there = where(path)
                with there.system.open_output_stream(there.path) as file:
                    file.write(content.encode())
                stack.callback(there.system.delete_file, there.path)
                planted[folder] = path, content
            except (OSError, GridflowError) as error:
                planted[folder] = str(error), ""
        yield planted


# The body of the check's Spark tasks.

SCHEMA = "found string"


@dataclass(frozen=True)
class Seen:
    """What a task has seen: its host, and its connections."""

    host: Host
    attendance: Attendance


def probe_body(meeting: tuple[str, int, bytes], wishes: Mapping[str, Any]) -> Any:
    """Return the stage's function, which holds only plain values; see `probe`."""
    from gridflow._launch.spark.bodies import importing

    return importing("gridflow._doctor.cluster", "probe", meeting, wishes)


def probe(
    meeting: tuple[str, int, bytes], wishes: Mapping[str, Any], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Look around in a task; yield one row with `Seen` as JSON.

    `meeting`: Host, port and key.
    `wishes`: The arguments of `look`.
    `batches`: Read and ignored.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None
    above = executor_above(os.getpid())
    name = above.name if above else "driver"
    attendance = attend(*meeting, context.partitionId(), name)
    seen = Seen(look(**wishes), attendance)
    yield pa.RecordBatch.from_pydict({"found": [msgspec.json.encode(seen).decode()]})


def read(found: str) -> Seen:
    """Read a task's row back."""
    return msgspec.json.decode(found, type=Seen)
