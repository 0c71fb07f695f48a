"""``ctx.data_service``: a pipeline that the job's data workers run."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from gridflow._spec.cluster import DATA
from gridflow._spec.option_checks import boolean, choose
from gridflow._spec.option_groups import (
    COMPRESSIONS,
    DATA_SERVICE,
    SHARDINGS,
    Sharding,
    read_address,
)
from gridflow._training.groups.base import await_listeners
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from gridflow._keras.data_service import RegisteredDataset
    from gridflow._training.runtime import TaskRuntime

_log = logging.getLogger(__name__)


def distributed(
    runtime: TaskRuntime,
    dataset: Any,
    *,
    sharding: Sharding,
    job_name: str | None,
    compression: str | None,
    shared: bool,
) -> Any:
    """Return what the data workers make of a dataset; see `TrainingContext.data_service`."""
    boolean("shared", shared)
    service = reachable(dataset, sharding, job_name, compression, runtime.spec.start_timeout)
    from gridflow._feed.dataset.source import own_part
    from gridflow._keras import data_service

    _say_what_isnt_exact(runtime, sharding, shared=shared)
    shared = shared and runtime.members > 1
    tagged = data_service.tagged(dataset)
    registered = _registered(runtime, service, tagged, compression, shared=shared)
    runtime.services += 1
    name = job_name or f"{runtime.setup.job}/{runtime.generation}/{runtime.services}"
    if not shared:
        name = f"{name}/{runtime.task}"
    received = data_service.read(service, registered, sharding, name)
    if runtime.facts.hands_out_steps:  # it is read inside of the workers' servers
        return data_service.untagged(received)
    account = data_service.ServiceAccount()
    runtime.accounts.append(account)
    return own_part(runtime.group, account.kept(received))


def _say_what_isnt_exact(runtime: TaskRuntime, sharding: Sharding, *, shared: bool) -> None:
    """Say it in the log where checkpoints inside of an epoch can't be resumed exactly."""
    is_alone = runtime.members <= 1 or not shared
    has_order = sharding == "off" and is_alone and len(runtime.setup.addresses.get(DATA, [])) == 1
    if runtime.training.checkpoint_every is not None and not has_order:
        _log.warning(
            "batches of ctx.data_service(sharding=%r) have no fixed order here: after a restart "
            "inside an epoch (checkpoint_every=%d), some of its rows are trained on twice and "
            "others not at all (docs/data_service.md)",
            sharding,
            runtime.training.checkpoint_every,
        )


def reachable(
    dataset: Any,
    sharding: Sharding,
    job_name: str | None,
    compression: str | None,
    patience: float,
) -> str:
    """Check what is to be sent, and return the address of the service once it listens.

    Raises `InvalidArgument`: The pipeline calls Python, or an argument can't be.
    Raises `GridflowError`: There is no service, or it doesn't listen within so many seconds.
    """
    choose("sharding", sharding, SHARDINGS)
    if compression not in COMPRESSIONS:
        raise InvalidArgument(f"compression is 'auto', 'snappy' or None; got {compression!r}.")
    if job_name is not None and (not isinstance(job_name, str) or not job_name):
        raise InvalidArgument(f"job_name is a text; got {job_name!r}.")
    service = os.environ.get(DATA_SERVICE)
    if not service:
        raise GridflowError(
            "this job has no data service: add data workers (roles=[…, Role('data', 2)]), or pass "
            "the address of a running service (TensorflowDistributor(data_service='host:port'))."
        )
    import tensorflow as tf

    from gridflow._feed.dataset.source import source_of
    from gridflow._keras import data_service
    from gridflow._keras.patches.private_parts import inputs_of

    is_one = isinstance(dataset, tf.data.Dataset)
    if any(source_of(each) is not None for each in (inputs_of(dataset) if is_one else [dataset])):
        raise InvalidArgument(
            "the rows of ctx.dataset(), ctx.stream(), ctx.parquet_dataset() and "
            "ctx.tfrecord_dataset() are read with Python on this host, which data workers can't "
            "do. Write them as TFRecord files once (df.write.format('tfrecord'), or "
            "gridflow.tfrecord.write_table for a Parquet file) and read those with "
            "tf.data.TFRecordDataset, as docs/data_service.md shows."
        )
    if not is_one:
        raise InvalidArgument(
            "data_service() expects a tf.data.Dataset, whose pipeline runs on data workers; got "
            f"{type(dataset).__name__}."
        )
    data_service.refuse_python(dataset, "Data workers")
    if not await_listeners([read_address(DATA_SERVICE, service)], patience):
        raise GridflowError(
            f"the data service at {service} doesn't answer after {patience:g} s (start_timeout)."
        )
    return service


def _registered(
    runtime: TaskRuntime, service: str, tagged: Any, compression: str | None, *, shared: bool
) -> RegisteredDataset:
    """Make a dataset known to the dispatcher, that of the chief where ranks share it."""
    from gridflow._keras import data_service

    if not shared:
        return data_service.register(service, tagged, compression)
    mine = repr(tagged.element_spec[0])
    told = None
    if runtime.is_chief:
        told = [data_service.register(service, tagged, compression).id, mine]
    ((found, theirs),) = runtime.meetings.hold("broadcast", told, None, is_heard=runtime.is_chief)
    if theirs != mine:
        raise InvalidArgument(
            f"the chief's dataset has elements {theirs}, that of {runtime.task} has {mine}: ranks "
            "that share a pass must pass the same dataset. Use shared=False if each has its own."
        )
    return data_service.RegisteredDataset(found, tagged.element_spec)
