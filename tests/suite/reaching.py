"""Which of gridflow's modules a process runs functions of, for the test file that it works for.

`reach` has each Python process of a run import this before anything else. coverage.py traces; what
it saw is written when the process ends, or when another test file begins.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import uuid
from pathlib import Path

import coverage

#: As in suite.reach, which pytest insists on importing itself.
FOLDER, TEST = "GRIDFLOW_TEST_REACH", "GRIDFLOW_TEST_FILE"
_end_process = os._exit
_product = Path(__file__).parents[2] / "src" / "gridflow"
_tracer = coverage.Coverage(
    data_file=None, config_file=False, include=[f"{_product}/*"], messages=False
)
_tracer.set_option("run:disable_warnings", ["no-data-collected"])


def write():
    """Write the lines that have run since the last call; coverage goes on."""
    data = _tracer.get_data()
    lines = {
        str(Path(file).relative_to(_product)): sorted(data.lines(file))
        for file in data.measured_files()
    }
    if lines:
        path = Path(os.environ[FOLDER], f"{os.getpid()}-{uuid.uuid4().hex}.part")
        path.write_text(json.dumps({"test": os.environ.get(TEST), "lines": lines}))
        path.rename(path.with_suffix(".json"))
    _begin()


def _begin() -> None:
    """Forget what has run, and go on; a tracer that goes on by itself writes into what is gone."""
    _tracer.stop()
    _tracer.erase()
    _tracer.start()


def _exit(code):
    if threading.current_thread() is threading.main_thread():
        try:
            write()
        except BaseException:  # the process ends as it was told
            _end_process(code)
    _end_process(code)


_tracer.start()
os._exit = _exit
os.register_at_fork(after_in_child=_begin)
atexit.register(write)
