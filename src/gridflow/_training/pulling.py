"""Rows that the training function reads from files: ``ctx.parquet_dataset`` and others."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.option_checks import choose
from gridflow._wire.commands import Counts
from gridflow._wire.reports import Pulled
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._feed.ingest.files.catalogue import Catalogue
    from gridflow._feed.ingest.files.formats import Format
    from gridflow._feed.ingest.files.opening import Group
    from gridflow._files.listing import FoundFile, Paths
    from gridflow._files.parts import FilePart
    from gridflow._training.modes.base import DatasetRequest
    from gridflow._training.runtime import TaskRuntime

_FORMATS: Final = ("parquet", "tfrecord", "any")
_SUFFIXES: Final = {".parquet": "parquet", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord"}


def files(
    runtime: TaskRuntime,
    path: Paths,
    format: str | None,  # noqa: A002 (as in Spark)
    filesystem: Any,
) -> list[FilePart]:
    """See `TrainingContext.files`."""
    from gridflow._feed.ingest.files import catalogue, parquet, tfrecords
    from gridflow._feed.ingest.files.shares import Piece, share_out
    from gridflow._feed.normalize import FeedOptions
    from gridflow._files.listing import find
    from gridflow._files.parts import FilePart

    found = find(path, runtime.spec.hosts.default_folder, filesystem)
    if format is not None:
        choose("format", format, _FORMATS)
    kind = format or _format_of(found)
    rank, ranks, gather = _group(runtime)
    if kind == "any":
        pieces = [
            Piece(i, 0, max(1, file.size), 1, is_divisible=False) for i, file in enumerate(found)
        ]
        catalogue.agree(found, "", ranks, gather)
        own = [found[piece.file] for piece in share_out(pieces, ranks)[rank]]
        return [FilePart(file.path, file.size, file.at) for file in own]
    form: Format
    if kind == "parquet":
        form = parquet.ParquetFiles(found, "", [], FeedOptions())
    else:
        folder = runtime.work_dir
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
    runtime: TaskRuntime,
    path: Paths,
    request: DatasetRequest,
    *,
    nulls: str | Mapping[str, Any],
    filesystem: Any,
) -> Any:
    """See `TrainingContext.parquet_dataset`."""
    from gridflow._feed.ingest.files.opening import open_parquet

    _refuse_servers(runtime, "parquet_dataset")
    found = open_parquet(
        path,
        request.columns,
        _group(runtime),
        base=runtime.spec.hosts.default_folder,
        name=request.name,
        nulls=nulls,
        filesystem=filesystem,
    )
    return _pulled(runtime, found, request)


def tfrecord_dataset(
    runtime: TaskRuntime,
    path: Paths,
    request: DatasetRequest,
    *,
    spec: Mapping[str, Any] | None,
    compression: str | None,
    filesystem: Any,
) -> Any:
    """See `TrainingContext.tfrecord_dataset`."""
    from gridflow._feed.ingest.files.opening import open_tfrecord

    _refuse_servers(runtime, "tfrecord_dataset")
    found = open_tfrecord(
        path,
        request.columns,
        _group(runtime),
        base=runtime.spec.hosts.default_folder,
        name=request.name,
        spec=spec,
        compression=compression,
        folder=runtime.work_dir,
        filesystem=filesystem,
    )
    return _pulled(runtime, found, request)


def _group(runtime: TaskRuntime) -> Group:
    """Return this rank, the number of ranks that share the files, and how they communicate."""
    if runtime.rank < 0:  # an evaluator reads all of it
        return 0, 1, None
    gather = runtime.mode.gather if runtime.trains_together else None
    return runtime.rank, runtime.num_workers, gather


def _refuse_servers(runtime: TaskRuntime, method: str) -> None:
    facts = runtime.facts
    if facts.hands_out_steps:
        raise GridflowError(
            f"ctx.{method}() isn't available with strategy={facts.name!r}, whose workers run no "
            "Python. Pass the rows to run(data=…) and use ctx.dataset()."
        )


def _pulled(runtime: TaskRuntime, catalogue: Catalogue, request: DatasetRequest) -> Any:
    """Return the dataset, and report its rows to the driver."""
    name, rows = request.name, catalogue.rows
    counts = runtime.inbox.latest(Counts)
    if runtime.pulled.get(name, catalogue.digest) != catalogue.digest or (
        counts is not None and name in counts.rows
    ):
        raise InvalidArgument(
            f"a dataset {name!r} with other rows already exists: give this one its own name, such "
            "as name='validation'."
        )
    request = replace(request, rows=rows, own_rows=rows, files=catalogue.reader())
    dataset = runtime.mode.dataset(request)
    if name not in runtime.pulled:
        runtime.pulled[name] = catalogue.digest
        runtime.channel.send(Pulled(name, runtime.rank, asdict(catalogue.counts)))
    return dataset


def _format_of(found: Sequence[FoundFile]) -> str:
    """Return the format that all suffixes name, including those of compressed files."""
    from gridflow.tfrecord.framing import compression_of

    kinds = set()
    for file in found:
        name = file.path.rpartition("/")[2].lower()
        if compression_of(name) != "none":
            name = name.rpartition(".")[0]
        kinds.add(_SUFFIXES.get("." + name.rpartition(".")[2], "any"))
    return kinds.pop() if len(kinds) == 1 else "any"
