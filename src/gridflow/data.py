"""Datasets of files for programs without a `TrainingContext`; images and arrays for any dataset.

A program that ``gridflow launch`` starts in a container, or any other program with a
``TF_CONFIG``, reads files like ``ctx.parquet_dataset``, with the same steps on all workers.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow._feed.encodings import array_decoder, image_decoder
from gridflow._spec.cluster import PS, TF_CONFIG, TRAINING_ROLES, ClusterSpec, Task
from gridflow._spec.option_checks import batch_function, boolean, whole_number
from gridflow._spec.option_groups import DataServiceUse
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow._feed.ingest.files.catalogue import Catalogue
    from gridflow._feed.ingest.files.opening import Group
    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.selection import Columns, Weights
    from gridflow._files.listing import Paths
    from gridflow._keras.data_service import ServiceAccount
    from gridflow._spec.option_groups import Sharding

#: What was read through a data service here.
_accounts: list[ServiceAccount] = []

__all__ = ["array_decoder", "data_service", "image_decoder", "parquet_dataset", "tfrecord_dataset"]


def parquet_dataset(
    path: Paths,
    *,
    batch_size: int,
    features: Columns,
    label: Columns | None = None,
    sample_weight: Weights | None = None,
    strategy: Any = None,
    nulls: str | Mapping[str, Any] = "error",
    filesystem: Any = None,
    **options: Any,
) -> Any:
    """Return this worker's rows of Parquet files as a dataset.

    Parameters
    ----------
    path, batch_size, features, label, sample_weight, nulls, filesystem
        See `TrainingContext.parquet_dataset`. Relative paths start in the working directory.
    strategy : tf.distribute.Strategy, optional
        The strategy that trains. Under MultiWorkerMirroredStrategy all workers must call this
        function; they compare the files that they see.
    **options
        ``shuffle`` (default False), ``seed``, ``tail``, ``map``, ``prefetch`` as there. ``epoch``
        and ``step`` (default 0): where the first iteration begins, to resume exactly where a
        checkpoint was made. ``rank`` and ``num_workers``: by default those of ``TF_CONFIG``.

    Returns
    -------
    tf.data.Dataset or tf.distribute.DistributedDataset
        Each iteration is an epoch. Evaluation and prediction use each row exactly once only within
        a gridflow job; here they use the training batches.
    """
    from gridflow._feed.ingest.files.opening import open_parquet

    columns = {"features": features, "label": label, "sample_weight": sample_weight}
    group, options = _group(strategy, options)
    found = open_parquet(
        path, columns, group, base=str(Path.cwd()), name="train", nulls=nulls, filesystem=filesystem
    )
    return _made(found, columns, strategy, batch_size=batch_size, **options)


def tfrecord_dataset(
    path: Paths,
    *,
    batch_size: int,
    features: Columns,
    label: Columns | None = None,
    sample_weight: Weights | None = None,
    strategy: Any = None,
    spec: Mapping[str, Any] | None = None,
    compression: str | None = None,
    filesystem: Any = None,
    **options: Any,
) -> Any:
    """Return this worker's Examples of TFRecord files as a dataset.

    Parameters
    ----------
    path, batch_size, features, label, sample_weight, spec, compression, filesystem
        See `TrainingContext.tfrecord_dataset`.
    strategy, **options
        See `parquet_dataset`.
    """
    from gridflow._feed.ingest.files.opening import open_tfrecord

    columns = {"features": features, "label": label, "sample_weight": sample_weight}
    group, options = _group(strategy, options)
    found = open_tfrecord(
        path,
        columns,
        group,
        base=str(Path.cwd()),
        name="train",
        spec=spec,
        compression=compression,
        folder=Path(tempfile.gettempdir()),
        filesystem=filesystem,
    )
    return _made(found, columns, strategy, batch_size=batch_size, **options)


def data_service(
    dataset: Any,
    *,
    strategy: Any = None,
    sharding: Sharding = "dynamic",
    job_name: str | None = None,
    compression: str | None = "auto",
) -> Any:
    """Return what the data workers of a job make of a ``tf.data`` pipeline.

    For programs of jobs with the role ``data``, and of those for which the variable
    ``GRIDFLOW_DATA_SERVICE`` has the ``host:port`` of a dispatcher; see ``docs/data_service.md``.

    Parameters
    ----------
    dataset, sharding, job_name, compression
        See `TrainingContext.data_service`.
    strategy : tf.distribute.Strategy, optional
        What trains. Under MultiWorkerMirroredStrategy all workers must call this function; they
        share each pass over the data. Without it each process has a pass of its own, or shares
        that of `job_name`.

    Returns
    -------
    tf.data.Dataset or tf.distribute.DistributedDataset

    Raises
    ------
    InvalidArgument
        The pipeline calls Python, or an argument can't be.
    GridflowError
        There is no data service, or it doesn't answer within five minutes.
    """
    import tensorflow as tf

    from gridflow._feed.dataset.source import own_part
    from gridflow._keras import data_service as reading
    from gridflow._spec.option_checks import START_TIMEOUT
    from gridflow._training.data_service import reachable

    service = reachable(dataset, sharding, job_name, compression, START_TIMEOUT)
    (rank, workers, gather), _ = _group(strategy, {})
    tagged = reading.tagged(dataset)
    if gather is None or workers == 1:
        registered, name = reading.register(service, tagged, compression), uuid.uuid4().hex
    else:
        mine = ""
        if rank == 0:
            mine = f"{reading.register(service, tagged, compression).id} {uuid.uuid4().hex}"
        found, _, name = gather(mine.encode())[0].decode().partition(" ")
        registered = reading.RegisteredDataset(found, tagged.element_spec)
    received = reading.read(service, registered, sharding, job_name or name)
    if isinstance(strategy, tf.distribute.ParameterServerStrategy) or _has_servers(os.environ):
        return reading.untagged(received)  # it is read inside of the workers' servers
    if not _accounts:
        atexit.register(_tell_accounts)
    account = reading.ServiceAccount()
    _accounts.append(account)
    return own_part(strategy, account.kept(received))


def _tell_accounts() -> None:
    """Say what this program has read through the data service, and how long it waited for that."""
    use = DataServiceUse.total([account.read() for account in _accounts])
    sys.stderr.write(f"gridflow: this process {use}\n")


def _group(strategy: Any, options: dict[str, Any]) -> tuple[Group, dict[str, Any]]:
    """Return the group of workers, and the remaining options."""
    rank, workers = options.pop("rank", None), options.pop("num_workers", None)
    if (rank is None) != (workers is None):
        raise InvalidArgument("give both rank= and num_workers=, or neither.")
    if rank is None:
        rank, workers = _place(os.environ)
    rank, workers = whole_number("rank", rank, 0), whole_number("num_workers", workers, 1)
    if rank >= workers:
        raise InvalidArgument(
            f"rank={rank} is out of range for num_workers={workers}: ranks start at 0."
        )
    gather: Callable[[bytes], list[bytes]] | None = None
    if strategy is not None and workers > 1:
        import tensorflow as tf

        from gridflow._feed import allgather

        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):

            def gather(content: bytes) -> list[bytes]:
                return allgather.with_tensorflow(strategy, content)

    return (rank, workers, gather), options


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and number of workers from ``TF_CONFIG``; by default, of a single program."""
    found = _cluster(environ)
    if found is None:
        return 0, 1
    task, cluster = found
    rank = cluster.rank(task)
    if rank is None and task.role in TRAINING_ROLES and cluster.tasks:
        raise InvalidArgument(
            f"{TF_CONFIG} says that this is {task}, which isn't in its cluster of "
            f"{', '.join(map(str, cluster.tasks))}."
        )
    if rank is None:  # an evaluator or a parameter server: it reads alone
        return 0, 1
    return rank, len(cluster.ranks)


def _has_servers(environ: Mapping[str, str]) -> bool:
    """Return whether this is a program with parameter servers."""
    found = _cluster(environ)
    return found is not None and PS in found[1].addresses


def _cluster(environ: Mapping[str, str]) -> tuple[Task, ClusterSpec] | None:
    """Return what ``TF_CONFIG`` says; None if it isn't there."""
    text = environ.get(TF_CONFIG)
    if not text:
        return None
    try:
        config = json.loads(text)
        task = config["task"]
        return Task(task["type"], int(task["index"])), ClusterSpec(config["cluster"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            f"can't parse {TF_CONFIG} ({error!r}): {text!r}. Give rank= and num_workers=."
        ) from error


def _made(
    found: Catalogue,
    columns: Mapping[str, Any],
    strategy: Any,
    *,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    tail: Tail = "spread",
    map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
    prefetch: int = 2,
    epoch: int = 0,
    step: int = 0,
) -> Any:
    from gridflow._feed.dataset.distributed import distribute
    from gridflow._feed.plan.epochs import EpochCounter, steps_for
    from gridflow._feed.plan.grants import FixedGrant

    boolean("shuffle", shuffle)
    whole_number("seed", seed, 0)
    whole_number("prefetch", prefetch, 0)
    batch_function("map", map)
    return distribute(
        strategy,
        found.reader(),
        **columns,
        batch_size=batch_size,
        grant=FixedGrant(steps_for(found.rows, batch_size, tail)),
        tail=tail,
        shuffle=shuffle,
        seed=seed,
        rank=found.rank,
        function=map,
        prefetch=prefetch,
        counter=EpochCounter(epoch, step),
    )
