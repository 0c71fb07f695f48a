"""What the training function is given: its place in the group, its strategy, its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow._keras import runtime as _runtime
from gridflow._training.feeding import Feeding
from gridflow._training.fitting import Fitting
from gridflow._training.pulling import Pulling
from gridflow._training.streaming import Streaming

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow._feed.plan.counter import EpochCounter
    from gridflow._spec.cluster import ClusterSpec, Task
    from gridflow._training.runtime import TaskRuntime


#: That of this process.
_present: TrainingContext | None = None


def current_context() -> TrainingContext:
    """Return the context of the task that this code runs in; what a script starts with.

    Raises
    ------
    GridflowError
        Outside a training process.
    """
    _runtime.current()
    assert _present is not None, "a task of gridflow's has a context"
    return _present


class TrainingContext(Feeding, Pulling, Streaming, Fitting):
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
        This task's own folder, empty at first, deleted at the end; the log then names what was in
        it. Also the working directory.
    gpus : tuple of str
        Indices or UUIDs of this task's GPUs on its host. To TensorFlow they are ``GPU:0`` and on.
    """

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self.job: str = runtime.setup.job
        self.task: Task = runtime.task
        self.cluster_spec: ClusterSpec = runtime.cluster_spec
        self.rank: int = runtime.rank
        self.num_workers: int = runtime.num_workers
        self.generation: int = runtime.generation
        self.work_dir: Path = runtime.folder
        self.gpus: tuple[str, ...] = tuple(runtime.setup.gpus)
        self.resume_from: Path | None = runtime.resume_from
        self.tensorboard_dir: Path | None = runtime.tensorboard_dir
        self.epoch_counters: list[EpochCounter] = runtime.epoch_counters

    @property
    def seed(self) -> int | None:
        """The job's seed, None where none was given."""
        return self._runtime.training.seed

    @property
    def backend(self) -> str:
        """What Keras 3 trains with: ``tensorflow``, ``jax`` or ``torch``."""
        return self._runtime.training.backend

    @property
    def is_chief(self) -> bool:
        """Whether this task writes what is to be written once."""
        return self._runtime.is_chief

    @property
    def is_evaluator(self) -> bool:
        """Whether this task watches the training instead of taking part."""
        return self._runtime.is_evaluator

    @property
    def strategy(self) -> Any:
        """The ``tf.distribute.Strategy`` that was asked for, made when first used.

        With ``multi_worker_mirrored`` and ``parameter_server`` gridflow makes it before the
        function is called, since all tasks wait for one another in it. An evaluator, which trains
        alone, has TensorFlow's default strategy. Under JAX and torch it is an object whose
        ``scope()`` changes nothing, so that one function fits all backends.
        """
        return self._runtime.mode.strategy

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
        return self._runtime.mode.server(config)

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
            Steps and losses for the driver's progress bar.
        """
        from gridflow._keras import callbacks

        return callbacks.build(
            self._runtime, checkpoint=checkpoint, tensorboard=tensorboard, progress=progress
        )

    def barrier(self, *, timeout: float | None = None) -> None:
        """Wait until all ranks have called this, as often as this one.

        It goes through the driver, so it works under every strategy and backend, and doesn't mind
        what the ranks do otherwise. In the middle of a ``fit`` call it on all ranks at the same
        step: who waits in a step of the others' can't come here.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: the job's ``Deadlines.step``.

        Raises
        ------
        BrokenBarrier
            A rank will never come: it has returned, or has called `broadcast` or `all_gather`
            instead.
        BarrierTimeout
            A rank didn't come in time; its name is in the message.
        GridflowError
            On a parameter server or an evaluator, which take part in none.

        Examples
        --------
        >>> def train(ctx):
        ...     if ctx.is_chief:
        ...         prepare("/data/flights")
        ...     ctx.barrier()
        ...     return read("/data/flights")
        """
        self._runtime.meetings.hold("barrier", None, timeout)

    def broadcast(self, value: Any = None, *, timeout: float | None = None) -> Any:
        """Return what the chief has passed, on all ranks. All of them call it.

        Parameters
        ----------
        value
            The chief's; what others pass is ignored. None, numbers, strings, bytes, numpy arrays
            of those, and lists, tuples and dicts of them; 1 MiB at most. It isn't pickled.
        timeout : float, optional
            As for `barrier`.

        Returns
        -------
        object
            Equal to the chief's value.

        Raises
        ------
        InvalidArgument
            The value is of another kind, or too large.
        BrokenBarrier, BarrierTimeout, GridflowError
            As for `barrier`.

        Examples
        --------
        >>> def train(ctx):
        ...     return ctx.broadcast(new_folder() if ctx.is_chief else None)
        """
        (found,) = self._runtime.meetings.hold(
            "broadcast", value if self.is_chief else None, timeout
        )
        return found

    def all_gather(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Return the values that all ranks have passed, in the order of the ranks.

        Parameters
        ----------
        value
            Of the kinds that `broadcast` takes. Together they may have 16 MiB, shared out evenly;
            1 MiB each at most.
        timeout : float, optional
            As for `barrier`.

        Raises
        ------
        InvalidArgument, BrokenBarrier, BarrierTimeout, GridflowError
            As for `broadcast`.

        Examples
        --------
        >>> def train(ctx):
        ...     return sum(ctx.all_gather(rows_here()))
        """
        return self._runtime.meetings.hold("all_gather", value, timeout)

    def report(self, step: int, **metrics: float) -> None:
        """Tell the driver of a step of a training loop of your own.

        From the first one on the loop is under ``Deadlines.step``, as ``fit`` is by itself.

        Parameters
        ----------
        step : int
            How many steps were made.
        metrics : float
            Shown beside the progress bar.
        """
        self._runtime.due.reported()
        self._runtime.progress(
            epoch=0, step=step, steps_per_epoch=None, phase="train", rows=0, logs=metrics
        )


def make_context(runtime: TaskRuntime) -> TrainingContext:
    """Make the context of this process, once."""
    global _present  # noqa: PLW0603 (one process is one task)
    _runtime.enter(runtime)
    _present = TrainingContext(runtime)
    return _present
