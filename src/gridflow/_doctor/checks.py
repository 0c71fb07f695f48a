"""Judges what was seen on one host or several: each check in a function. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gridflow._coordinator.environments import environment_failures
from gridflow._doctor.findings import Diagnosis, by_host
from gridflow._spec import backends
from gridflow._spec.cluster import WORKER, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow._doctor.findings import Level
    from gridflow._doctor.host import Host
    from gridflow._doctor.meeting import Attendance

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
_LITTLE_DISK: Final = 10 * _GIB
_NO_DISK: Final = _GIB
#: Docker's default is 64 MiB.
_LITTLE_SHARED_MEMORY: Final = 256 * _MIB
#: Linux's usual soft limit; each task of a job is a few connections of the driver's.
_FEW_FILES: Final = 1024
#: Certificates of a job are valid from an hour before it starts; logs are merged by their times.
_CLOCKS_DIFFER: Final = 1.0
_CLOCKS_TOO_FAR: Final = 1800.0


def each_host(hosts: Mapping[str, Host]) -> list[Diagnosis]:
    """Return what is found on each host alone."""
    checks: dict[str, Callable[[Host], Diagnosis]] = {
        "python": _python,
        "packages": _packages,
        "spool": _spool,
        "shared memory": _shared_memory,
        "open files": _open_files,
        "gpus": _gpus,
    }
    return [
        finding
        for name, check in checks.items()
        for finding in by_host(name, {where: check(host) for where, host in hosts.items()})
    ]


def _python(host: Host) -> Diagnosis:
    return Diagnosis("", "ok", f"Python {host.versions['python']}")


def _packages(host: Host) -> Diagnosis:
    installed = [
        f"{name} {version}"
        for name, version in host.versions.items()
        if version and name not in {"python", "executable"}
    ]
    if not host.unmet:
        return Diagnosis("", "ok", ", ".join(installed))
    words = [
        f"{each.package} {each.version or 'is missing'} (needed: {each.needed})"
        for each in host.unmet
    ]
    must = any(not each.extra or each.is_older for each in host.unmet)
    names = " ".join(f"'{each.package}{each.needed}'" for each in host.unmet)
    return Diagnosis(
        "", "error" if must else "warning", ", ".join(words), f"pip install {names} in that Python"
    )


def _spool(host: Host) -> Diagnosis:
    instead = "use Spool(dir=…) for a folder on a larger disk; on executors, spark.local.dir"
    if host.spool_free is None:
        return Diagnosis("", "error", f"{host.spool} can't be written to", instead)
    if host.spool_free >= _LITTLE_DISK:  # the same words for all hosts
        return Diagnosis("", "ok", f"{_LITTLE_DISK // _GIB} GiB or more free for the rows")
    found = f"{host.spool_free / _GIB:.1f} GiB free in {host.spool} for the rows"
    return Diagnosis("", "error" if host.spool_free < _NO_DISK else "warning", found, instead)


def _shared_memory(host: Host) -> Diagnosis:
    raise_it = "raise it: docker run --shm-size, shared_memory: in job.yaml, or remount /dev/shm"
    if host.shared_memory is None:
        return Diagnosis("", "warning", "there is no /dev/shm, which NCCL needs", raise_it)
    if host.shared_memory >= _LITTLE_SHARED_MEMORY:
        least = _LITTLE_SHARED_MEMORY // _MIB
        return Diagnosis("", "ok", f"{least} MiB or more free in /dev/shm")
    found = f"{host.shared_memory // _MIB} MiB free in /dev/shm, which NCCL uses between GPUs"
    return Diagnosis("", "warning", found, raise_it)


def _open_files(host: Host) -> Diagnosis:
    if host.open_files < 0 or host.open_files >= _FEW_FILES:  # -1 is no limit
        return Diagnosis("", "ok", f"a process may have {_FEW_FILES} or more files open")
    found = f"a process may have only {host.open_files} files open"
    return Diagnosis(
        "", "warning", found, f"ulimit -n {_FEW_FILES}, or LimitNOFILE= of its service"
    )


def _gpus(host: Host) -> Diagnosis:
    if host.gpu_problem:
        mend = "install the driver's nvidia-smi there, or give the container access to it"
        return Diagnosis("", "error", f"there are GPUs, but {host.gpu_problem}", mend)
    return Diagnosis("", "ok", ", ".join(host.gpus) or "no GPUs")


def backend(where: str, host: Host, name: str) -> list[Diagnosis]:
    """Return a finding if a host lacks the packages of a backend."""
    missing = [each for each in backends.of(name).packages if not host.versions.get(each)]
    if not missing:
        return []
    found = f"{where} has no {' and no '.join(missing)}, so no task can train here"
    return [Diagnosis("backend", "warning", found, f"pip install 'gridflow[{name}]'")]


def environments(driver: Host, executors: Mapping[str, Host], name: str) -> list[Diagnosis]:
    """Return where executors' versions differ, as a job would find it."""
    names = dict(enumerate(executors))
    failures = environment_failures(
        {
            Task(WORKER, number): (executors[where].name, executors[where].versions)
            for number, where in names.items()
        },
        0,
        needs=backends.of(name).packages,
        driver=driver.versions,
    )
    if not failures:
        found = "driver and executors have the same Python and packages"
        return [Diagnosis("environments", "ok", found)]
    return [
        Diagnosis("environments", "error", f"{names[_index(each.task)]}: {each.summary}", each.hint)
        for each in failures
    ]


def _index(task: str) -> int:
    return Task.parse(task).index


def zones(hosts: Mapping[str, Host], session: str) -> list[Diagnosis]:
    """Return whether hosts have different time zones."""
    if len({host.zone for host in hosts.values()}) == 1:
        zone = next(iter(hosts.values())).zone
        return [Diagnosis("time zone", "ok", f"{zone} everywhere; Spark's session: {session}")]
    each = {where: Diagnosis("", "warning", host.zone) for where, host in hosts.items()}
    found = "; ".join(finding.found for finding in by_host("", each))
    mend = "set TZ to the same zone on all hosts; Python functions see timestamps in their host's"
    return [Diagnosis("time zone", "warning", found, mend)]


def clocks(attendances: Mapping[str, Attendance]) -> list[Diagnosis]:
    """Return how far the executors' clocks are from the driver's."""
    each = {where: a for where, a in attendances.items() if a.ahead is not None}
    return by_host("clock", {where: _clock(a) for where, a in each.items()}) if each else []


def _clock(attendance: Attendance) -> Diagnosis:
    assert attendance.ahead is not None
    assert attendance.unsure is not None
    off = max(0.0, abs(attendance.ahead) - attendance.unsure)
    if off < _CLOCKS_DIFFER:
        return Diagnosis("", "ok", f"less than {_CLOCKS_DIFFER:g} s from the driver's")
    side = "ahead of" if attendance.ahead > 0 else "behind"
    level: Level = "error" if off > _CLOCKS_TOO_FAR else "warning"
    mend = "synchronise the hosts' clocks with NTP (chrony, systemd-timesyncd)"
    return Diagnosis("", level, f"{off:,.0f} s {side} the driver's", mend)


def to_driver(attendances: Mapping[str, Attendance], address: str) -> list[Diagnosis]:
    """Return who can't connect to the driver."""
    mend = (
        "let executors connect to that address: spark.driver.host, Network(advertise=…), and with "
        "a firewall Network(port=…); see docs/troubleshooting.md, 'The network'"
    )
    each = {
        where: Diagnosis("", "error", f"can't connect to {address}: {a.driver}", mend)
        if a.driver
        else Diagnosis("", "ok", f"executors connect to the driver at {address}")
        for where, a in attendances.items()
    }
    return by_host("to the driver", each)


def among_executors(attendances: Mapping[str, Attendance], tasks: int) -> list[Diagnosis]:
    """Return which executors can't connect to each other."""
    check = "executors"
    there = [a for a in attendances.values() if not a.driver]
    if not there:
        return []
    blocked = [
        f"{where} to {address}: {why}"
        for where, a in attendances.items()
        for address, why in a.peers.items()
        if why
    ]
    if blocked:
        mend = "let executors connect to each other on all ports (firewall, network policy)"
        return [Diagnosis(check, "error", "; ".join(blocked), mend)]
    met = min(a.met for a in there)
    if met < tasks:
        found = f"only {met} of {tasks} tasks ran at the same time, so not all could be tried"
        return [Diagnosis(check, "warning", found, "try again when the cluster is less busy")]
    names = {a.executor for a in there}
    if len(names) == 1:
        return [Diagnosis(check, "ok", "one executor: there is none to connect to")]
    return [Diagnosis(check, "ok", f"all {len(names)} executors connect to each other")]


def shared(folder: str, hosts: Mapping[str, Host], path: str) -> list[Diagnosis]:
    """Return who doesn't see a shared folder."""
    mend = f"mount {folder} on every host, or use a path on HDFS or in a bucket"

    def seen(host: Host) -> Diagnosis:
        problem = host.shared[path]
        if problem:
            return Diagnosis("", "error", f"{folder}: {problem}", mend)
        return Diagnosis("", "ok", f"{folder} is the driver's everywhere")

    return by_host("shared folder", {where: seen(host) for where, host in hosts.items()})


def job_gpus(hosts: Mapping[str, Host]) -> list[Diagnosis]:
    """Return the executors without GPUs, for a job whose tasks need some."""
    without = [where for where, host in hosts.items() if not host.gpus]
    if not without:
        return []
    found = f"the job's tasks need GPUs, and there are none on {', '.join(without)}"
    mend = "request hosts with GPUs, or set resources.gpu: 0"
    return [Diagnosis("job's gpus", "error", found, mend)]
