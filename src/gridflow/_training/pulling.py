"""Rows that the training function reads itself: ``ctx.parquet_dataset`` and what goes with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.options import choose
from gridflow._training.modes.base import DatasetRequest
from gridflow._wire.commands import Counts
from gridflow._wire.reports import Pulled
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from gridflow._feed.ingest.files.catalogue import Catalogue
    from gridflow._feed.ingest.files.formats import Format
    from gridflow._feed.ingest.files.opening import Group
    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.selection import Columns
    from gridflow._files.listing import FoundFile, Paths
    from gridflow._files.parts import FilePart
    from gridflow._training.runtime import TaskRuntime

_FORMATS: Final = ("parquet", "tfrecord", "any")
_SUFFIXES: Final = {".parquet": "parquet", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord"}


class Pulling:
    """The part of a `TrainingContext` that has to do with files."""

    _runtime: TaskRuntime

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
        from gridflow._feed.ingest.files import catalogue, parquet, tfrecords
        from gridflow._feed.ingest.files.shares import Piece, share_out
        from gridflow._feed.normalize import FeedOptions
        from gridflow._files.listing import find
        from gridflow._files.parts import FilePart

        found = find(path, self._runtime.spec.hosts.default_folder, filesystem)
        if format is not None:
            choose("format", format, _FORMATS)
        kind = format or _format_of(found)
        rank, ranks, gather = self._group()
        if kind == "any":
            pieces = [
                Piece(i, 0, max(1, file.size), 1, is_divisible=False)
                for i, file in enumerate(found)
            ]
            catalogue.agree(found, "", ranks, gather)
            own = [found[piece.file] for piece in share_out(pieces, ranks)[rank]]
            return [FilePart(file.path, file.size, file.at) for file in own]
        form: Format
        if kind == "parquet":
            form = parquet.ParquetFiles(found, "", [], FeedOptions())
        else:
            folder = self._runtime.work_dir
            form = tfrecords.RecordFiles(found, "", [], spec=None, compression=None, folder=folder)
        pieces = catalogue.pieces_of(catalogue.described(form, rank, ranks, gather))
        return [
            FilePart(
                form.path_of(piece),
                piece.size,
                found[piece.file].at,
                piece.place if kind == "parquet" else None,
                piece.place if kind == "tfrecord" else None,
                piece.first,
                piece.rows,
            )
            for piece in share_out(pieces, ranks)[rank]
        ]

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
        from gridflow._feed.ingest.files.opening import open_parquet

        columns = {"features": features, "label": label, "sample_weight": sample_weight}
        self._refuse_servers("parquet_dataset")
        found = open_parquet(
            path,
            columns,
            self._group(),
            base=self._runtime.spec.hosts.default_folder,
            name=name,
            nulls=nulls,
            filesystem=filesystem,
        )
        return self._pulled(
            found,
            columns,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            tail=tail,
            function=map,
            prefetch=prefetch,
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
        from gridflow._feed.ingest.files.opening import open_tfrecord

        columns = {"features": features, "label": label, "sample_weight": sample_weight}
        self._refuse_servers("tfrecord_dataset")
        found = open_tfrecord(
            path,
            columns,
            self._group(),
            base=self._runtime.spec.hosts.default_folder,
            name=name,
            spec=spec,
            compression=compression,
            folder=self._runtime.work_dir,
            filesystem=filesystem,
        )
        return self._pulled(
            found,
            columns,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            tail=tail,
            function=map,
            prefetch=prefetch,
        )

    def _group(self) -> Group:
        """Return this rank, how many share the files, and how they speak to one another."""
        runtime = self._runtime
        if runtime.rank < 0:  # an evaluator reads all of it
            return 0, 1, None
        gather = runtime.mode.gather if runtime.trains_together else None
        return runtime.rank, runtime.num_workers, gather

    def _refuse_servers(self, method: str) -> None:
        facts = self._runtime.facts
        if facts.hands_out_steps:
            raise GridflowError(
                f"ctx.{method}() isn't there under strategy={facts.name!r}, whose workers run no "
                "Python. Give the rows as data= and use ctx.dataset()."
            )

    def _pulled(
        self,
        catalogue: Catalogue,
        columns: Mapping[str, Any],
        *,
        batch_size: int,
        shuffle: bool | None,
        seed: int | None,
        **options: Any,
    ) -> Any:
        """Return the dataset, and tell the driver of its rows."""
        runtime, name = self._runtime, catalogue.format.dataset
        counts = runtime.inbox.latest(Counts)
        if runtime.pulled.get(name, catalogue.digest) != catalogue.digest or (
            counts is not None and name in counts.rows
        ):
            raise InvalidArgument(
                f"there is a dataset {name!r} of other rows already: give this one a name= of its "
                "own, such as name='validation'."
            )
        request = DatasetRequest(
            name,
            columns,
            batch_size,
            catalogue.rows,
            catalogue.rows,
            shuffle=name == "train" if shuffle is None else shuffle,
            seed=(runtime.training.seed or 0) if seed is None else seed,
            files=catalogue.reader(),
            **options,
        )
        dataset = runtime.mode.dataset(request)
        if name not in runtime.pulled:
            runtime.pulled[name] = catalogue.digest
            runtime.channel.send(Pulled(name, runtime.rank, asdict(catalogue.counts)))
        return dataset


def _format_of(found: Sequence[FoundFile]) -> str:
    """Return the one format that all suffixes name, that of a compressed file included."""
    from gridflow.tfrecord.framing import compression_of

    kinds = set()
    for file in found:
        name = file.path.rpartition("/")[2].lower()
        if compression_of(name) != "none":
            name = name.rpartition(".")[0]
        kinds.add(_SUFFIXES.get("." + name.rpartition(".")[2], "any"))
    return kinds.pop() if len(kinds) == 1 else "any"
