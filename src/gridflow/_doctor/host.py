"""What can be seen on one host: the driver's, or an executor's. Nothing is judged here."""

from __future__ import annotations

import importlib.metadata
import os
import queue
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping  # noqa: TC003  (msgspec reads the fields' types)
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from packaging.requirements import Requirement

from gridflow._agent.environment import describe
from gridflow._agent.folder import local_folder
from gridflow._files.systems import where
from gridflow._gpu import devices
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  (where it is mounted)
#: Of a file system, which may be a network's.
_FILE_SECONDS: Final = 20.0
_SHOWN: Final = ("pyspark", "pyarrow", "numpy", "pandas")


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """A requirement of gridflow that an installed package doesn't meet, or that isn't installed.

    `package`, `version`, `needed`: The version is empty if it isn't installed.
    `extra`: Of gridflow, if the package is optional.
    `is_older`: Whether the version is below the range, not above it.
    """

    package: str
    version: str
    needed: str
    extra: str = ""
    is_older: bool = False


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host, as seen by a Python process there.

    `versions`: Those of `gridflow._agent.environment.describe`, and of pyspark, pyarrow, numpy and
        pandas.
    `zone`: The time zone's name and its distance from UTC.
    `open_files`: The soft limit.
    `shared_memory`: Free bytes in ``/dev/shm``; None without it.
    `spool`: The folder of the rows.
    `spool_free`: Free bytes; None if the folder can't be written to.
    `gpu_problem`: Why a GPU's device file exists and ``nvidia-smi`` doesn't answer.
    `shared`: What is wrong with each shared folder; empty: the driver's file is there.
    """

    name: str
    versions: Mapping[str, str]
    unmet: tuple[Unmet, ...] = ()
    zone: str = ""
    open_files: int = 0
    shared_memory: int | None = None
    spool: str = ""
    spool_free: int | None = None
    gpus: tuple[str, ...] = ()
    gpu_problem: str = ""
    shared: Mapping[str, str] = field(default_factory=dict)


def look(*, spool: str | None = None, shared: Mapping[str, str] | None = None) -> Host:
    """Look at this host.

    `spool`: The folder of the rows; by default the one that gridflow would use.
    `shared`: From the path of a file in each shared folder to its content.
    """
    folder = spool or local_folder() or tempfile.gettempdir()
    gpus, gpu_problem = _gpus()
    return Host(
        name=socket.gethostname(),
        versions={**describe(), **{name: _installed(name) for name in _SHOWN}},
        unmet=_unmet(),
        zone=time.strftime("%Z (UTC%z)"),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shared_memory=shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None,
        spool=folder,
        spool_free=_free(folder),
        gpus=gpus,
        gpu_problem=gpu_problem,
        shared={path: _read(path, content) for path, content in (shared or {}).items()},
    )


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _unmet() -> tuple[Unmet, ...]:
    """Compare what is installed with the ranges of gridflow's own requirements."""
    found: dict[str, Unmet] = {}
    for text in importlib.metadata.requires("gridflow") or ():
        requirement = Requirement(text)
        extra = str(requirement.marker).rpartition('"')[0].rpartition('"')[2]
        extra = extra if requirement.marker else ""
        version = _installed(requirement.name)
        missing = not version and not extra
        if missing or (version and not requirement.specifier.contains(version, prereleases=True)):
            lower = [each for each in requirement.specifier if each.operator in {">=", "=="}]
            found[requirement.name] = Unmet(
                package=requirement.name,
                version=version,
                needed=str(requirement.specifier),
                extra=extra,
                is_older=not all(each.contains(version or "0", prereleases=True) for each in lower),
            )
    return tuple(found.values())


def _free(folder: str) -> int | None:
    def measure() -> int:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"gridflow doctor")
        return shutil.disk_usage(folder).free

    try:
        return within(_FILE_SECONDS, measure)
    except OSError:  # also a TimeoutError
        return None


def _gpus() -> tuple[tuple[str, ...], str]:
    try:
        found = devices.visible(devices.find(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    except devices.NoAnswer as error:
        return (), str(error) if devices.lie_idle() else ""
    return tuple(f"GPU {each.index} ({each.memory / 1024:.0f} GiB)" for each in found), ""


def _read(path: str, content: str) -> str:
    """Return why a shared file isn't what the driver wrote; empty if it is."""

    def read() -> str:
        there = where(path)
        with there.system.open_input_stream(there.path) as file:
            return str(file.read().decode())

    try:
        found = within(_FILE_SECONDS, read)
    except (OSError, GridflowError, ValueError) as error:
        return f"the driver's file isn't there: {type(error).__name__}: {error}"
    return "" if found == content else "another file is there"


# Calls that may never return: name lookups, network file systems, a cluster without room.

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """Return what a function returns within some seconds.

    A call that takes longer is left to itself, in a daemon thread.

    Raises `TimeoutError`: It takes longer.
    Raises `Exception`: Whatever the function raises.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            answers.put((function(), None))
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            answers.put((None, error))

    threading.Thread(target=call, name="gridflow-doctor", daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # None only where the function returned it
