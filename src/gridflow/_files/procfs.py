"""The kernel's information about processes and the host: see proc(5)."""

from __future__ import annotations

from pathlib import Path

_STATE, _PARENT, _BEGAN = 0, 1, 19  # fields 3, 4 and 22, counted behind the name
_PRESSURE = Path("/proc/pressure/cpu")


def began(pid: int) -> int:
    """Return when a process started, in ticks since the machine did; 0 if it has ended."""
    fields = behind_name(pid)
    return 0 if not fields or fields[_STATE] in {"Z", "X"} else int(fields[_BEGAN])


def is_stopped(pid: int) -> bool:
    """Return whether a process is frozen (SIGSTOP, or a debugger)."""
    fields = behind_name(pid)
    return bool(fields) and fields[_STATE] in {"T", "t"}


def is_below(pid: int, ancestor: int) -> bool:
    """Return whether a process is a descendant of another."""
    while pid > 1 and pid != ancestor:
        pid = parent(pid)
    return pid == ancestor


def umask() -> int:
    """Return this process's umask, which ``os.umask`` could return only by changing it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return int(status.partition("Umask:")[2].split()[0], 8)


def waited_for_processors() -> float | None:
    """Return for how many seconds in total a task of this host was waiting for a processor.

    None if the kernel was built or started without this.
    """
    try:
        some = _PRESSURE.read_text(encoding="ascii").partition("total=")[2].split()
        return int(some[0]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


def parent(pid: int) -> int:
    """Return the parent of a process; 0 if the process doesn't exist."""
    fields = behind_name(pid)
    return int(fields[_PARENT]) if fields else 0


def command_line(pid: int) -> list[bytes]:
    """Return the command line of a process; empty if the process doesn't exist."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []


def behind_name(pid: int) -> list[str]:
    """Return the fields after the name, which may contain anything; empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
