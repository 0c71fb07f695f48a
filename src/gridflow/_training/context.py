"""What the training function is given: its place in the group, its strategy, its rows.

Longer than other modules: it has the signatures and descriptions of all that a function can call.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gridflow._feed.push import STREAM
from gridflow._keras import runtime as _runtime
from gridflow._training import feeding, pulling
from gridflow._training.modes.base import DatasetRequest
from gridflow._training.streaming import PushedStream
from gridflow._wire.reports import Evaluated
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gridflow._feed.plan.counter import EpochCounter
    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.selection import Columns
    from gridflow._files.listing import Paths
    from gridflow._files.parts import FilePart
    from gridflow._spec.cluster import ClusterSpec, Task
    from gridflow._training.arriving import Start
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


class TrainingContext:
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
        start: Start = "complete",
    ) -> Any:
        """Return this rank's rows of a dataset given to ``run(data=…)``, in batches.

        Each iteration is one epoch of training. All ranks make the same number of steps, with real
        rows in every batch. As validation data of ``fit``, in ``evaluate`` and in ``predict`` each
        row counts once, whatever ``tail`` and ``shuffle`` say. Waits until the rows of all ranks
        have arrived, unless ``start="early"``.

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
        start : {'complete', 'early'}
            ``complete``: wait for all rows. ``early``: return as soon as each rank has some, and
            let the first epoch take them in the order in which they arrive, unshuffled; it waits
            on its way where it has to. Every later epoch is the same with both. For Keras 3 on
            TensorFlow, without parameter servers; see ``docs/early.md``.

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
        """Return rows of all ranks, the same on each, for the ``adapt`` of preprocessing layers.

        ``layer.adapt(ctx.adapt_dataset("train", features="text"))`` gives ``Normalization``,
        ``TextVectorization``, ``StringLookup`` and their like the same state on every rank. Adapted
        to ``ctx.dataset``, a rank's own rows, they would differ from rank to rank. To be called by
        all ranks: they send one another the rows and write them to their disks, to be deleted
        with ``ctx.work_dir``. Under ``none`` they are the rank's own.

        Parameters
        ----------
        name : str, default "train"
        features : str, list or dict
            As for `dataset`; one column, or one stacked matrix, for a layer.
        batch_size : int, default 1024
            Rows in a batch.
        rows : int, optional
            About how many rows, where not all are needed: each rank gives its first ones, an equal
            share.

        Returns
        -------
        tf.data.Dataset or ArrayDataset
            A plain dataset of batches of ``x`` alone, each row once, in the same order on all
            ranks. Under JAX and torch a ``keras.utils.PyDataset``.

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
        """Return how many steps an epoch of a dataset has, the same on all ranks."""
        return feeding.steps_per_epoch(self._runtime, name, batch_size, tail)

    def absolute_path(self, path: str | os.PathLike[str]) -> str:
        """Return a path with all that it leaves out, by the job's default file system.

        Parameters
        ----------
        path : str or path-like
            One with a scheme stays as it is. Any other lies in the default file system: on Spark
            that of Hadoop's ``fs.defaultFS``, there in the folder of the user (HDFS) or at its top
            (object stores); where that is the local one, and without Spark, in the folder in which
            the driver runs.

        Returns
        -------
        str
            With its scheme; a path of this machine without one.
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
        """Return this rank's part of some files, evenly by bytes.

        For formats of your own, and for pipelines of your own. To be called by all ranks.

        Parameters
        ----------
        path : str, path-like, or list of them
            Files, folders or patterns (``s3://bucket/day=*/part-*.parquet``), see `absolute_path`.
            Of folders everything below them counts but for names that begin with ``_`` or ``.``.
        format : {'parquet', 'tfrecord', 'any'}, optional
            What is dealt out: row groups, ranges of records (a compressed file is one range), or
            whole files. Default: by the suffixes, whole files where these differ or say nothing.
        filesystem : optional
            In place of the file system that the scheme names: one of pyarrow or fsspec; or a dict
            of options for that one.

        Returns
        -------
        list of FilePart
            Empty where there are fewer parts than ranks.
        """
        return pulling.files(self._runtime, path, format, filesystem)

    def parquet_dataset(
        self,
        path: Paths,
        *,
        batch_size: int,
        features: Columns,
        label: Columns | None = None,
        sample_weight: str | None = None,
        name: str = "train",
        nulls: str | Mapping[str, Any] = "error",
        shuffle: bool | None = None,
        seed: int | None = None,
        tail: Tail = "spread",
        map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
        prefetch: int | None = None,
        filesystem: Any = None,
    ) -> Any:
        """Return this rank's rows of Parquet files as a dataset, read by the ranks themselves.

        All that `dataset` promises holds: equal steps on all ranks, each row once outside of
        training, an account of the rows, exact resume. Row groups are dealt out to the ranks,
        evenly by the bytes of the columns that are used; others aren't read. To be called by all
        ranks, on files that nobody changes meanwhile.

        Parameters
        ----------
        path : str, path-like, or list of them
            See `files`.
        batch_size, features, label, sample_weight, seed, tail, map, prefetch
            See `dataset`.
        name : str, default "train"
            What the ledger calls them; each dataset of a function needs its own.
        nulls : {'error', 'drop'} or dict, default 'error'
            As for `TensorflowDistributor`, for the columns that are used. ``'drop'`` reads row
            groups with nulls a second time, to count what remains.
        shuffle : bool, optional
            Anew in each epoch: the order of row groups, and rows within 128 MiB of them. Default:
            True for ``"train"``, False for any other name.
        filesystem : optional
            See `files`.

        Returns
        -------
        As `dataset`.

        Raises
        ------
        InvalidArgument, SchemaError, DataError
            There are no such files, columns or rows; the ranks see different files.
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
        sample_weight: str | None = None,
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
        """Return this rank's Examples of TFRecord files as a dataset, read by the ranks themselves.

        As `parquet_dataset`. What is dealt out are ranges of records, of 8 MiB each, and compressed
        files whole. The files are read once before, to find the records; each rank reads some.

        Parameters
        ----------
        path : str, path-like, or list of them
            See `files`.
        batch_size, features, label, sample_weight, name, shuffle, seed, tail, map, prefetch
            See `parquet_dataset`.
        spec : dict of str to tf.io.FixedLenFeature, optional
            As for ``tf.io.parse_example``. Default: types and shapes by the first 100 records.
        compression : {'none', 'gzip', 'deflate'}, optional
            Default: by the suffix (``.gz``, ``.deflate``).
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
        sample_weight: str | None = None,
        tail: Tail = "spread",
        map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
        prefetch: int | None = None,
    ) -> Any:
        """Return the rows that `JobHandle.feed` or `JobHandle.infer` push to this rank.

        They come once, in the order in which they arrive, without a known end: the dataset ends
        when `JobHandle.stop` was called, or `stop_feeding`, and all rows were handed out. To be
        called once, by all ranks. Waits for the first row.

        Ranks that train one model make equal steps: one that has no rows lets all wait. At the end
        what a rank has beyond the full batches of the shortest is dealt out to further steps, in
        which a rank that has nothing left repeats its last rows, or left out (``tail="drop"``).
        ``result.ledger`` says so. Where each rank trains alone (``strategy="none"``) each goes on
        as its own rows come.

        Parameters
        ----------
        batch_size : int
            Rows per step and rank, at most.
        features, label, sample_weight, tail, map, prefetch
            As for `dataset`.

        Returns
        -------
        tf.data.Dataset or tf.distribute.DistributedDataset
            For one ``model.fit(..., epochs=1)``, for fits with ``steps_per_epoch`` one after
            another, or for a loop of your own. Under JAX and torch, where each rank trains alone,
            an iterator over numpy arrays. To the chief of ``parameter_server``, which deals the
            rows out, something for one ``ctx.fit``.

        Raises
        ------
        InvalidArgument
            It was called before, or the strategy or backend has no such datasets.
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

    @property
    def should_stop(self) -> bool:
        """Whether no more rows will come to this rank, and it has taken all of them.

        Of a stream that `stream` has returned; for a loop that asks before it draws a batch. Under
        strategies that train one model it becomes True on all ranks after the same step. Without a
        stream: whether feeding has ended.
        """
        return self._pushed.should_stop

    def stop_feeding(self) -> None:
        """Let nobody push rows any more: feeders end at once, without reading what is left.

        What has arrived by then can still be read. Of the ranks one is enough.
        """
        self._pushed.stop()

    def results(self, values: Any) -> None:
        """Hand back what `JobHandle.infer` is to return for the last batch that has no answer yet.

        Parameters
        ----------
        values : array, list, or dict of str to array or list
            With one entry for each row of the batch, in the same order. A dict has the columns by
            name; anything else is the only column. Arrays of more than one dimension become
            arrays.

        Raises
        ------
        GridflowError
            The number of rows is another one, or no batch waits for an answer.
        """
        self._pushed.answer(values)

    @property
    def coordinator(self) -> Any:
        """The ``ClusterCoordinator`` of ``parameter_server``, for training loops of your own.

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
        """Train a model of Keras 3 or tf_keras under ``parameter_server``, as ``fit`` would.

        Under JAX and torch the same call is ``model.fit``, which works there, too.

        Parameters
        ----------
        model
            Made and compiled in ``ctx.strategy.scope()``.
        data : str, WorkerDataset, tf.data.Dataset or callable, default "train"
            What ``ctx.dataset`` returns; or a dataset's name, with the arguments of
            ``ctx.dataset`` as `columns`; or a ``tf.data.Dataset`` of batches, or a function without
            arguments that returns one, made of operations alone: it runs inside the workers'
            servers, where no Python lives. Or what ``ctx.stream`` returns, in one epoch.
        epochs : int, default 1
        steps_per_epoch : int, optional
            Steps of all workers together, who draw their rows without end. Default: each row of
            ``run(data=…)`` is trained on once; needed with other data.
        validation : optional
            Like `data`; rows of ``run(data=…)`` are tested once each.
        validation_steps : int, optional
            Needed with other data than rows of ``run(data=…)``.
        callbacks : sequence, optional
            Keras callbacks. Default: ``ctx.callbacks()``.
        verbose : int, default 0
            As for Keras; the progress bar of the driver is there in any case.
        initial_epoch : int, default 0
            The epoch to begin with, as for Keras; a checkpoint that is resumed goes before it.
        class_weight : mapping of int to float, optional
            How much a row counts in training, by the class that is its label. Classes are
            numbered from 0 on.
        **columns
            Arguments of ``ctx.dataset``, where a name is given: ``batch_size``, ``features``,
            ``label``, ``sample_weight``, ``shuffle``, ``seed``.

        Returns
        -------
        History
            Of the model's flavour of Keras.

        Raises
        ------
        GridflowError
            Under another strategy: ``model.fit`` works there.
        InvalidArgument
            The model or the data can't be used so.
        """
        from gridflow._keras.patches.hooks import fits

        if callbacks is None:
            callbacks = self.callbacks()
        trainer = self._runtime.mode.trainer(model)
        # Everywhere else it is Keras's own, which is counted itself.
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
        """Let this process train models by itself in a block, beside the group's.

        Where several processes or devices train one model, ``fit`` and ``train_on_batch`` refuse a
        model that was made outside of ``ctx.strategy.scope()``: each process would train its own.
        In this block they don't.

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
        """Return loss and metrics of a model under ``parameter_server``, found by the workers.

        Parameters are those of `fit`. Rows of ``run(data=…)`` are tested once each. Under JAX and
        torch the same call is ``model.evaluate``.
        """
        from gridflow._keras.patches.hooks import fits

        trainer = self._runtime.mode.trainer(model)
        with fits.counting(self._runtime):
            return trainer.evaluate(self._named(data, columns), steps=steps)

    def evaluate_checkpoints(
        self, model: Any, data: Any, *, steps: int | None = None
    ) -> list[dict[str, float]]:
        """Evaluate each new checkpoint of the running training; what an evaluator does.

        Returns when the training has ended and its last checkpoint was evaluated. Checkpoints that
        come while another one is being evaluated are skipped, but for the newest. The results go
        to ``result.evaluation`` and, as scalars ``evaluation_<name>``, to TensorBoard.

        Parameters
        ----------
        model
            The same model as in training, compiled; made under ``ctx.strategy.scope()`` or not.
        data
            What ``model.evaluate`` takes; it is read once for each checkpoint. The rows of
            ``run(data=…)`` don't come to an evaluator.
        steps : int, optional
            Batches for each evaluation. Default: all.

        Returns
        -------
        list of dict
            ``epoch``, ``step``, loss and metrics of each evaluation.

        Raises
        ------
        GridflowError
            On a task that is no evaluator.
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

    def _named(self, data: Any, columns: Mapping[str, Any]) -> Any:
        return self.dataset(data, **columns) if isinstance(data, str) else data


def make_context(runtime: TaskRuntime) -> TrainingContext:
    """Make the context of this process, once."""
    global _present  # noqa: PLW0603 (one process is one task)
    _runtime.enter(runtime)
    _present = TrainingContext(runtime)
    return _present
