"""The context passed to the training function: its place in the group, strategy and rows."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gridflow._feed.push import STREAM
from gridflow._keras import runtime as _runtime
from gridflow._training import data_service, feeding, pulling
from gridflow._training.modes.base import DatasetRequest
from gridflow._training.streaming import PushedStream
from gridflow._wire.reports import Evaluated
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gridflow._feed.plan.epochs import EpochCounter, Tail
    from gridflow._feed.selection import Columns, Weights
    from gridflow._files.listing import Paths
    from gridflow._files.parts import FilePart
    from gridflow._keras.loop import Loop
    from gridflow._spec.cluster import ClusterSpec, Task
    from gridflow._spec.option_groups import Sharding
    from gridflow._training.feeding import Start
    from gridflow._training.runtime import TaskRuntime


#: The context of this process.
_present: TrainingContext | None = None


def current_context() -> TrainingContext:
    """Return the context of the task this code runs in. A script calls it first.

    Raises
    ------
    GridflowError
        Outside a training process.
    """
    _runtime.current()
    assert _present is not None, "every gridflow task has a context"
    return _present


class TrainingContext:
    """A task's place in its job, and the services that gridflow offers it.

    Attributes
    ----------
    job : str
        The job's id.
    task : Task
        This task's role and index.
    rank : int
        Index among the tasks that train, from 0; rank 0 is the chief. -1 for parameter servers and
        evaluators, which don't train.
    num_workers : int
        How many tasks train.
    generation : int
        0 at first; increases by one with each restart.
    cluster_spec : ClusterSpec
        The addresses of all tasks.
    work_dir : Path
        This task's own folder, which is also the working directory. It starts empty and is deleted
        at the end; the log then lists what it contained.
    gpus : tuple of str
        Indices or UUIDs of this task's GPUs on its host. TensorFlow sees them as ``GPU:0``,
        ``GPU:1`` and so on.
    """

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._pushed = PushedStream(runtime)
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
        """The job's seed, or None."""
        return self._runtime.training.seed

    @property
    def backend(self) -> str:
        """The backend of Keras 3: ``tensorflow``, ``jax`` or ``torch``."""
        return self._runtime.training.backend

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part in the training now.

        All, unless workers come and go (``num_workers=(2, 8)``). Callbacks with a method
        ``on_group_changed(members)`` are told when it changes.
        """
        goes_on = self._runtime.regrouping
        return tuple(range(self.num_workers)) if goes_on is None else goes_on.ranks

    @property
    def is_chief(self) -> bool:
        """Whether this is the task that writes files which only one task should write.

        Rank 0; where workers come and go, and it is away, the next one.
        """
        return self._runtime.is_chief

    @property
    def is_evaluator(self) -> bool:
        """Whether this task evaluates the training instead of taking part in it."""
        return self._runtime.is_evaluator

    @property
    def strategy(self) -> Any:
        """The requested ``tf.distribute.Strategy``, created on first use.

        With ``multi_worker_mirrored`` and ``parameter_server``, gridflow creates it before calling
        the function, because creating it makes all tasks wait for each other. An evaluator runs
        alone and gets TensorFlow's default strategy. Under JAX and torch it is an object whose
        ``scope()`` does nothing, so the same function works with all backends.
        """
        return self._runtime.mode.strategy

    def server(self, config: Any = None) -> Any:
        """Return this task's ``tf.distribute.Server``, started on first use.

        It listens on the port that the job has reserved for this task. Sessions connect to its
        ``target``. On a parameter server, end the function with ``ctx.server().join()``; gridflow
        stops it when training is over.

        Parameters
        ----------
        config : tf.compat.v1.ConfigProto, optional
            The server's configuration; used by the first call only.

        Raises
        ------
        GridflowError
            Under a strategy other than ``server``, or on an evaluator.
        """
        return self._runtime.mode.server(config)

    def dataset(
        self,
        name: str = "train",
        *,
        batch_size: int,
        features: Columns,
        label: Columns | None = None,
        sample_weight: Weights | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        tail: Tail = "spread",
        map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
        prefetch: int | None = None,
        start: Start = "complete",
    ) -> Any:
        """Return this rank's rows of a dataset passed to ``run(data=…)``, in batches.

        Each iteration is one training epoch. All ranks run the same number of steps, with real rows
        in every batch. In validation, ``evaluate`` and ``predict``, each row counts exactly once,
        regardless of ``tail`` and ``shuffle``. Waits until the rows of all ranks have arrived,
        unless ``start="early"``.

        Parameters
        ----------
        name : str, default "train"
        batch_size : int
            Maximum rows per step and rank. The global batch has up to ``batch_size * num_workers``
            rows.
        features : str, list or dict
            ``"x"`` or ``["x"]``: one tensor. ``["a", "b"]``: a dict of tensors by column.
            ``{"input": "x", "other": ["a", "b"]}``: a dict with your own names, where a list of
            columns is stacked into one float32 matrix. ``[["a", "b"]]``: one stacked matrix.
        label : str, list or dict, optional
            In the same form as `features`.
        sample_weight : str or dict of str to str, optional
            A numeric column; or for several labels a dict with one for each, by the label's name:
            ``{"price": "w", "kind": "w2"}``.
        shuffle : bool, optional
            Whether to reshuffle in each epoch. Default: True for ``"train"``, False for any other
            name.
        seed : int, optional
            Seed for shuffling. Default: the job's seed, or 0.
        tail : {'spread', 'repeat', 'drop'}
            How ranks with different numbers of rows run the same number of steps. ``spread``: every
            row is used; each rank spreads its rows over all steps, in batches whose sizes differ by
            at most one. A rank repeats rows only if it has fewer rows than there are steps.
            ``repeat``: every batch is full; ranks with fewer rows repeat some of them. ``drop``: no
            row is repeated; rows that don't fill a step on all ranks are left out.
            ``result.ledger`` counts all of these.
        map : callable, optional
            A function applied to each batch. It takes ``x``, ``x, y`` or ``x, y, sample_weight``,
            and returns what Keras should get. ``tf.data.Dataset.map`` applies it to several batches
            at a time, in order; under JAX and torch it gets numpy arrays.
        prefetch : int, optional
            Number of batches prepared in advance. Default: 2. Not available under JAX and torch,
            where batches are created on demand.
        start : {'complete', 'early'}
            ``complete``: wait for all rows. ``early``: return as soon as each rank has some. The
            first epoch then takes rows in the order in which they arrive, unshuffled, and waits for
            more when it has to. Later epochs are the same with both. For Keras 3 on TensorFlow,
            without parameter servers; see ``docs/early.md``.

        Returns
        -------
        tf.data.Dataset, tf.distribute.DistributedDataset, WorkerDataset or ArrayDataset
            Elements as Keras takes them: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``. It has
            ``len``, ``map`` and ``take``, except under ``parameter_server``. Outside training,
            Keras skips repeated rows only in the object that this function returns, or in the
            result of its ``map`` and ``take`` under a mirrored strategy, JAX and torch. Under
            ``parameter_server``, a function that creates such a dataset, infinite, in the worker's
            server: for `fit`, `evaluate` and ``create_per_worker_dataset``. ``tail`` has no effect
            there. Under JAX and torch, a ``keras.utils.PyDataset`` of numpy arrays.

        Raises
        ------
        SchemaError
            The dataset or column doesn't exist, can't be fed, or has nulls that no rule covers; or
            there are too few rows for a step on each rank.
        """
        request = DatasetRequest(
            name, batch_size, features, label, sample_weight, shuffle, seed, tail, map, prefetch
        )
        return feeding.dataset(self._runtime, request, start)

    def adapt_dataset(
        self,
        name: str = "train",
        *,
        features: Columns,
        batch_size: int = 1024,
        rows: int | None = None,
    ) -> Any:
        """Return rows of all ranks, the same on each, to adapt preprocessing layers.

        ``layer.adapt(ctx.adapt_dataset("train", features="text"))`` gives ``Normalization``,
        ``TextVectorization``, ``StringLookup`` and similar layers the same state on every rank.
        Adapted to ``ctx.dataset``, which has only the rank's own rows, they would differ. All ranks
        must call this: they exchange the rows and write them to disk, where they are deleted with
        ``ctx.work_dir``. Under ``none`` the rows are the rank's own.

        Parameters
        ----------
        name : str, default "train"
        features : str, list or dict
            As in `dataset`; one column, or one stacked matrix, for a layer.
        batch_size : int, default 1024
            Rows per batch.
        rows : int, optional
            Approximate number of rows, if not all are needed: each rank provides an equal share,
            its first rows.

        Returns
        -------
        tf.data.Dataset or ArrayDataset
            Batches of ``x`` only, each row once, in the same order on all ranks. Under JAX and
            torch, a ``keras.utils.PyDataset``.

        Raises
        ------
        GridflowError
            Under ``parameter_server``, where the function has no rows.
        """
        return feeding.adapt_dataset(
            self._runtime, name, features=features, batch_size=batch_size, rows=rows
        )

    def steps_per_epoch(
        self, name: str = "train", *, batch_size: int, tail: Tail = "spread"
    ) -> int:
        """Return the number of steps in an epoch of a dataset, the same on all ranks."""
        return feeding.steps_per_epoch(self._runtime, name, batch_size, tail)

    def absolute_path(self, path: str | os.PathLike[str]) -> str:
        """Complete a path with the job's default file system and folder.

        Parameters
        ----------
        path : str or path-like
            A path with a scheme is returned unchanged. Any other is in the default file system. On
            Spark that is Hadoop's ``fs.defaultFS``: relative paths start at the user's home folder
            (HDFS) or at the root (object stores). If the default file system is local, and without
            Spark, they start at the driver's working directory.

        Returns
        -------
        str
            The path with its scheme; a local path has none.
        """
        from gridflow._files import systems

        return systems.absolute_path(path, self._runtime.spec.hosts.default_folder)

    def files(
        self,
        path: Paths,
        *,
        format: str | None = None,  # noqa: A002 (as in Spark)
        filesystem: Any = None,
    ) -> list[FilePart]:
        """Return this rank's share of some files, divided evenly by bytes.

        For your own formats and input pipelines. All ranks must call it.

        Parameters
        ----------
        path : str, path-like, or list of them
            Files, folders or patterns (``s3://bucket/day=*/part-*.parquet``), see `absolute_path`.
            A folder stands for everything below it, except names that begin with ``_`` or ``.``.
        format : {'parquet', 'tfrecord', 'any'}, optional
            The unit to distribute: row groups, ranges of records (a compressed file is one range),
            or whole files. Default: by suffix; whole files if suffixes differ or are unknown.
        filesystem : optional
            A pyarrow or fsspec file system to use instead of the one that the scheme names, or a
            dict of options for the latter.

        Returns
        -------
        list of FilePart
            Empty if there are fewer parts than ranks.
        """
        return pulling.files(self._runtime, path, format, filesystem)

    def parquet_dataset(
        self,
        path: Paths,
        *,
        batch_size: int,
        features: Columns,
        label: Columns | None = None,
        sample_weight: Weights | None = None,
        name: str = "train",
        nulls: str | Mapping[str, Any] = "error",
        shuffle: bool | None = None,
        seed: int | None = None,
        tail: Tail = "spread",
        map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
        prefetch: int | None = None,
        filesystem: Any = None,
    ) -> Any:
        """Return this rank's rows of Parquet files as a dataset, read directly by the ranks.

        It has the guarantees of `dataset`: equal steps on all ranks, each row once outside
        training, row counts in the ledger, exact resume. Row groups are distributed over the ranks,
        evenly by the bytes of the columns in use; other columns aren't read. All ranks must call
        it, and the files must not change meanwhile.

        Parameters
        ----------
        path : str, path-like, or list of them
            See `files`.
        batch_size, features, label, sample_weight, seed, tail, map, prefetch
            See `dataset`.
        name : str, default "train"
            Name in the ledger; each dataset of a function needs a different one.
        nulls : {'error', 'drop'} or dict, default 'error'
            As in `TensorflowDistributor`, for the columns in use. ``'drop'`` reads row groups with
            nulls a second time, to count the remaining rows.
        shuffle : bool, optional
            Whether to reshuffle in each epoch: the order of row groups, and rows within 128 MiB of
            them. Default: True for ``"train"``, False for any other name.
        filesystem : optional
            See `files`.

        Returns
        -------
        As `dataset`.

        Raises
        ------
        InvalidArgument, SchemaError, DataError
            Files, columns or rows are missing, or the ranks see different files.
        GridflowError
            Under ``parameter_server``, whose workers run no Python.
        """
        request = DatasetRequest(
            name, batch_size, features, label, sample_weight, shuffle, seed, tail, map, prefetch
        )
        return pulling.parquet_dataset(
            self._runtime, path, request, nulls=nulls, filesystem=filesystem
        )

    def tfrecord_dataset(
        self,
        path: Paths,
        *,
        batch_size: int,
        features: Columns,
        label: Columns | None = None,
        sample_weight: Weights | None = None,
        name: str = "train",
        spec: Mapping[str, Any] | None = None,
        compression: str | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        tail: Tail = "spread",
        map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
        prefetch: int | None = None,
        filesystem: Any = None,
    ) -> Any:
        """Return this rank's Examples of TFRecord files as a dataset, read directly by the ranks.

        Works like `parquet_dataset`. Ranges of records, of 8 MiB each, and whole compressed files
        are distributed. To find the records, the files are first read once, shared among the ranks.

        Parameters
        ----------
        path : str, path-like, or list of them
            See `files`.
        batch_size, features, label, sample_weight, name, shuffle, seed, tail, map, prefetch
            See `parquet_dataset`.
        spec : dict of str to tf.io.FixedLenFeature, optional
            As for ``tf.io.parse_example``. Default: types and shapes inferred from the first 100
            records.
        compression : {'none', 'gzip', 'deflate'}, optional
            Default: by suffix (``.gz``, ``.deflate``).
        filesystem : optional
            See `files`.
        """
        request = DatasetRequest(
            name, batch_size, features, label, sample_weight, shuffle, seed, tail, map, prefetch
        )
        return pulling.tfrecord_dataset(
            self._runtime, path, request, spec=spec, compression=compression, filesystem=filesystem
        )

    def stream(
        self,
        batch_size: int,
        *,
        features: Columns,
        label: Columns | None = None,
        sample_weight: Weights | None = None,
        tail: Tail = "spread",
        map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
        prefetch: int | None = None,
    ) -> Any:
        """Return the rows that `JobHandle.feed` or `JobHandle.infer` push to this rank.

        Rows come once, in order of arrival, and their number isn't known: the dataset ends after
        `JobHandle.stop` or `stop_feeding`, once all rows have been read. All ranks must call it,
        once. Waits for the first row.

        Ranks that train one model run equal steps: a rank without rows makes all of them wait. At
        the end, the rows that a rank has beyond the full batches of the shortest rank are spread
        over further steps, in which a rank with no rows left repeats its last ones; with
        ``tail="drop"`` they are left out. ``result.ledger`` counts them. If each rank trains alone
        (``strategy="none"``), it continues as its own rows arrive.

        Parameters
        ----------
        batch_size : int
            Rows per step and rank, at most.
        features, label, sample_weight, tail, map, prefetch
            As for `dataset`.

        Returns
        -------
        tf.data.Dataset or tf.distribute.DistributedDataset
            For one ``model.fit(..., epochs=1)``, for several fits with ``steps_per_epoch``, or for
            your own loop. Under JAX and torch, where each rank trains alone, an iterator over numpy
            arrays. On the chief of ``parameter_server``, which distributes the rows, an object for
            one ``ctx.fit``.

        Raises
        ------
        InvalidArgument
            It was called before, or the strategy or backend doesn't support streams.
        DataError
            The stream ended before this rank had a row.
        """
        return self._pushed.open(
            DatasetRequest(
                STREAM,
                batch_size,
                features,
                label,
                sample_weight,
                tail=tail,
                function=map,
                prefetch=prefetch,
            )
        )

    def data_service(
        self,
        dataset: Any,
        *,
        sharding: Sharding = "dynamic",
        job_name: str | None = None,
        compression: str | None = "auto",
        shared: bool = True,
    ) -> Any:
        """Return what the job's data workers make of a ``tf.data`` pipeline.

        The pipeline, up to the batches, runs in the tasks of role ``data`` instead of here; see
        ``docs/data_service.md``. With ``shared=True`` all ranks call it, with the same pipeline.

        Parameters
        ----------
        dataset : tf.data.Dataset
            Of batches for one replica, made of TensorFlow's operations alone.
        sharding : {'dynamic', 'off', 'file', 'file_or_data', 'hint'}
            How data workers share the dataset. ``dynamic``: each element once, dealt out as
            workers ask for more. ``off``: each worker makes all of it. ``file``: each worker
            has files of its own; ``file_or_data``: or elements of its own, where it can't be
            files. ``hint``: ``dataset.shard(tf.data.experimental.SHARD_HINT, …)`` says where.
        job_name : str, optional
            Datasets of one name are read together, each element by one of them, across jobs that
            use one service. Default: a name of this dataset's own.
        compression : {'auto', 'snappy', None}
            Of elements on their way. ``auto``: where worker and trainer are on different hosts.
        shared : bool, default True
            Whether the ranks share one pass over the data, so that each element goes to one of
            them. False: each rank has a pass of its own, over a dataset that may be its own, such
            as one of `files`.

        Returns
        -------
        tf.data.Dataset or tf.distribute.DistributedDataset
            Each iteration is a pass over the data. Under a mirrored strategy each replica takes an
            element per step; a rank whose data are over goes on with empty batches until the
            others' are, too. In ``fit`` and ``evaluate`` these count for nothing, in any model.

        Raises
        ------
        InvalidArgument
            The pipeline calls Python, it isn't the chief's, or an argument can't be.
        GridflowError
            The job has no data service, or it doesn't answer within ``start_timeout``.
        """
        return data_service.distributed(
            self._runtime,
            dataset,
            sharding=sharding,
            job_name=job_name,
            compression=compression,
            shared=shared,
        )

    @property
    def should_stop(self) -> bool:
        """Whether this rank has read all rows and no more will come.

        For loops over the rows of `stream` that ask before they take a batch. Under strategies that
        train one model it becomes True on all ranks after the same step. Without a stream, whether
        feeding has ended.
        """
        return self._pushed.should_stop

    def stop_feeding(self) -> None:
        """Accept no more pushed rows: feeders end at once, without reading what is left.

        Rows that have already arrived can still be read. It is enough if one rank calls this.
        """
        self._pushed.stop()

    def results(self, values: Any) -> None:
        """Return the results of `JobHandle.infer` for the oldest unanswered batch.

        Parameters
        ----------
        values : array, list, or dict of str to array or list
            One entry for each row of the batch, in the same order. A dict holds columns by name;
            anything else is the only column. Multidimensional arrays become array columns.

        Raises
        ------
        GridflowError
            The number of rows differs, or no batch is waiting for an answer.
        """
        self._pushed.answer(values)

    @property
    def coordinator(self) -> Any:
        """The ``ClusterCoordinator`` of ``parameter_server``, for custom training loops.

        Raises
        ------
        GridflowError
            Under another strategy, or not on the chief.
        """
        return self._runtime.mode.coordinator

    def fit(
        self,
        model: Any,
        data: Any = "train",
        *,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        validation: Any = None,
        validation_steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        verbose: int = 0,
        initial_epoch: int = 0,
        class_weight: Mapping[int, float] | None = None,
        **columns: Any,
    ) -> Any:
        """Train a Keras 3 or tf_keras model under ``parameter_server``, like ``model.fit``.

        Under JAX and torch this calls ``model.fit``, which works there.

        Parameters
        ----------
        model
            Created and compiled in ``ctx.strategy.scope()``.
        data : str, WorkerDataset, tf.data.Dataset or callable, default "train"
            The result of ``ctx.dataset``; a dataset's name, with the arguments of ``ctx.dataset``
            as `columns`; or a ``tf.data.Dataset`` of batches, or a function without arguments that
            returns one. Such a dataset may consist of TensorFlow operations only, because it runs
            in the workers' servers, which have no Python. Or the result of ``ctx.stream``, for one
            epoch.
        epochs : int, default 1
        steps_per_epoch : int, optional
            Steps of all workers together; they read their rows in an endless loop. Default: enough
            to train on each row of ``run(data=…)`` once. Required for other data.
        validation : optional
            Like `data`; each row of ``run(data=…)`` is evaluated once.
        validation_steps : int, optional
            Required unless the data are rows of ``run(data=…)``.
        callbacks : sequence, optional
            Keras callbacks. Default: ``ctx.callbacks()``.
        verbose : int, default 0
            As in Keras; the driver shows its progress bar in any case.
        initial_epoch : int, default 0
            The epoch to start with, as in Keras; a resumed checkpoint takes precedence.
        class_weight : mapping of int to float, optional
            Weight of a row in training, by its label. Classes are numbered from 0.
        **columns
            Arguments of ``ctx.dataset``, if `data` is a name: ``batch_size``, ``features``,
            ``label``, ``sample_weight``, ``shuffle``, ``seed``.

        Returns
        -------
        History
            Of the model's Keras flavour.

        Raises
        ------
        GridflowError
            Under another strategy: ``model.fit`` works there.
        InvalidArgument
            The model or the data isn't supported.
        """
        from gridflow._keras.patches.hooks import fits

        if callbacks is None:
            callbacks = self.callbacks()
        trainer = self._runtime.mode.trainer(model)
        # Elsewhere it is Keras's own fit, which counts itself.
        hands_out = self._runtime.facts.hands_out_steps
        with fits.counting(self._runtime) if hands_out else contextlib.nullcontext():
            return trainer.fit(
                self._named(data, columns),
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation=self._named(validation, columns),
                validation_steps=validation_steps,
                callbacks=callbacks,
                verbose=verbose,
                initial_epoch=initial_epoch,
                class_weight=class_weight,
            )

    def alone(self) -> AbstractContextManager[None]:
        """Let this process train its own models in a block, separately from the group's.

        Where several processes or devices train one model, ``fit`` and ``train_on_batch`` reject a
        model created outside ``ctx.strategy.scope()``, because each process would train a separate
        one. In this block they accept it.

        Examples
        --------
        >>> with ctx.alone():
        ...     baseline.fit(x, y)
        """
        return _runtime.alone()

    def evaluate(
        self,
        model: Any,
        data: Any = "validation",
        *,
        steps: int | None = None,
        **columns: Any,
    ) -> dict[str, float]:
        """Evaluate a model under ``parameter_server``, on the workers.

        Parameters are those of `fit`. Each row of ``run(data=…)`` is evaluated once. Under JAX and
        torch this calls ``model.evaluate``.

        Returns
        -------
        dict of str to float
            Loss and metrics by name.
        """
        from gridflow._keras.patches.hooks import fits

        trainer = self._runtime.mode.trainer(model)
        with fits.counting(self._runtime):
            return trainer.evaluate(self._named(data, columns), steps=steps)

    def evaluate_checkpoints(
        self, model: Any, data: Any, *, steps: int | None = None
    ) -> list[dict[str, float]]:
        """Evaluate each new checkpoint of the running training, on an evaluator.

        Returns when training has ended and its last checkpoint has been evaluated. Of the
        checkpoints that arrive during an evaluation, only the newest is evaluated next. The results
        go to ``result.evaluation`` and, as scalars ``evaluation_<name>``, to TensorBoard.

        Parameters
        ----------
        model
            The same compiled model as in training, created in ``ctx.strategy.scope()`` or not.
        data
            As for ``model.evaluate``; read once for each checkpoint. An evaluator doesn't get rows
            of ``run(data=…)``.
        steps : int, optional
            Batches for each evaluation. Default: all.

        Returns
        -------
        list of dict
            Epoch (``epoch``), step (``step``), loss and metrics of each evaluation.

        Raises
        ------
        GridflowError
            On a task that isn't an evaluator.
        """
        runtime = self._runtime
        if not runtime.is_evaluator:
            raise GridflowError(
                f"evaluate_checkpoints() is for the evaluator; this is {runtime.task}. Branch on "
                "ctx.is_evaluator."
            )
        from gridflow._keras import evaluation

        return evaluation.follow(
            model,
            data,
            steps=steps,
            inbox=runtime.inbox,
            tensorboard_dir=runtime.tensorboard_dir,
            report=lambda place, logs: runtime.channel.send(Evaluated(place, logs)),
        )

    def callbacks(
        self,
        *,
        checkpoint: bool = True,
        tensorboard: bool | None = None,
        progress: bool = True,
    ) -> list[Any]:
        """Return Keras callbacks, each of which does its part on the right ranks.

        Parameters
        ----------
        checkpoint : bool, default True
            Checkpoints for exact resume after a restart (see ``docs/failure.md``).
        tensorboard : bool, optional
            Event files, written by the chief and copied to ``result.tensorboard_dir``. Default: if
            the package ``tensorboard`` is installed where the chief runs.
        progress : bool, default True
            Steps and losses for the driver's progress bar.
        """
        from gridflow._keras import callbacks

        return callbacks.build(
            self._runtime, checkpoint=checkpoint, tensorboard=tensorboard, progress=progress
        )

    def loop(self, *kept: Any, **values: Any) -> Loop:
        """Return what a training loop of your own goes on with when its group has changed.

        It is to such a loop what `callbacks` are to ``fit``: with it, checkpoints are written, also
        at the end of each pass over a dataset, and a restarted group resumes from them; and where
        workers can be replaced, or come and go, the loop goes on when one is lost or comes back
        (see ``docs/failure.md``).

        Parameters
        ----------
        kept
            What the loop changes: models (compiled ones with their optimizer), other optimizers,
            metrics and variables, all of them built; and the datasets whose batches it trains on.
        values
            Plain values that it changes, with their first values: numbers, strings, None, lists and
            dicts of these. They become attributes of the loop.

        Returns
        -------
        Loop
            ``loop.run(function)`` calls a function that trains, and calls it again when the group
            has changed: with variables, values and datasets as they were after the last complete
            step. A step ends where the next one of ``loop.batches(dataset)`` is asked for, or with
            ``loop.keep()``. While the function runs, ``ctx.strategy.num_replicas_in_sync`` is the
            number of workers that take part.

        Raises
        ------
        InvalidArgument
            A model or optimizer isn't built, an object has no variables, a value isn't plain, or
            the strategy is ``parameter_server``.
        GridflowError
            On a parameter server or an evaluator.

        Examples
        --------
        >>> def train(ctx):
        ...     loop = ctx.loop(model, optimizer, rows, epoch=0)
        ...
        ...     def steps():
        ...         while loop.epoch < 3:
        ...             for x, y in loop.batches(rows):
        ...                 step(x, y)
        ...             loop.epoch += 1
        ...
        ...     loop.run(steps)
        """
        from gridflow._keras.loop import Loop

        runtime = self._runtime
        if not runtime.trains:
            raise GridflowError("ctx.loop() is for tasks that train.")
        if runtime.facts.hands_out_steps:
            raise InvalidArgument(
                "ctx.loop() isn't available with strategy='parameter_server', whose workers make "
                "steps of their own: use ctx.fit, or ctx.coordinator with tf.train.Checkpoint."
            )
        return Loop(runtime, kept, values)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Wait until all ranks have called this as often as this one.

        The ranks meet through the driver, so it works with every strategy and backend and doesn't
        interfere with collective operations. Within ``fit``, call it on all ranks at the same step:
        a rank that is waiting in another rank's step can't get here.

        Parameters
        ----------
        timeout : float, optional
            Maximum seconds to wait. Default: the job's ``Deadlines.step``.

        Raises
        ------
        BrokenBarrier
            A rank will never join: it has returned, or called `broadcast` or `all_gather` instead.
        BarrierTimeout
            A rank didn't join in time; the message names it.
        GridflowError
            On a parameter server or an evaluator, which don't take part in barriers.

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
        """Return the chief's value on all ranks. All ranks must call it.

        Parameters
        ----------
        value
            The value to send; those of other ranks are ignored. None, numbers, strings, bytes,
            numpy arrays of these, and lists, tuples and dicts of them; at most 1 MiB. It isn't
            pickled.
        timeout : float, optional
            As for `barrier`.

        Returns
        -------
        object
            Equal to the chief's.

        Raises
        ------
        InvalidArgument
            The value's type isn't supported, or it is too large.
        BrokenBarrier, BarrierTimeout, GridflowError
            As for `barrier`.

        Examples
        --------
        >>> def train(ctx):
        ...     return ctx.broadcast(new_folder() if ctx.is_chief else None)
        """
        (found,) = self._runtime.meetings.hold(
            "broadcast", value if self.is_chief else None, timeout, is_heard=self.is_chief
        )
        return found

    def all_gather(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Return the values of all ranks, in rank order. All ranks must call it.

        Parameters
        ----------
        value
            Of the types that `broadcast` takes; at most 1 MiB, and at most 16 MiB divided by the
            number of ranks.
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
        """Report a step of a custom training loop to the driver.

        From the first report on, ``Deadlines.step`` applies to the loop, as it does to ``fit``.

        Parameters
        ----------
        step : int
            Number of steps completed.
        metrics : float
            Values shown next to the progress bar.
        """
        self._runtime.due.reported()
        self._runtime.progress(
            epoch=0, step=step, steps_per_epoch=None, phase="train", rows=0, logs=metrics
        )

    def _named(self, data: Any, columns: Mapping[str, Any]) -> Any:
        return self.dataset(data, **columns) if isinstance(data, str) else data


def make_context(runtime: TaskRuntime) -> TrainingContext:
    """Make the context of this process, once."""
    global _present  # noqa: PLW0603 (one process is one task)
    _runtime.enter(runtime)
    _present = TrainingContext(runtime)
    return _present
