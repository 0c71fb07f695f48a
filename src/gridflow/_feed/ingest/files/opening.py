"""Opens a user's files and returns the catalogue of their rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gridflow._feed import selection
from gridflow._feed.ingest.files.catalogue import Catalogue, catalogue
from gridflow._feed.ingest.files.parquet import ParquetFiles
from gridflow._feed.ingest.files.tfrecords import RecordFiles
from gridflow._feed.normalize import FeedOptions
from gridflow._files.listing import find
from gridflow._files.materialized import Materialized
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gridflow._files.listing import Paths

__all__ = ["Group", "open_parquet", "open_tfrecord"]

#: This rank, the number of ranks, and how they exchange bytes, if they can.
Group = tuple[int, int, "Callable[[bytes], list[bytes]] | None"]


def open_parquet(
    path: Paths,
    columns: Mapping[str, Any],
    group: Group,
    *,
    base: str,
    name: str,
    nulls: str | Mapping[str, Any],
    filesystem: Any,
) -> Catalogue:
    """Inspect Parquet files; parameters as in `TrainingContext.parquet_dataset`."""
    options = FeedOptions(nulls=nulls)  # type: ignore[arg-type]
    used = selection.named(*columns.values())
    options.check_columns(used)
    _check(path, "parquet", filesystem)
    found = ParquetFiles(find(path, base, filesystem), name, used, options)
    return _versioned(catalogue(found, *group), path)


def open_tfrecord(
    path: Paths,
    columns: Mapping[str, Any],
    group: Group,
    *,
    base: str,
    name: str,
    spec: Mapping[str, Any] | None,
    compression: str | None,
    folder: Path,
    filesystem: Any,
) -> Catalogue:
    """Inspect TFRecord files; parameters as in `TrainingContext.tfrecord_dataset`."""
    _check(path, "tfrecord", filesystem)
    form = RecordFiles(
        find(path, base, filesystem),
        name,
        selection.named(*columns.values()),
        spec=spec,
        compression=compression,
        folder=folder,
    )
    return _versioned(catalogue(form, *group), path)


def _check(path: Any, wanted: str, filesystem: Any) -> None:
    """Reject materialized rows that have changed, or have the other format."""
    if not isinstance(path, Materialized):
        return
    if path.format != wanted:
        raise InvalidArgument(
            f"the rows at {path.root} were materialized as {path.format}: read them with "
            f"ctx.{path.format}_dataset()."
        )
    path.check(filesystem)


def _versioned(found: Catalogue, path: Any) -> Catalogue:
    """Include the version of materialized rows in a checkpoint's record."""
    if not isinstance(path, Materialized):
        return found
    return replace(found, digest=f"{path.version} [{found.digest}]")
