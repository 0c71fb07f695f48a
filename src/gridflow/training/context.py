"""What the training function is given: its place in the group, its strategy, its rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gridflow.errors import GridflowError
from gridflow.keras import runtime
from gridflow.spec.cluster import EVALUATOR, ClusterSpec, Task
from gridflow.training.feeding import Feeding
from gridflow.training.fitting import Fitting
from gridflow.wire import child, reports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow.feed.counter import EpochCounter
    from gridflow.spec.place import Place
    from gridflow.training.inbox import Inbox
    from gridflow.wire.channel import Channel
    from gridflow.wire.child import Setup


def current_context() -> TrainingContext:
    """Return the context of the task that this code runs in; what a script starts with.

    Raises
    ------
    GridflowError
        Outside a training process.
    """
    return cast("TrainingContext", runtime.current())


class TrainingContext(Feeding, Fitting):
    """The place of a task in its job, and what gridflow does for it.

    Attributes
    ----------
    job : str
        The job's id.
    task : Task
        This task's role and index.
    rank : int
        Number among the tasks that train, from 0; rank 0 is the chief. -1 for a parameter server
        and for an evaluator, which don't train.
    num_workers : int
        How many tasks train.
    generation : int
        0, and one more after each restart.
    cluster_spec : ClusterSpec
        Who listens where.
    work_dir : Path
        This task's own folder, empty at first, deleted at the end. Also the working directory.
    seed : int or None
        The job's seed.
    gpus : tuple of str
        Indices or UUIDs of this task's GPUs on its host. To TensorFlow they are ``GPU:0`` and on.
    backend : str
        What Keras 3 trains with: ``tensorflow``, ``jax`` or ``torch``.
    """

    def __init__(self, setup: Setup, channel: Channel, inbox: Inbox) -> None:
        self.job: str = setup.job
        self.task = Task.parse(setup.task)
        self.cluster_spec = ClusterSpec(setup.addresses)
        rank = self.cluster_spec.rank(self.task)
        self.rank: int = -1 if rank is None else rank
        self.num_workers = len(self.cluster_spec.ranks)
        self.generation: int = setup.generation
        self.work_dir = Path.cwd()
        self.seed: int | None = setup.seed
        self.gpus: tuple[str, ...] = tuple(setup.gpus)
        self.checkpoint_every: int | None = setup.checkpoint_every
        self.resume_from = Path(setup.resume) if setup.resume else None
        writes_events = self.is_chief or self.is_evaluator
        self.tensorboard_dir = Path(setup.tensorboard) if writes_events else None
        self.epoch_counters: list[EpochCounter] = []
        self.backend: str = setup.backend
        self._strategy_name: str = setup.strategy
        self._start_timeout: float = setup.start_timeout
        self._spool = Path(setup.spool)
        self._channel, self._inbox = channel, inbox
        self._partitioner: Mapping[str, Any] | None = setup.partitioner
        self._communication: Mapping[str, Any] | None = setup.communication
        self._gpu_memory: int | None = setup.gpu_memory
        self._strategy: Any = None
        self._server: Any = None
        self._coordinator: Any = None
        self._adapted = 0
        self._lock = threading.RLock()

    @property
    def is_chief(self) -> bool:
        """Whether this task writes what is to be written once."""
        return self.rank == 0

    @property
    def is_evaluator(self) -> bool:
        """Whether this task watches the training instead of taking part."""
        return self.task.role == EVALUATOR

    @property
    def strategy(self) -> Any:
        """The ``tf.distribute.Strategy`` that was asked for, made when first used.

        With ``multi_worker_mirrored`` and ``parameter_server`` gridflow makes it before the
        function is called, since all tasks wait for one another in it. An evaluator, which trains
        alone, has TensorFlow's default strategy. Under JAX and torch it is an object whose
        ``scope()`` changes nothing, so that one function fits all backends.
        """
        with self._lock:
            if self._strategy is None and self.backend != "tensorflow":
                from gridflow.training import groups

                self._strategy = groups.join(
                    self, self.backend, self._strategy_name, self._start_timeout
                )
            elif self._strategy is None:
                from gridflow.training import strategies

                name = "none" if self.is_evaluator else self._strategy_name
                self._strategy = strategies.make(
                    name, self.cluster_spec, self._partitioner, self._communication
                )
            return self._strategy

    def server(self, config: Any = None) -> Any:
        """Return this task's ``tf.distribute.Server``, started when first asked for.

        It listens on the port that the job has reserved for this task; its ``target`` is what a
        session connects to. On a parameter server end the function with ``ctx.server().join()``:
        gridflow ends it when the training is over.

        Parameters
        ----------
        config : tf.compat.v1.ConfigProto, optional
            Of the server; for the first call.

        Raises
        ------
        GridflowError
            Under a strategy other than ``server``, or on an evaluator.
        """
        if self._strategy_name != "server" or self.is_evaluator:
            raise GridflowError(
                "ctx.server() is for the cluster's tasks under strategy='server'; this is "
                f"{self.task} of strategy={self._strategy_name!r}."
            )
        with self._lock:
            if self._server is None:
                from gridflow.gpu.devices import server_config
                from gridflow.training.server import make_server

                config = config or server_config(self._gpu_memory, len(self.gpus))
                self._server = make_server(self.cluster_spec, self.task, config)
            return self._server

    def callbacks(
        self,
        *,
        checkpoint: bool = True,
        tensorboard: bool = True,
        progress: bool = True,
    ) -> list[Any]:
        """Return Keras callbacks that do the right thing on each rank.

        Parameters
        ----------
        checkpoint : bool, default True
            Checkpoints that a restarted group resumes from, exactly (see ``docs/failure.md``).
        tensorboard : bool, default True
            Event files on the chief; they go to ``result.tensorboard_dir``.
        progress : bool, default True
            Steps and losses for the driver's progress bar and for ``step_timeout``.
        """
        from gridflow.keras import callbacks

        return callbacks.build(
            self, checkpoint=checkpoint, tensorboard=tensorboard, progress=progress
        )

    def report(self, step: int, **metrics: float) -> None:
        """Tell the driver of a step of a training loop of your own.

        Parameters
        ----------
        step : int
            How many steps were made.
        metrics : float
            Shown beside the progress bar.
        """
        self.progress(epoch=0, step=step, steps_per_epoch=None, phase="train", rows=0, logs=metrics)

    # For gridflow.keras --------------------------------------------------------------------------

    def progress(self, **fields: Any) -> None:
        """Send a sign of life (see `gridflow.keras.runtime.Runtime`)."""
        fields["logs"] = {name: float(value) for name, value in fields["logs"].items()}
        self._channel.send(reports.Progress(**fields))

    def epoch_end(
        self, epoch: int, logs: Mapping[str, float], *, fit: int = 0, restored: bool = False
    ) -> None:
        """Send an epoch's results."""
        values = {name: float(value) for name, value in logs.items()}
        self._channel.send(reports.EpochEnded(epoch, values, fit, restored))

    def checkpoint(self, path: Path, place: Place) -> None:
        """Hand a finished checkpoint over."""
        self._channel.send(child.MadeCheckpoint(str(path), place))

    def close(self) -> None:
        """Say that no further steps are to be expected."""
        self.progress(epoch=0, step=0, steps_per_epoch=None, phase="idle", rows=0, logs={})


def make_context(setup: Setup, channel: Channel, inbox: Inbox) -> TrainingContext:
    """Make the context of this process, once."""
    context = TrainingContext(setup, channel, inbox)
    runtime.enter(context)
    return context
