"""What a check found, and how findings are printed."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gridflow._spec.printable import printable
from gridflow.deploy.inside.terminal import paint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

Level: TypeAlias = Literal["ok", "warning", "error"]
_COLOURS: Final[Mapping[Level, str]] = {"ok": "green", "warning": "yellow", "error": "red"}


@dataclass(frozen=True)
class Diagnosis:
    """What one check found.

    `check`: Its name, like ``java``.
    `level` ({"ok", "warning", "error"}): With an error, jobs of some kind fail.
    `mend`: What to do about it; empty if it is ok.
    """

    check: str
    level: Level
    found: str
    mend: str = ""


def by_host(check: str, each: Mapping[str, Diagnosis]) -> list[Diagnosis]:
    """Return a check's findings on several hosts, with the hosts that share one named together."""
    hosts: dict[Diagnosis, list[str]] = {}
    for host, finding in each.items():
        hosts.setdefault(finding, []).append(host)
    if len(each) == 1 or len(hosts) == 1:
        return [dataclasses.replace(finding, check=check) for finding in hosts]
    return [
        dataclasses.replace(finding, check=check, found=f"{finding.found} on {', '.join(where)}")
        for finding, where in hosts.items()
    ]


def has_errors(findings: Iterable[Diagnosis]) -> bool:
    return any(finding.level == "error" for finding in findings)


def to_json(findings: Sequence[Diagnosis]) -> str:
    """Return the findings as JSON, for programs."""
    record = {
        "ok": not has_errors(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return json.dumps(record, indent=2) + "\n"


def write(findings: Sequence[Diagnosis], stream: TextIO) -> None:
    """Write the findings, one or two lines each, and how many there are of each level."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        level = paint(f"{finding.level:<7}", _COLOURS[finding.level], stream)
        stream.write(f"{level}  {finding.check:<{width}}  {printable(_line(finding.found))}\n")
        if finding.mend:
            stream.write(f"{'':<7}  {'':<{width}}  → {printable(_line(finding.mend))}\n")
    count = Counter(finding.level for finding in findings)
    words = [
        f"{count[level]} {level}{'' if level == 'ok' or count[level] == 1 else 's'}"
        for level in _COLOURS
    ]
    stream.write(f"\n{', '.join(words)}\n")


def _line(text: str) -> str:
    return " ".join(text.split())
