"""One job, as passed to the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gridflow._coordinator.observing import JobStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gridflow._coordinator.observing import Observer
    from gridflow._coordinator.policies import RestartPolicy
    from gridflow._files.systems import Where
    from gridflow._spec.job import JobSpec
    from gridflow._spec.network import Network


@dataclass(frozen=True)
class PreparedJob:
    """One job, checked and ready to run.

    `id`: Unique; part of the names of folders and of the Spark job's tag.
    `spec`: What the tasks need.
    `program`: What `gridflow._spec.program.dump` returned.
    `modules`: What `gridflow._spec.program.pack` returned; empty: none.
    `size`: How many workers there is room for at the start. Default: all of the spec.
    `data`: Datasets in the launcher's form.
    `left_out` (mapping of dataset to mapping of column to reason): Columns that the launcher
        doesn't feed.
    `job_dir`, `checkpoint_dir`: In the driver.
    `network`: Where the coordinator listens.
    `checkpoint_mirror`: A second place of the checkpoints, in another file system.
    `tensorboard_mirror`: The same for event files.
    `logs` ({'all', 'chief', 'none'}): Whose output is shown.
    `notice`: A message shown when it starts.
    `run_id`: The user's name for the run. A run that has succeeded isn't trained again.
    `make_result`: Makes what the user gets of an outcome and the job's folder.
    """

    id: str
    spec: JobSpec
    program: bytes
    modules: bytes
    data: Mapping[str, Any]
    left_out: Mapping[str, Mapping[str, str]]
    job_dir: Path
    checkpoint_dir: Path
    network: Network
    restart: RestartPolicy
    checkpoint_mirror: Where | None = None
    tensorboard_mirror: Where | None = None
    logs: str = "all"
    show_progress: bool = True
    notice: str = ""
    run_id: str | None = None
    observers: tuple[Observer, ...] = ()
    make_result: Callable[[Any, Path], Any] | None = None
    size: int | None = None

    def start(self) -> JobStart:
        """Return what observers are told of it."""
        training = self.spec.training
        options = {
            "strategy": training.strategy,
            "backend": training.backend,
            "num_workers": self.size or self.spec.num_workers,
            "seed": training.seed,
            "checkpoint_every": training.checkpoint_every,
        }
        tasks = tuple(map(str, self.spec.tasks))
        return JobStart(self.id, self.run_id, self.job_dir, tasks, options, self.data)

    def result(self, outcome: Any) -> Any:
        """Return what observers are given of an outcome."""
        return None if self.make_result is None else self.make_result(outcome, self.job_dir)
