"""A driver that runs one script after the other in one Java process, as a notebook would.

Each line of its input is a JSON object with a script and variables of its environment; each line of
its output is a JSON string, what that script printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback

from pyspark import SparkContext


def run(script, environment):
    """Run a script, end its session, and return what it printed."""
    before = dict(os.environ)
    os.environ.update(environment)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(script, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
        from pyspark.sql import SparkSession

        # The active one is Java's by thread, and a script may leave another connection behind.
        if session := SparkSession._instantiatedSession:
            session.stop()
    os.environ.clear()
    os.environ.update(before)
    return printed.getvalue()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    # Java keeps the settings that it is started with: none, instead of the first script's.
    SparkContext._ensure_initialized()
    for line in sys.stdin:
        answers.write(json.dumps(run(**json.loads(line))) + "\n")
        answers.flush()
