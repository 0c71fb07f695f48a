"""Code that runs in a process of its own: it imports or patches Keras, or cuts the network."""

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from suite.waiting import patience

#: For a program that imports this suite.
WITH_SUITE = {
    "PYTHONPATH": os.pathsep.join(
        filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
}


def in_new_network(source):
    """Return what some code prints; it may do anything to the network, which is its own."""
    if subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode:
        pytest.skip("only root may have a network of its own")
    return in_new_process(source, before=("unshare", "-n"))


def in_new_process(source, backend="tensorflow", before=()):
    """Return what some code prints; `before`: a command that runs it."""
    ended = subprocess.run(
        [*before, sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.strip()


def skip_without(package):
    """Skip a test of what isn't installed. The tests' own process doesn't import it.

    That of another backend would stay beside TensorFlow in tests that come later.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} isn't installed")
