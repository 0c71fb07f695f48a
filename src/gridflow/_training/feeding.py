"""Rows for the training function: ``ctx.dataset`` and what goes with it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from gridflow._spec.options import choose, whole_number
from gridflow._training import arriving
from gridflow._training.modes.base import DatasetRequest
from gridflow._wire.commands import Counts
from gridflow._wire.reports import EpochFed
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.selection import Columns
    from gridflow._training.arriving import Start
    from gridflow._training.runtime import TaskRuntime


class Feeding:
    """The part of a `TrainingContext` that has to do with the rows of ``run(data=…)``."""

    _runtime: TaskRuntime
    _adapted = 0

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
        from gridflow._feed.dataset import evaluation_view

        runtime = self._runtime
        if seed is None:
            seed = runtime.training.seed or 0
        columns = {"features": features, "label": label, "sample_weight": sample_weight}
        shuffled = name == "train" if shuffle is None else shuffle
        choose("start", start, arriving.STARTS)
        if start == "early":
            return self._early(
                name,
                columns,
                batch_size=batch_size,
                tail=tail,
                prefetch=prefetch,
                function=map,
                shuffle=shuffled,
                seed=seed,
            )
        rows = self._rows(name)
        own_rows = evaluation_view.own_rows(rows, runtime.inbox.wait(Counts).borrowed[name])
        self._check_columns(name, features, label, sample_weight)
        request = DatasetRequest(
            name,
            columns,
            batch_size,
            rows,
            own_rows,
            shuffle=shuffled,
            seed=seed,
            tail=tail,
            function=map,
            prefetch=prefetch,
        )
        return runtime.mode.dataset(request)

    def _early(
        self,
        name: str,
        columns: Mapping[str, Any],
        *,
        batch_size: int,
        tail: Tail,
        prefetch: int | None,
        **options: Any,
    ) -> Any:
        """Return a dataset as soon as each rank has rows of it."""
        from gridflow._feed.dataset import evaluation_view, incremental
        from gridflow._feed.plan.counter import EpochCounter
        from gridflow._feed.plan.grants import Grants

        runtime = self._runtime
        strategy = runtime.mode.early_strategy()
        arriving.check(batch_size, tail)
        arriving.wait_for_some(runtime.inbox, runtime.channel, name)

        @functools.cache
        def settled() -> None:
            self._check_columns(name, *columns.values())

        def own_rows() -> Sequence[int]:
            return evaluation_view.own_rows(
                self._rows(name), runtime.inbox.wait(Counts).borrowed[name]
            )

        def wait_for(condition: Callable[[], bool], seconds: float | None) -> bool:
            if not condition():
                runtime.hurry()
            return runtime.inbox.wait_for(condition, seconds)

        counter = EpochCounter()
        runtime.epoch_counters.append(counter)  # shuffled or not: the first epoch is another one
        look = functools.partial(arriving.look, runtime.inbox, name)
        return incremental.distribute(
            strategy,
            runtime.spool(name, growing=True),
            Grants(look, wait_for, settled, batch_size=batch_size, tail=tail),
            **columns,
            batch_size=batch_size,
            tail=tail,
            prefetch=2 if prefetch is None else whole_number("prefetch", prefetch, 0),
            rank=runtime.rank,
            own_rows=own_rows,
            on_begun=runtime.hurry,
            counter=counter,
            on_epoch=lambda record: runtime.channel.send(EpochFed(record)),
            **options,
        )

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
        from gridflow._feed import allgather
        from gridflow._feed.dataset import evaluation_view
        from gridflow._feed.selection import select

        runtime, counts = self._runtime, self._rows(name)
        facts, mode = runtime.facts, runtime.mode
        if facts.hands_out_steps:
            raise GridflowError(
                f"ctx.adapt_dataset() isn't there under strategy={facts.name!r}, whose chief has "
                "no rows. Adapt the layers in the driver and give them to the function."
            )
        own = evaluation_view.own_rows(counts, runtime.inbox.wait(Counts).borrowed[name])[
            runtime.rank
        ]
        together = runtime.trains_together
        self._check_columns(name, features)
        share = own
        if rows is not None:
            share = min(own, -(-whole_number("rows", rows, 1) // (len(counts) if together else 1)))
        reader = runtime.spool(name)
        columns = select(reader.specs, features, dataset=name).columns
        gather = mode.gather if together else _of_this_rank
        self._adapted += 1
        folder = runtime.work_dir / f"adapt-{self._adapted}"
        found = allgather.write(reader, columns, share, folder, gather)
        request = DatasetRequest(
            name, {"features": features}, batch_size, counts, counts, gathered=found
        )
        return mode.dataset(request)

    def steps_per_epoch(
        self, name: str = "train", *, batch_size: int, tail: Tail = "spread"
    ) -> int:
        """Return how many steps an epoch of a dataset has, the same on all ranks."""
        from gridflow._feed.plan import epochs

        rows = self._rows(name)
        if self._runtime.facts.hands_out_steps:  # those of all workers together
            from gridflow._feed.dataset import evaluation_view

            own = evaluation_view.own_rows(rows, self._runtime.inbox.wait(Counts).borrowed[name])
            size = whole_number("batch_size", batch_size, 1)
            return sum(-(-each // size) for each in own)
        return epochs.steps_for(rows, batch_size, tail)

    def _rows(self, name: str) -> Sequence[int]:
        if self._runtime.inbox.latest(Counts) is None:
            self._runtime.hurry()
        rows: dict[str, list[int]] = self._runtime.inbox.wait(Counts).rows
        arriving.refuse_unknown(name, rows)
        return rows[name]

    def _check_columns(self, name: str, *forms: Columns | None) -> None:
        """Refuse columns that aren't fed; say it where others have cost rows."""
        from gridflow._feed import selection

        counts = self._runtime.inbox.wait(Counts)
        used = selection.named(*forms)
        selection.refuse_left_out(used, counts.left_out.get(name, {}))
        others = {
            column: rows
            for column, rows in counts.nulls.get(name, {}).items()
            if column not in used
        }
        if others and self._runtime.is_chief:
            listed = ", ".join(f"{rows:,} in {column!r}" for column, rows in others.items())
            print(  # noqa: T201 (into the task's log)
                f"gridflow: nulls='drop' has dropped rows of {name!r} for nulls in columns that "
                f"this ctx.dataset() doesn't use: {listed}. Leave such columns out of the data to "
                "keep the rows.",
                flush=True,
            )


def _of_this_rank(content: bytes) -> list[bytes]:
    return [content]
