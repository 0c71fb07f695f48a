"""Launchers, observers and targets by name: gridflow's own, and those of other packages.

A package adds one with an entry point that names its class.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from gridflow.errors import GridflowError, InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence


def brought(group: str, ours: Sequence[EntryPoint] = ()) -> dict[str, EntryPoint]:
    """Return all of a group by name, gridflow's own first; no package replaces one of those."""
    own = {each.name: each for each in ours}
    theirs = {each.name: each for each in entry_points(group=group)}
    return own | {name: theirs[name] for name in sorted(theirs.keys() - own.keys())}


def load(kind: str, name: str, group: str, ours: Sequence[EntryPoint] = ()) -> Any:
    """Return what a name stands for, as a rule a class.

    `kind`: What messages call it, such as ``launcher``.
    Raises `InvalidArgument`: The name is unknown, or the other package doesn't work.
    """
    # Whoever names one of ours needn't wait until all packages have been looked through.
    known = {each.name: each for each in ours}
    known = known if name in known else brought(group, ours)
    if name not in known:
        there = ", ".join(sorted(known)) or "no package brings any"
        raise InvalidArgument(
            f"unknown {kind} {name!r}; supported: {there}.{did_you_mean(name, known)}"
        )
    try:
        return known[name].load()
    except GridflowError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InvalidArgument(
            f"the {kind} {name!r} ({known[name].value}) can't be used: {why}"
        ) from error
