"""The task over all generations: its training processes, and the messages to them."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gridflow._agent.process import ProcessSupervisor
from gridflow._features.base import Feature, Tools
from gridflow._features.board.agent import Board
from gridflow._features.evaluation import EvaluationNews
from gridflow._features.rows.agent import Backpressure, RowBorrowing, StepGrants
from gridflow._features.streams.agent import Streams
from gridflow._spec import backends
from gridflow._spec.backends import KERAS_VARIABLE, needed
from gridflow._spec.cluster import TRAINING_ROLES, ClusterMember, ClusterSpec, facts_of
from gridflow._spec.gpus import VISIBLE
from gridflow._wire import child, commands, reports
from gridflow._wire.channel import AGENT_VARIABLE, PRELOAD_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gridflow._agent.forkserver.client import ForkServers
    from gridflow._agent.reporter import Reporter
    from gridflow._agent.uploads import Uploads
    from gridflow._features.checkpoints.agent import Checkpoints
    from gridflow._gpu.grant import GpuGrant
    from gridflow._wire.client import CoordinatorClient
    from gridflow._wire.failures import FailureKind
    from gridflow._wire.messages import Message
    from gridflow._wire.payload import AgentPayload

_DRAIN_SECONDS: Final = 30.0
#: What an agent does beside its task.
_FEATURES: Final[tuple[type[Feature], ...]] = (
    EvaluationNews,
    StepGrants,
    Backpressure,
    RowBorrowing,
    Streams,
    Board,
)


class TaskRunner:
    """Runs the agent's training processes.

    `folder`: The agent's own.
    `grant`: The task's GPUs, or why it has none.
    `servers`: They fork training processes; None: each process is started.
    `scratch`: A short path for temporary files.
    `on_end`: Called from another thread once a process has ended.
    `generation`: Of the process that runs, or is to come.
    """

    def __init__(
        self,
        payload: AgentPayload,
        rank: int,
        folder: Path,
        client: CoordinatorClient,
        reporter: Reporter,
        checkpoints: Checkpoints,
        uploads: Uploads,
        grant: GpuGrant | str,
        *,
        servers: ForkServers | None,
        scratch: Path,
        on_end: Callable[[], None],
    ) -> None:
        self._scratch, self._on_end = scratch, on_end
        self._payload, self._rank, self._folder = payload, rank, folder
        self._checkpoints, self._reporter, self._uploads = checkpoints, reporter, uploads
        self._task = payload.spec.tasks[rank]
        self._part = payload.spec.parts[rank]
        self._grant = grant
        self._servers = servers
        self.generation = payload.generation
        self._life = self._new_life()
        self._counts: commands.Counts | None = None
        self._setup: child.Setup | None = None
        tools = Tools(
            payload, rank, folder, client, reporter, checkpoints, uploads, self._tell, self.fail
        )
        self._features = [feature(tools) for feature in _FEATURES]

    @property
    def is_at_work(self) -> bool:
        """Whether the process has all that it needs, and hasn't ended."""
        has_rows = self._counts is not None or not self._payload.datasets
        return has_rows and self._life.is_at_work

    def _new_life(self) -> ProcessSupervisor:
        return ProcessSupervisor(
            str(self._task),
            self._rank,
            self.generation,
            serves=self._part.serves,
            reporter=self._reporter,
            uploads=self._uploads,
            frozen_after=self._payload.spec.deadlines.heartbeat,
            on_imported=self._warm,
            on_other=self._heard,
        )

    # Commands ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Start the process, which imports TensorFlow while the others register."""
        self._life = self._new_life()
        grant = self._grant
        if isinstance(grant, str):
            self.fail("gpus", grant)
            return
        work_dir = self._folder / f"work-{self.generation}"
        work_dir.mkdir(exist_ok=True)  # it is there when a process is replaced
        self._life.start(
            work_dir=work_dir,
            environment=self._environment(grant),
            inherited=grant.files,
            packages=self.needed,
            servers=self._servers,
            on_end=self._on_end,
        )

    def begin_features(self) -> None:
        """Start the agent's features."""
        for feature in self._features:
            feature.begin()

    def close_features(self) -> None:
        """Stop the agent's features."""
        for feature in self._features:
            feature.close()

    def arrived(self, dataset: str, rows: int) -> None:
        """Note how many rows of a dataset can be read."""
        for feature in self._features:
            feature.arrived(dataset, rows)

    def read(self, size: int) -> None:
        """Note that bytes of rows were spooled; may wait."""
        for feature in self._features:
            feature.read(size)

    def warm_up(self) -> None:
        """Let the host's fork server import what the process needs while the tasks register."""
        if self.needed:
            self._warm(list(self.needed))

    def _warm(self, packages: list[str]) -> None:
        if self._servers is not None and not isinstance(self._grant, str):
            self._servers.load(self._environment(self._grant), packages)

    def _environment(self, grant: GpuGrant) -> dict[str, str]:
        changes = {
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            # What the agent can import (Spark's addPyFile, a notebook's folder), its task can.
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "TF_GRPC_REUSE_PORT": "1",
            "TMPDIR": str(self._scratch),
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
            KERAS_VARIABLE: self._payload.spec.training.backend,
            AGENT_VARIABLE: str(os.getpid()),
            PRELOAD_VARIABLE: self.needed[0] if self.needed else None,
            **grant.environment,
            **self._payload.spec.environment_of(self._task),
            **self._hidden(grant),
        }
        # A variable that is None is removed.
        every = {**os.environ, **changes}
        return {name: value for name, value in every.items() if value is not None}

    def _hidden(self, grant: GpuGrant) -> dict[str, str | None]:
        """Keep GPUs from servers and evaluators, even against the job's own ``env=``."""
        never = self._task.role not in TRAINING_ROLES
        return {VISIBLE: grant.environment[VISIBLE]} if never else {}

    @property
    def needed(self) -> tuple[str, ...]:
        """The packages that the process always imports."""
        if facts_of(self._task.role).is_data_service:
            return ("tensorflow",)
        return needed(self._payload.spec.training.backend, self._payload.spec.training.strategy)

    def obey(self, command: commands.Command) -> None:
        """Carry out a command of the coordinator."""
        if any(feature.obey(command) for feature in self._features):
            return
        if isinstance(command, commands.AMONG_RANKS):
            if command.generation != self.generation:
                return
            if isinstance(command, commands.Replace) and command.rank == self._rank:
                self._replace(command.view)
            else:
                self._life.send(command)
            return
        match command:
            case commands.Start():
                self._start(command)
            case commands.Counts():
                self._counts = command
                self._life.send(command)
            case commands.Inspect():
                self._life.send(command)
            case commands.Clear(generation=self.generation):
                self._clear(restart=command.restart)

    def _start(self, command: commands.Start) -> None:
        spec = self._payload.spec
        grant = self._grant
        addresses: dict[str, list[str]] = {}
        for task, address in zip(spec.tasks, command.addresses, strict=True):
            addresses.setdefault(task.role, []).append(address)
        resume = None
        if command.resume is not None and self._part.runs_function:
            path = self._folder / command.resume
            self._checkpoints.fetch(command.resume, path)
            resume = str(path)
        for feature in self._features:
            feature.forget(command.generation, command.place)
        self._setup = child.Setup(
            job=self._payload.job,
            task=str(self._task),
            generation=command.generation,
            addresses=addresses,
            tf_config=self._tf_config(ClusterSpec(addresses)),
            job_spec=pickle.dumps(spec),
            runs_function=self._part.runs_function,
            serves=self._part.serves,
            gpus=[] if isinstance(grant, str) else list(grant.addresses),
            gpu_memory=None if isinstance(grant, str) else grant.memory_limit,
            function=str(self._folder / "function"),
            modules=str(self._folder / "modules"),
            spool=str(self._folder / "spool"),
            results=str(self._folder / f"results-{self.generation}"),
            tensorboard=str(self._folder / "tensorboard"),
            resume=resume,
            view=command.view,
        )
        self._set_up()

    def _tf_config(self, cluster: ClusterSpec) -> str | None:
        peers = [task for task in cluster.tasks if facts_of(task.role).is_in_cluster]
        reads = backends.of(self._payload.spec.training.backend).reads_tf_config
        if not reads or len(peers) == 1:
            return None
        return ClusterMember.of(cluster, self._task).tf_config

    def _set_up(self) -> None:
        known: list[Message | None] = [self._setup, self._counts]
        for feature in self._features:
            known += feature.messages()
        for message in known:
            if message is not None:
                self._life.send(message)

    def _tell(self, message: Message) -> None:
        self._life.send(message)

    def _heard(self, message: Message) -> None:
        """Handle a message for a feature."""
        any(feature.hear(message) for feature in self._features)

    def _replace(self, view: int) -> None:
        """Restart the process as it was started before."""
        self.kill()
        if self._setup is not None:
            self._setup = replace(self._setup, view=view)
        self.prepare()
        self._set_up()

    def _clear(self, *, restart: bool) -> None:
        self.kill()
        self._uploads.drain(_DRAIN_SECONDS)
        self._reporter.report(reports.Cleared(self.generation))
        self.generation += 1
        if restart:
            self.prepare()

    # The process ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Report that the process has ended or is frozen."""
        self._life.look()

    def leave(self) -> None:
        """Give a process that is done, or a server, a moment to exit by itself."""
        self._life.leave()

    def kill(self) -> None:
        """End the process, if there is one, and ignore what still arrives from it."""
        life, self._life = self._life, self._new_life()
        life.end()

    def fail(self, kind: FailureKind, summary: str) -> None:
        """Report a failure of this task; only a process's first one counts."""
        self._life.fail(kind, summary)
