"""TensorFlow's data service: its place, how data are dealt out by it, and what was read. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from gridflow._spec.network import LAST_PORT
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


@dataclass(frozen=True)
class DataServiceUse:
    """What a task has read through the data service so far, in its present process.

    Attributes
    ----------
    waited : float
        Seconds in which it waited for an element. Where that is a large part of `elapsed`, more
        data workers help.
    elapsed : float
        Seconds from its first wait to the end of its last.
    elements : mapping of str to int
        Elements by the data worker that made them, such as ``data:0``; ``unknown`` of a service
        that isn't gridflow's.
    """

    waited: float
    elapsed: float
    elements: Mapping[str, int]

    @classmethod
    def total(cls, uses: Sequence[DataServiceUse]) -> DataServiceUse:
        """Return what a task has read of several datasets."""
        return cls(
            waited=sum(each.waited for each in uses),
            elapsed=sum(each.elapsed for each in uses),
            elements=dict(sum((Counter(each.elements) for each in uses), Counter())),
        )

    def __str__(self) -> str:
        share = self.waited / self.elapsed if self.elapsed else 0.0
        made = ", ".join(f"{count:,} from {task}" for task, count in self.elements.items())
        return (
            f"waited {self.waited:.1f} of {self.elapsed:.1f} s ({share:.0%}) for the data service; "
            f"elements: {made or 'none'}"
        )


def read_address(what: str, address: object) -> str:
    """Return the ``host:port`` of a dispatcher.

    Raises
    ------
    InvalidArgument
        It isn't written so.
    """
    if isinstance(address, str):
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= LAST_PORT
        if host and "/" not in host and is_port:
            return f"{host}:{port}"
    raise InvalidArgument(
        f"{what} is the address of a dispatcher, 'host:port' or 'grpc://host:port'; got "
        f"{address!r}."
    )
