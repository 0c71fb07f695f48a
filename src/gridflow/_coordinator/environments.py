"""The tasks' Python environments, compared before any training process starts. Pure.

Each agent reports its environment when it registers, so this needs no extra Spark job.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from gridflow._spec import backends
from gridflow._wire.failures import TaskFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._spec.cluster import Task

_TITLES: Final = {"keras": "Keras", **{n: backends.of(n).title for n in backends.BACKENDS}}
_CURE: Final = (
    "ship one environment with spark.archives ('gridflow env pack' makes it), or install the same "
    "versions everywhere"
)
#: What an agent reports: its host, and the versions there.
Found = tuple[str, "Mapping[str, str]"]


def environment_failures(
    members: Mapping[Task, Found],
    generation: int,
    *,
    needs: Sequence[str],
    driver: Mapping[str, str],
) -> tuple[TaskFailure, ...]:
    """Return every task whose environment doesn't match, and why.

    Missing packages come first, then gridflow versions that differ from the driver's, then other
    differences between tasks.

    `members`: Host and versions of each task.
    `needs`: Packages that every task needs.
    `driver`: The driver's versions. It may lack packages that only the tasks need.
    """
    found = _missing(members, needs) or _foreign(members, driver["gridflow"])
    for task, texts in ({} if found else _different(members, needs, driver)).items():
        found[task] = ("; ".join(texts), f"all executors need the same environment: {_CURE}")
    return tuple(
        TaskFailure(str(task), members[task][0], "environment", text, generation, hint=hint)
        for task, (text, hint) in found.items()
    )


def _missing(members: Mapping[Task, Found], needs: Sequence[str]) -> dict[Task, tuple[str, str]]:
    found = {}
    for task, (_, versions) in members.items():
        missing = [_TITLES[name] for name in needs if not versions.get(name)]
        if missing:
            python = versions.get("executable", "its Python")
            verb = "is" if len(missing) == 1 else "are"
            text = f"{' and '.join(missing)} {verb} not installed for {python}"
            hint = f"pip install 'gridflow[{needs[0]}]' in the Python that the executors run "
            hint += "(PYSPARK_PYTHON, spark.pyspark.python or spark.archives)"
            found[task] = text, hint
    return found


def _foreign(members: Mapping[Task, Found], ours: str) -> dict[Task, tuple[str, str]]:
    found = {}
    for task, (_, versions) in members.items():
        theirs = versions.get("gridflow", "")
        if theirs != ours:
            text = f"it has gridflow {theirs or '(an older one)'}, but the driver has {ours}"
            found[task] = text, f"driver and tasks need the same version: {_CURE}"
    return found


def _different(
    members: Mapping[Task, Found], needs: Sequence[str], driver: Mapping[str, str]
) -> dict[Task, list[str]]:
    """Return what differs from the driver's version, or from that of most tasks."""
    found: dict[Task, list[str]] = {}
    for name in dict.fromkeys((*(needs or ("tensorflow",)), "keras", "python")):
        there = {task: versions.get(name, "") for task, (_, versions) in members.items()}
        kinds = {task: _kind(name, version) for task, version in there.items()}
        usual = Counter(kinds.values()).most_common(1)[0][0]
        if _kind(name, driver.get(name, "")) in kinds.values():
            usual = _kind(name, driver[name])
        example = next(task for task, kind in kinds.items() if kind == usual)
        for task, kind in kinds.items():
            if kind != usual:
                found.setdefault(task, []).append(
                    f"it has {name} {there[task] or '(none)'}, but {example} has "
                    f"{there[example] or '(none)'} and the driver {driver.get(name) or '(none)'}"
                )
    return found


def _kind(name: str, version: str) -> str:
    """Return the part of a version that must match: Python's patch releases may differ."""
    return version.rpartition(".")[0] if name == "python" else version
