"""Launchers by name: gridflow's own, and those of other packages.

A package adds one with an entry point of the group ``gridflow.launchers``. Its class implements
`gridflow._launch.base.Launcher` and passes `gridflow.testing.launchers.LauncherSuite`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.program import load
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from gridflow._launch.base import Launcher

GROUP: Final = "gridflow.launchers"
_OURS: Final = (
    EntryPoint("local", "gridflow._launch.local:LocalLauncher", GROUP),
    EntryPoint("spark", "gridflow._launch.spark.launcher:SparkLauncher", GROUP),
)


def detached(launcher: Launcher) -> Launcher:
    """Return a launcher whose agents release their slots.

    Raises `InvalidArgument`: It has no slots to release.
    """
    make = getattr(launcher, "detached", None)
    if make is None:
        raise InvalidArgument(
            "LaunchOptions(detached=True) releases Spark's task slots for the tasks that feed the "
            f"job, but {type(launcher).__name__} has none. Leave it out: feeding works without it."
        )
    return make()  # type: ignore[no-any-return]


def replacing(launcher: Launcher) -> Launcher:
    """Return a launcher whose agents go on when one of them is lost, if it can be told so."""
    make = getattr(launcher, "replacing", None)
    return launcher if make is None else make()


def launcher_of(given: Any) -> Launcher | None:
    """Return the launcher that a user gave, as an object or by name; None if not given.

    Raises `InvalidArgument`: The name is unknown, or the object isn't a launcher.
    """
    if given is None:
        return None
    if isinstance(given, str):
        given = load("launcher", given, GROUP, _OURS)()
    missing = [name for name in ("for_job", "place", "launch") if not hasattr(given, name)]
    if missing or isinstance(given, type):
        raise InvalidArgument(
            "launcher= must be a name or an object such as LocalLauncher() or "
            "SparkLauncher(spark); got "
            f"{given!r}."
        )
    return given  # type: ignore[no-any-return]
