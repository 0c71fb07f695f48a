"""What the training function is given: its place in the group, its strategy, its rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow.cluster import EVALUATOR, ClusterSpec, Task
from gridflow.errors import GridflowError, InvalidArgument, SchemaError, did_you_mean
from gridflow.fitting import Fitting
from gridflow.options import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow.channel import Channel
    from gridflow.feed.batches import Tail
    from gridflow.feed.selection import Columns
    from gridflow.feed.source import EpochCounter
    from gridflow.tfprocess.inbox import Inbox

_current: TrainingContext | None = None


def current_context() -> TrainingContext:
    """Return the context of the task that this code runs in; what a script starts with.

    Raises
    ------
    GridflowError
        Outside a training process.
    """
    if _current is None:
        raise GridflowError(
            "this code doesn't run in a gridflow task: current_context() is for the function or "
            "script that TensorflowDistributor.run() was given."
        )
    return _current


class TrainingContext(Fitting):
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

    def __init__(self, setup: Mapping[str, Any], channel: Channel, inbox: Inbox) -> None:
        self.job: str = setup["job"]
        self.task = Task.parse(setup["task"])
        self.cluster_spec = ClusterSpec(setup["addresses"])
        rank = self.cluster_spec.rank(self.task)
        self.rank: int = -1 if rank is None else rank
        self.num_workers = len(self.cluster_spec.ranks)
        self.generation: int = setup["generation"]
        self.work_dir = Path.cwd()
        self.seed: int | None = setup["seed"]
        self.gpus: tuple[str, ...] = tuple(setup["gpus"])
        self.checkpoint_every: int | None = setup["checkpoint_every"]
        self.resume_from = Path(setup["resume"]["path"]) if setup["resume"] else None
        writes_events = self.is_chief or self.is_evaluator
        self.tensorboard_dir = Path(setup["tensorboard"]) if writes_events else None
        self.epoch_counters: list[EpochCounter] = []
        self.backend: str = setup["backend"]
        self._strategy_name: str = setup["strategy"]
        self._start_timeout: float = setup["start_timeout"]
        self._spool = Path(setup["spool"])
        self._channel, self._inbox = channel, inbox
        self._partitioner: Mapping[str, Any] | None = setup["partitioner"]
        self._communication: Mapping[str, Any] | None = setup["communication"]
        self._gpu_memory: int | None = setup["gpu_memory"]
        self._strategy: Any = None
        self._server: Any = None
        self._coordinator: Any = None
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
                from gridflow.tfprocess import groups

                self._strategy = groups.join(
                    self, self.backend, self._strategy_name, self._start_timeout
                )
            elif self._strategy is None:
                from gridflow.tfprocess import strategies

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
                from gridflow.tfprocess.server import make_server

                config = config or server_config(self._gpu_memory, len(self.gpus))
                self._server = make_server(self.cluster_spec, self.task, config)
            return self._server

    def dataset(
        self,
        name: str = "train",
        *,
        batch_size: int,
        features: Columns,
        label: Columns | None = None,
        sample_weight: str | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        tail: Tail = "spread",
        map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
        prefetch: int | None = None,
    ) -> Any:
        """Return this rank's rows of a dataset given to ``run(data=…)``, in batches.

        Each iteration is one epoch of training. All ranks make the same number of steps, with real
        rows in every batch. As validation data of ``fit``, in ``evaluate`` and in ``predict`` each
        row counts once, whatever ``tail`` and ``shuffle`` say. Waits until the rows of all ranks
        have arrived.

        Parameters
        ----------
        name : str, default "train"
        batch_size : int
            Rows per step and rank, at most. The global batch has up to ``batch_size * num_workers``
            rows.
        features : str, list or dict
            ``"x"`` or ``["x"]``: one tensor. ``["a", "b"]``: a dict of tensors by column.
            ``{"input": "x", "other": ["a", "b"]}``: a dict with names of your own, where a list of
            columns is stacked into one float32 matrix. ``[["a", "b"]]``: one stacked matrix.
        label : str, list or dict, optional
            In the same form.
        sample_weight : str, optional
            A numeric column.
        shuffle : bool, optional
            Anew in each epoch. Default: True for ``"train"``, False for any other name.
        seed : int, optional
            For shuffling. Default: the job's seed, or 0.
        tail : {'spread', 'repeat', 'drop'}
            How uneven ranks make equal steps. ``spread``: every row is used, each rank deals its
            own out to all steps, in batches whose sizes differ by one; rows are repeated only by a
            rank that has fewer of them than there are steps.
            ``repeat``: every batch is full, ranks that have fewer rows repeat some of theirs.
            ``drop``: no row is repeated, what doesn't fill a step on all ranks is left out.
            All are accounted for in ``result.ledger``.
        map : callable, optional
            What each batch goes through: a function of ``x``, ``x, y`` or ``x, y, sample_weight``
            that returns what Keras is to get. It is applied by ``tf.data.Dataset.map``, several
            batches at a time, in order; under JAX and torch to numpy arrays.
        prefetch : int, optional
            Batches that are made ahead, 2 by default. Not under JAX and torch, where batches are
            made when they are asked for.

        Returns
        -------
        tf.data.Dataset, tf.distribute.DistributedDataset, WorkerDataset or ArrayDataset
            Elements as Keras takes them: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``. It has
            ``len``, ``map`` and ``take``, but for that of ``parameter_server``; rows repeated to
            make equal steps are left out by Keras only of what this function, or ``map`` and
            ``take`` under a mirrored strategy, JAX and torch, have returned.
            Under ``parameter_server`` a function that makes such a dataset, without end, in the
            worker's server: for `fit`, `evaluate` and ``create_per_worker_dataset``. ``tail`` has
            no meaning there. Under JAX and torch a ``keras.utils.PyDataset`` of numpy arrays.

        Raises
        ------
        SchemaError
            There is no such dataset or column, it can't be fed or has nulls that no rule covers,
            or there are too few rows for a step on each rank.
        """
        from gridflow.feed import batches, once, source
        from gridflow.feed.spool import SpoolReader

        rows = self._rows(name)
        own_rows = once.own_rows(rows, self._inbox.wait("counts")["borrowed"][name])
        self._check_columns(name, features, label, sample_weight)
        shuffled = name == "train" if shuffle is None else shuffle
        ahead = _ahead(prefetch, self.backend)
        if self._strategy_name == "parameter_server":
            from gridflow.feed.records import decode_specs
            from gridflow.keras import worker_data

            return worker_data.make(
                name,
                decode_specs(self._inbox.wait("counts")["specs"].get(name, {})),
                tuple(rows),
                own_rows=tuple(own_rows),
                function=map,
                prefetch=ahead,
                features=features,
                label=label,
                sample_weight=sample_weight,
                batch_size=whole_number("batch_size", batch_size, 1),
                shuffle=shuffled,
                seed=seed if seed is not None else (self.seed or 0),
            )
        counter = source.EpochCounter()
        if shuffled:
            self.epoch_counters.append(counter)
        options: dict[str, Any] = {
            "features": features,
            "label": label,
            "sample_weight": sample_weight,
            "batch_size": batch_size,
            "steps": batches.steps_for(rows, batch_size, tail),
            "tail": tail,
            "shuffle": shuffled,
            "seed": seed if seed is not None else (self.seed or 0),
            "rank": self.rank,
            "own_rows": own_rows,
            "function": map,
            "counter": counter,
            "on_epoch": lambda record: self._channel.send("epoch", record=record),
        }
        reader = SpoolReader(self._spool, name)
        if self.backend != "tensorflow":
            from gridflow.keras import array_data

            is_alone = self._strategy_name != "multi_worker_mirrored"
            return array_data.make(reader, backend=self.backend, is_alone=is_alone, **options)
        return source.distribute(self.strategy, reader, prefetch=ahead, **options)

    def steps_per_epoch(
        self, name: str = "train", *, batch_size: int, tail: Tail = "spread"
    ) -> int:
        """Return how many steps an epoch of a dataset has, the same on all ranks."""
        from gridflow.feed import batches

        rows = self._rows(name)
        if self._strategy_name == "parameter_server":  # the steps of all workers together
            return -(-sum(rows) // whole_number("batch_size", batch_size, 1))
        return batches.steps_for(rows, batch_size, tail)

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
        self._channel.send("progress", **fields)

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Send an epoch's results."""
        values = {name: float(value) for name, value in logs.items()}
        self._channel.send("epoch_end", epoch=epoch, logs=values)

    def checkpoint(self, path: Path, epoch: int, step: int) -> None:
        """Hand a finished checkpoint over."""
        self._channel.send("checkpoint", path=str(path), epoch=epoch, step=step)

    def close(self) -> None:
        """Say that no further steps are to be expected."""
        self.progress(epoch=0, step=0, steps_per_epoch=None, phase="idle", rows=0, logs={})

    # ---------------------------------------------------------------------------------------------

    def _rows(self, name: str) -> Sequence[int]:
        rows: dict[str, list[int]] = self._inbox.wait("counts")["rows"]
        if name not in rows:
            there = ", ".join(repr(each) for each in rows) or "none: run() was given no data="
            raise SchemaError(
                f"there is no dataset {name!r}; there is {there}.{did_you_mean(name, rows)}"
            )
        return rows[name]

    def _check_columns(self, name: str, *forms: Columns | None) -> None:
        """Refuse columns that aren't fed; say it where others have cost rows."""
        from gridflow.feed import selection

        counts = self._inbox.wait("counts")
        used = selection.named(*forms)
        selection.refuse_left_out(used, counts["left_out"].get(name, {}))
        others = {
            column: rows
            for column, rows in counts["nulls"].get(name, {}).items()
            if column not in used
        }
        if others and self.is_chief:
            listed = ", ".join(f"{rows:,} in {column!r}" for column, rows in others.items())
            print(  # noqa: T201 (into the task's log)
                f"gridflow: nulls='drop' has dropped rows of {name!r} for nulls in columns that "
                f"this ctx.dataset() doesn't use: {listed}. Leave such columns out of the data to "
                "keep the rows.",
                flush=True,
            )


def _ahead(prefetch: int | None, backend: str) -> int:
    """Return how many batches are made ahead."""
    if prefetch is None:
        return 2
    if backend != "tensorflow":
        raise InvalidArgument(
            f"prefetch={prefetch} is for tf.data; under backend={backend!r} batches are made when "
            "they are asked for. Leave it out."
        )
    return whole_number("prefetch", prefetch, 0)


def make_context(setup: Mapping[str, Any], channel: Channel, inbox: Inbox) -> TrainingContext:
    """Make the context of this process, once."""
    global _current  # noqa: PLW0603 (one process is one task)
    _current = TrainingContext(setup, channel, inbox)
    return _current
