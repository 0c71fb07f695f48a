"""What the kernel tells of a process: see proc(5) for the fields of ``/proc/PID/stat``."""

from __future__ import annotations

from pathlib import Path

_STATE, _BEGAN = 0, 19  # fields 3 and 22, counted behind the name


def began(pid: int) -> int:
    """Return when a process started, in ticks since the machine did; 0 if it has ended."""
    fields = behind_name(pid)
    return 0 if not fields or fields[_STATE] in {"Z", "X"} else int(fields[_BEGAN])


def is_stopped(pid: int) -> bool:
    """Return whether a process is frozen (SIGSTOP, or a debugger)."""
    fields = behind_name(pid)
    return bool(fields) and fields[_STATE] in {"T", "t"}


def behind_name(pid: int) -> list[str]:
    """Return the fields behind the name, which may hold anything; none when there is no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
