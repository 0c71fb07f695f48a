"""Code that runs in a process of its own, as it imports or patches Keras."""

import os
import subprocess
import sys
import textwrap

from suite.waiting import patience


def in_new_process(source, backend="tensorflow"):
    """Return what some code prints."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.strip()
