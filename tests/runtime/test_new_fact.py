"""A fact that a rank tells the driver touches few files: its message, both ends, and a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gridflow
from suite.waiting import LONGEST

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]

#: At most so many files, with a test.
MOST = 6
#: What somebody writes who wants to know how much memory each task has had at most: in which file,
#: before which line, and what.
NEW = (
    (
        "_wire/reports.py",
        "RELAYED: Final = (",
        '''
@dataclass(frozen=True)
class PeakMemory(OfTraining):
    """How many bytes the process has had at most."""

    kind: ClassVar[str] = "peak_memory"
    most: int
''',
    ),
    ("_wire/reports.py", "    *(Ready, Joined, FeedingStopped", "    PeakMemory,"),
    (
        "_training/runtime.py",
        "        self._tell_accounts()\n        self.channel.send(replace(",
        """
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        self.channel.send(reports.PeakMemory(1024 * used.ru_maxrss))
""",
    ),
    (
        "_coordinator/notes.py",
        "            case reports.DataServed():\n",
        """
            case reports.PeakMemory():
                self.memory[str(self._tasks[rank])] = report.most
""",
    ),
    ("_coordinator/notes.py", "        self.ledger = Ledger()\n", "        self.memory = {}"),
    (
        "_coordinator/progress.py",
        "    replaced: tuple[",
        "    memory: dict[str, int] | None = None",
    ),
    ("_coordinator/loop.py", "            epochs=len(history)", "memory=self._desk.notes.memory,"),
)
SCRIPT = """
from gridflow import LaunchOptions, LocalLauncher, TensorflowDistributor

options = {"logs": "none", "progress": False, "launch_options": LaunchOptions(warm_seconds=0)}
handle = TensorflowDistributor(2, "none", launcher=LocalLauncher(), **options).start(lambda: None)
handle.result()
memory = handle.report.memory
assert sorted(memory) == ["worker:0", "worker:1"], memory
assert min(memory.values()) > 50 << 20, memory
"""


def test_a_new_fact_touches_few_files_and_arrives(tmp_path):
    assert len({file for file, _, _ in NEW}) + 1 <= MOST
    package = tmp_path / "gridflow"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(gridflow.__file__).parent, package, ignore=ignored)
    for file, place, text in NEW:
        content = (package / file).read_text()
        assert content.count(place) == 1, file
        (package / file).write_text(content.replace(place, f"{text}\n{place}"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", SCRIPT]
    subprocess.run(words, env=environment, cwd=tmp_path, check=True, timeout=LONGEST)
