"""The guide's files and commands, and who runs them: a client of YARN, a session."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np
import psutil
import pyspark
import pytest

from gridflow._files import transfer
from gridflow._files.systems import where
from suite.commands import words_of
from suite.stores import fetch_hadoop
from suite.waiting import patience, wait_for

MODEL = "hdfs://cluster/user/tests/models/rows.keras"
CHECKPOINTS = "hdfs://cluster/user/tests/checkpoints/rows"
ROOT = Path(__file__).parents[2]
_JARS = Path(pyspark.__file__).parent / "jars"
#: What the guide leaves to the cluster's administrators, and what makes the tests cheaper.
_OWN = """
spark.yarn.jars                     local:{jars}/*
spark.pyspark.python                {python}
spark.yarn.am.memory                300m
spark.driver.memory                 512m
spark.driver.memoryOverhead         1g
spark.ui.enabled                    false
spark.sql.shuffle.partitions        2
spark.executorEnv.TMPDIR            {scratch}
spark.executorEnv.GRIDFLOW_TEST_MARK  {mark}
spark.yarn.appMasterEnv.GRIDFLOW_TEST_MARK  {mark}
"""


def blocks(language):
    """Return the guide's blocks of a language, in their order."""
    text = (ROOT / "docs" / "yarn.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def check_the_model_in_hdfs(folder):
    """Look for the guide's model: it has learned y = 2x + 1, as far as five epochs bring it."""
    import keras

    transfer.fetch(where(MODEL), folder / "rows.keras")
    model = keras.saving.load_model(folder / "rows.keras")
    predicted = model.predict(np.asarray([[0.0], [0.5], [1.0]]), verbose=0)[:, 0]
    np.testing.assert_allclose(predicted, [1, 2, 3], atol=0.5)
    transfer.delete(where(MODEL))
    assert transfer.names_in(where(CHECKPOINTS)) == []  # a run that succeeds has no use for them


def executors_of(yarn, node):
    """Return the executors that run on a node."""
    return [
        process
        for process in yarn.processes(node)
        if (words := words_of(process))
        and words[0].endswith("java")
        and any("YarnCoarseGrainedExecutorBackend" in word for word in words)
    ]


def has_executors_alone(yarn, node):
    """Return whether a node runs executors, and not what the application itself lives in."""
    words = [word for process in yarn.processes(node) for word in words_of(process)]
    has_master = any("deploy.yarn.ExecutorLauncher" in word for word in words)
    return bool(executors_of(yarn, node)) and not has_master


class Client:
    """A machine that submits: the guide's files, Hadoop's command, and an environment for both."""

    def __init__(self, yarn, folder, scratch):
        self.yarn, self.folder = yarn, folder
        (self.program,) = blocks("python")
        settings, self.gpu_settings = blocks("properties")
        (folder / "train.py").write_text(self.program)
        (script,) = blocks("bash")
        (folder / "getGpusResources.sh").write_text(script)
        (folder / "getGpusResources.sh").chmod(0o755)
        own = {"jars": _JARS, "python": sys.executable, "scratch": scratch}
        mark = os.environ["GRIDFLOW_TEST_MARK"]
        (folder / "spark-defaults.conf").write_text(settings + _OWN.format(**own, mark=mark))
        self._make_hdfs_command(folder / "hdfs")
        binaries = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{binaries}{os.pathsep}{os.environ['PATH']}",
            "HADOOP_CONF_DIR": str(yarn.conf),
            "HADOOP_USER_NAME": yarn.user,
            "SPARK_CONF_DIR": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def _make_hdfs_command(self, path):
        """Make what Hadoop's own command does for ``hdfs dfs``."""
        java = f"{shutil.which('java')} -Xmx128m -cp {self.yarn.conf}:{fetch_hadoop()}/*"
        path.write_text(
            f'#!/bin/sh\nshift\nexec {java} org.apache.hadoop.fs.FsShell "$@"\n', encoding="utf-8"
        )
        path.chmod(0o755)

    def run(self, command, log):
        """Run a command of the guide in the folder of the client."""
        with (self.folder / log).open("wb") as out:
            done = subprocess.run(
                ["bash", "-ec", command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=patience(),
                check=False,
            )
        said = (self.folder / log).read_text(errors="replace")
        if done.returncode:
            pytest.fail(f"{command}\n{said[-3000:]}\n{self.logs_of_application(said)[-9000:]}")
        return said

    def logs_of_application(self, said):
        """Return what the containers have printed, of the application that spark-submit told."""
        found = re.search(r"application_\d+_\d+", said)
        return self.yarn.logs(found[0]) if found else ""


@contextlib.contextmanager
def notebook_of(command, folder, environment):
    """Start a command that runs ``notebook.py`` with the socket of a folder; give its session."""
    log = folder / "notebook.log"
    with Listener(str(folder / "socket")) as listener, log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        try:
            listener._listener._socket.settimeout(patience())
            with listener.accept() as connection:
                yield Notebook(connection, log)
        finally:
            # It ends by itself when nobody is connected any more.
            all_of_it = psutil.Process(process.pid).children(recursive=True)
            try:
                process.wait(patience())
            except subprocess.TimeoutExpired:
                for each in (process, *all_of_it):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                process.wait()


class Notebook:
    """A session in client mode that runs one function after the other."""

    def __init__(self, connection, log):
        self._connection, self._log = connection, log

    def begin(self, function, *arguments):
        """Begin to run a function there; its first argument is the session."""
        source = function if isinstance(function, str) else inspect.getsource(function)
        self._connection.send((source, getattr(function, "__name__", None), arguments))

    def said(self):
        """Return the last that the session has printed."""
        return self._log.read_text(errors="replace")[-8000:]

    def answer(self):
        """Return what the function returned."""
        wait_for(self._connection.poll, "an answer", seen=self.said)
        value, error = self._connection.recv()
        assert error is None, f"{error}\n{self.said()}"
        return value

    def __call__(self, function, *arguments):
        """Run a function there, and return what it returned."""
        self.begin(function, *arguments)
        return self.answer()
