"""Runs a training function in plain processes, with nothing of gridflow but what is under test.

The callbacks and fixes need processes, a strategy and data, and no launcher: this gives them the
least that does, and lets a test look behind what a job hides.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import cloudpickle
import numpy as np

from gridflow.cluster import WORKER, ClusterSpec, Task
from gridflow.errors import TrainingFailed
from gridflow.feed.source import EpochCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

StrategyName = Literal["none", "mirrored", "multi_worker_mirrored"]

#: Replicas of ``mirrored``: logical CPU devices of the one process.
MIRRORED_REPLICAS: Final = 2
_LOG_LINES = 60


@dataclass(eq=False)
class HarnessContext:
    """Both ``ctx`` of a training function and the runtime of the callbacks.

    Attributes
    ----------
    reports : list of dict
        Every call of `progress`.
    checkpoints : list of (int, int)
        Epoch and step of every checkpoint that was handed over.
    epochs : list of (int, dict)
        Every call of `epoch_end`.
    """

    strategy: Any
    rank: int
    num_workers: int
    work_dir: Path
    data: Mapping[str, Mapping[str, np.ndarray]]
    generation: int = 0
    seed: int | None = None
    resume_from: Path | None = None
    tensorboard_dir: Path | None = None
    checkpoint_every: int | None = None
    committed: Path | None = None
    epoch_counters: list[EpochCounter] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[tuple[int, int]] = field(default_factory=list)
    epochs: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def progress(self, **report: Any) -> None:
        """Note a sign of life."""
        self.reports.append(report)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Note an epoch's results."""
        self.epochs.append((epoch, dict(logs)))

    def checkpoint(self, path: Path, epoch: int, step: int) -> None:
        """Commit a checkpoint file where the next generation finds it."""
        self.checkpoints.append((epoch, step))
        if self.committed is not None:
            beside = self.committed.with_suffix(".new")
            shutil.copyfile(path, beside)
            beside.replace(self.committed)

    def callbacks(self, *, checkpoint: bool = True) -> list[Any]:
        """Return the callbacks of this process."""
        from gridflow.keras import callbacks

        return callbacks.build(self, checkpoint=checkpoint)

    def dataset(
        self,
        name: str,
        batch_size: int,
        features: Sequence[str],
        label: Sequence[str] = (),
        sample_weight: str | None = None,
        *,
        shuffle: bool = False,
    ) -> Any:
        """Return this rank's contiguous share of the rows, distributed by the strategy."""
        import tensorflow as tf

        columns = {key: values[self._share(len(values))] for key, values in self.data[name].items()}

        def pick(keys: Sequence[str]) -> Any:
            chosen = {key: columns[key] for key in keys}
            return chosen if len(chosen) > 1 else next(iter(chosen.values()))

        rows: Any = (pick(features),)
        rows += (pick(label),) if label else ()
        rows += (columns[sample_weight],) if sample_weight else ()
        counter = EpochCounter()
        self.epoch_counters.append(counter)
        replicas = self.strategy.num_replicas_in_sync // self.num_workers or 1
        size = batch_size // replicas
        spec = tf.nest.map_structure(
            lambda part: tf.TensorSpec((size, *part.shape[1:]), part.dtype), rows
        )
        pieces = len(next(iter(columns.values()))) // batch_size * replicas

        def batches() -> Iterator[Any]:
            epoch, start = counter.begin()
            order = np.arange(pieces * size)
            if shuffle:
                order = np.random.default_rng([epoch, self.rank]).permutation(order)
            for piece in range(start * replicas, pieces):
                chosen = order[piece * size : (piece + 1) * size]
                yield tf.nest.map_structure(lambda part, chosen=chosen: part[chosen], rows)

        def local(_: object = None) -> Any:
            dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
            return dataset.apply(tf.data.experimental.assert_cardinality(pieces))

        if self.strategy.num_replicas_in_sync == 1:
            return local()
        distributed = self.strategy.distribute_datasets_from_function(local)
        # TensorFlow reports the elements of the inner dataset; a step takes one for each replica.
        distributed._cardinality //= replicas
        return distributed

    def _share(self, rows: int) -> slice:
        start, end = ((self.rank + i) * rows // self.num_workers for i in (0, 1))
        return slice(start, end)


def run_job(
    train_fn: Callable[[HarnessContext], Any],
    num_workers: int = 1,
    strategy: StrategyName = "none",
    *,
    data: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    timeout: float = 240,
    allow_death: bool = False,
    cures: bool = True,
    **context: Any,
) -> list[Any]:
    """Run a function in each of `num_workers` processes and return what each returned.

    Parameters
    ----------
    train_fn : callable
        Called with a `HarnessContext`.
    num_workers : int
        Processes. With ``multi_worker_mirrored`` they form one cluster; otherwise each trains for
        itself.
    strategy : {"none", "mirrored", "multi_worker_mirrored"}
        Its `MIRRORED_REPLICAS` replicas in one process, for ``mirrored``, are logical CPU devices.
    data : mapping of str to mapping of str to numpy array, optional
        Columns of each named dataset, all rows; the ranks take equal contiguous shares.
    timeout : float
        Seconds after which all processes are killed.
    allow_death : bool
        Return None for a process that died, instead of raising.
    cures : bool
        Cure Keras (`gridflow.keras.fixes`), as gridflow does.
    **context
        Further fields of `HarnessContext`.

    Raises
    ------
    TrainingFailed
        A process died or took too long; the message holds its last lines.
    """
    with tempfile.TemporaryDirectory(prefix="gridflow-harness-") as text:
        directory = Path(text)
        job = {
            "train_fn": train_fn,
            "strategy": strategy,
            "data": data or {},
            "context": context,
            "cures": cures,
        }
        (directory / "job").write_bytes(cloudpickle.dumps({**job, "num_workers": num_workers}))
        configs = _tf_configs(num_workers) if strategy == "multi_worker_mirrored" else None
        children = [
            _start(directory, rank, configs[rank] if configs else None)
            for rank in range(num_workers)
        ]
        try:
            _wait(children, time.monotonic() + timeout, patient=allow_death)
        finally:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        return [_result(directory, rank, allow_death=allow_death) for rank in range(num_workers)]


def _tf_configs(num_workers: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num_workers)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        addresses = tuple(f"127.0.0.1:{free.getsockname()[1]}" for free in sockets)
    spec = ClusterSpec({WORKER: addresses})
    return [spec.tf_config(Task(WORKER, rank)) for rank in range(num_workers)]


def _start(directory: Path, rank: int, tf_config: str | None) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONWARNINGS": "default",
    }
    environment.pop("TF_CONFIG", None)
    if tf_config is not None:
        environment["TF_CONFIG"] = tf_config
    # Functions of a test module or script are pickled by reference: the child finds them so.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with (directory / f"log-{rank}").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "harness", str(directory), str(rank)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(children: list[subprocess.Popen[bytes]], deadline: float, *, patient: bool) -> None:
    while time.monotonic() < deadline:
        codes = [child.poll() for child in children]
        if all(code is not None for code in codes):
            return
        if any(code not in {0, None} for code in codes):
            if not patient:
                return
            # The survivors of a group can only fail or hang.
            deadline = min(deadline, time.monotonic() + 2)
        time.sleep(0.02)


def _result(directory: Path, rank: int, *, allow_death: bool) -> Any:
    result = directory / f"result-{rank}"
    if result.exists():
        return cloudpickle.loads(result.read_bytes())
    if allow_death:
        return None
    logs = [
        "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        for log in sorted(directory.glob("log-*"))
    ]
    raise TrainingFailed(f"rank {rank} ended without a result.\n" + "\n----\n".join(logs))


def main(directory: Path, rank: int) -> None:
    """Be one process of a job."""
    job = cloudpickle.loads((directory / "job").read_bytes())
    work_dir = directory / f"work-{rank}"
    work_dir.mkdir()
    if job["cures"]:
        from gridflow.keras import fixes

        fixes.apply()
    ctx = HarnessContext(
        strategy=_make_strategy(job["strategy"]),
        rank=rank,
        num_workers=job["num_workers"],
        work_dir=work_dir,
        data=job["data"],
        **job["context"],
    )
    result = job["train_fn"](ctx)
    unfinished = directory / f"unfinished-{rank}"
    unfinished.write_bytes(cloudpickle.dumps(result))
    unfinished.rename(directory / f"result-{rank}")
    # A peer that still reads from this process's TensorFlow server must not lose it first.
    while len(list(directory.glob("result-*"))) < job["num_workers"]:
        time.sleep(0.02)


def _make_strategy(name: StrategyName) -> Any:
    import tensorflow as tf

    if name == "multi_worker_mirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "none":
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(MIRRORED_REPLICAS)]
    )
    return tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(MIRRORED_REPLICAS)])


if __name__ == "__main__":
    # Imported, not run as __main__: the pickled context has to be the class that others import.
    from harness import main

    main(Path(sys.argv[1]), int(sys.argv[2]))
