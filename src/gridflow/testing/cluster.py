"""A real Spark standalone cluster on this machine, with a master and workers as processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from gridflow._spec.option_checks import whole_number
from gridflow.errors import GridflowError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
#: Of a master and of workers.
_ARGUMENTS: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_REGISTERED: Final = r"(Successfully registered) with master"


class StandaloneCluster:
    """A cluster on the loopback interface that runs for the length of a ``with`` block.

    Parameters
    ----------
    workers : int, default 2
        Number of worker processes; each runs one executor per application.
    cores : int, default 1
        Cores per worker.
    memory : str, default "2g"
        Memory per worker, in Spark's notation.
    gpus : int, default 0
        Simulated GPUs per worker: addresses that Spark assigns, without devices. No two workers
        share an address. Sessions request them with ``spark.executor.resource.gpu.amount`` and
        ``spark.task.resource.gpu.amount``.
    settings : dict, optional
        Spark settings for the workers, such as ``{"spark.decommission.enabled": "true"}`` for
        `decommission`.

    Attributes
    ----------
    url : str
        ``spark://127.0.0.1:<port>``.
    folder : Path
        Contains the logs and the executors' folders; deleted when the cluster stops.

    Examples
    --------
    >>> from gridflow.testing.cluster import StandaloneCluster
    >>> with StandaloneCluster(workers=2) as cluster:  # doctest: +SKIP
    ...     spark = cluster.session()
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "2g",
        gpus: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.workers = whole_number("workers", workers, 1)
        self.cores = whole_number("cores", cores, 1)
        self.memory = memory
        self.gpus = whole_number("gpus", gpus, 0)
        self._settings = dict(settings or {})
        self.url = ""
        self.folder = Path()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="gridflow-cluster-"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def session(self, **settings: Any) -> SparkSession:
        """Return a session on the cluster.

        Parameters
        ----------
        **settings
            Spark settings, with ``_`` in place of the dots: ``spark_executor_memory="1g"``.
        """
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(self.url).config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        builder = builder.config("spark.executor.memory", "1g")
        for name, value in settings.items():
            builder = builder.config(name.replace("_", "."), value)
        session: SparkSession = builder.getOrCreate()
        return session

    def decommission(self, worker: int) -> None:
        """Announce that a worker's machine is going away, as an operator or a cloud would.

        Parameters
        ----------
        worker : int
            Index of the worker, from 0. Its executors' folders are
            ``work-<worker>/<application>/<executor>``.
        """
        self._processes[1 + worker].send_signal(signal.SIGPWR)

    def add_worker(self) -> None:
        """Start one more worker, as when a machine is added to the cluster."""
        worker = self._start_worker(self.workers)
        self.workers += 1
        self._wait_for(*worker, _REGISTERED)

    def stop(self) -> None:
        """End all processes and delete the folder."""
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        master = self._spawn("master", "org.apache.spark.deploy.master.Master", *_ARGUMENTS)
        self.url = self._wait_for(*master, r"Starting Spark master at (spark://\S+)")
        for worker in [self._start_worker(index) for index in range(self.workers)]:
            self._wait_for(*worker, _REGISTERED)

    def _start_worker(self, index: int) -> tuple[Path, subprocess.Popen[bytes]]:
        return self._spawn(
            f"worker-{index}",
            "org.apache.spark.deploy.worker.Worker",
            *_ARGUMENTS,
            *("--cores", str(self.cores), "--memory", self.memory),
            *("--work-dir", str(self.folder / f"work-{index}")),
            *self._own_settings(index),
            self.url,
        )

    def _own_settings(self, index: int) -> tuple[str, ...]:
        """Return the arguments that pass a worker its settings."""
        settings = {**self._settings, **(self._gpu_settings(index) if self.gpus else {})}
        if not settings:
            return ()
        file = self.folder / f"worker-{index}.properties"
        lines = [f"{name} {value}\n" for name, value in settings.items()]
        file.write_text("".join(lines), encoding="utf-8")
        return "--properties-file", str(file)

    def _gpu_settings(self, index: int) -> dict[str, str]:
        """Return settings with a discovery script that prints the worker's GPU addresses."""
        first = index * self.gpus
        addresses = [str(address) for address in range(first, first + self.gpus)]
        script = self.folder / f"gpus-{index}.sh"
        answer = json.dumps({"name": "gpu", "addresses": addresses})
        script.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
        script.chmod(0o755)
        return {
            "spark.worker.resource.gpu.amount": str(self.gpus),
            "spark.worker.resource.gpu.discoveryScript": str(script),
        }

    def _spawn(
        self, name: str, java_class: str, *arguments: str
    ) -> tuple[Path, subprocess.Popen[bytes]]:
        try:
            import pyspark
        except ImportError as error:
            raise MissingDependency(
                "a Spark cluster needs pip install 'gridflow[spark]'"
            ) from error
        home = Path(pyspark.__file__).parent
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), java_class, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env={
                        **os.environ,
                        "SPARK_HOME": str(home),
                        "SPARK_DAEMON_MEMORY": "512m",
                        "SPARK_LOCAL_DIRS": str(self.folder / "local"),
                        "SPARK_NO_DAEMONIZE": "1",
                        "SPARK_LOCAL_IP": "127.0.0.1",
                    },
                    start_new_session=True,  # Ctrl-C is for the driver
                )
            )
        return log, self._processes[-1]

    def _wait_for(self, log: Path, process: subprocess.Popen[bytes], pattern: str) -> str:
        give_up = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up:
            with contextlib.suppress(OSError):
                found = re.search(pattern, log.read_text(errors="replace"))
                if found:
                    return found[1]
            if process.poll() is not None:
                break
            time.sleep(0.1)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise GridflowError(f"Spark's {log.stem} did not start. End of its log:\n{tail}")


def wait_for_slots(spark: SparkSession, number: int, seconds: float = 90.0) -> None:
    """Wait until a session has `number` task slots.

    Raises
    ------
    TimeoutError
        If there are fewer slots after `seconds`.
    """
    from gridflow._launch.spark.session import task_slots

    give_up = time.monotonic() + seconds
    while (slots := task_slots(spark) or 0) < number:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{slots} of {number} task slots after {seconds:g} seconds")
        time.sleep(0.1)
