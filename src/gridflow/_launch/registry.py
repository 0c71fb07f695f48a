"""Launchers by name: those of gridflow, and those that other packages bring.

A package brings one by an entry point of the group ``gridflow.launchers``; its class follows
`gridflow._launch.base.Launcher` and passes `gridflow.testing.launchers.LauncherSuite`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from gridflow._launch.base import Launcher

GROUP: Final = "gridflow.launchers"
_OURS: Final = (
    EntryPoint("local", "gridflow._launch.local:LocalLauncher", GROUP),
    EntryPoint("spark", "gridflow._launch.spark.launcher:SparkLauncher", GROUP),
)


def detached(launcher: Launcher) -> Launcher:
    """Return one whose agents give their slots back.

    Raises
    ------
    InvalidArgument
        It has no slots to give back.
    """
    make = getattr(launcher, "detached", None)
    if make is None:
        raise InvalidArgument(
            "LaunchOptions(detached=True) gives task slots back to Spark, for the tasks that feed "
            f"the job; {type(launcher).__name__} has none. Leave it out: rows can be fed without."
        )
    return make()  # type: ignore[no-any-return]


def launcher_of(given: Any) -> Launcher | None:
    """Return the launcher that a user gave: as an object, by its name, or not at all.

    Raises
    ------
    InvalidArgument
        There is none of that name, or the object is no launcher.
    """
    if given is None:
        return None
    if isinstance(given, str):
        known = {each.name: each for each in (*entry_points(group=GROUP), *_OURS)}
        if given not in known:
            raise InvalidArgument(
                f"there is no launcher {given!r}; there are {', '.join(sorted(known))}."
                f"{did_you_mean(given, known)}"
            )
        given = known[given].load()()
    missing = [name for name in ("for_job", "place", "launch") if not hasattr(given, name)]
    if missing or isinstance(given, type):
        raise InvalidArgument(
            "launcher= must be a name or an object such as LocalLauncher() or "
            "SparkLauncher(spark); got "
            f"{given!r}."
        )
    return given  # type: ignore[no-any-return]
