"""TensorFlow's data service: how its place is written, and how data are dealt out by it. Pure."""

from __future__ import annotations

from typing import Final, Literal, get_args

from gridflow.errors import InvalidArgument

#: Of a process: the ``host:port`` of the dispatcher, where there is one.
DATA_SERVICE: Final = "GRIDFLOW_DATA_SERVICE"
#: Of a dispatcher: the folder of its journal, on its host or in a store that TensorFlow can write
#: to. Default: a folder that goes with the task.
JOURNAL: Final = "GRIDFLOW_DATA_JOURNAL"

#: How data workers share a dataset, by the names of
#: ``tf.data.experimental.service.ShardingPolicy``.
Sharding = Literal["off", "dynamic", "file", "file_or_data", "hint"]
SHARDINGS: Final = get_args(Sharding)
#: What is done to elements on their way; None: nothing.
COMPRESSIONS: Final = ("auto", "snappy", None)


def read_address(what: str, address: object) -> str:
    """Return the ``host:port`` of a dispatcher.

    Raises
    ------
    InvalidArgument
        It isn't written so.
    """
    if isinstance(address, str):
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        if host and "/" not in host and port.isdigit():
            return f"{host}:{port}"
    raise InvalidArgument(
        f"{what} is the address of a dispatcher, 'host:port' or 'grpc://host:port'; got "
        f"{address!r}."
    )
