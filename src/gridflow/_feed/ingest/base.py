"""The interface of a source of rows: an object in the driver, and one in each rank's agent.

::

    RowSource   driver   which columns and rows there are, what can't be fed, details for a plan
    RankRows    agent    the rows of one rank, as (dataset, record batch or file), once and in order

Neither knows how many rows a rank gets: the spool's writer counts them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    import pyarrow as pa

    from gridflow._feed.store.segment import Segment


__all__ = ["RankRows", "RowSource", "check_name"]


class RankRows(ABC):
    """The rows of one rank. Sent to that rank's agent, pickled."""

    @abstractmethod
    def batches(
        self, arriving: Iterable[pa.RecordBatch] = ()
    ) -> Generator[tuple[str, pa.RecordBatch | Segment]]:
        """Yield the rows with the name of their dataset.

        `arriving`: What the launcher itself passes to the task: on Spark the rows of the partition.
        """


class RowSource(ABC):
    """The datasets of one job, as known to the driver.

    The launcher determines how rows get to the ranks: a source for Spark makes the DataFrame whose
    last stage are the agents, a source for plain processes writes a file for each rank.
    """

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """All columns of all datasets, each once, including those that can't be fed."""

    @property
    @abstractmethod
    def left_out(self) -> Mapping[str, Mapping[str, str]]:
        """Columns that can't be fed, and why, by dataset."""

    @abstractmethod
    def check(self, num_ranks: int) -> None:
        """Reject what can't be fed to this number of ranks, before anything is launched.

        Raises `SchemaError`, `InvalidArgument`: The message names the dataset and columns, and says
            what to do.
        """

    def details(self) -> dict[str, str]:
        """Return details about the rows for a plan."""
        return {}


def check_name(name: object) -> None:
    """Reject an invalid dataset name."""
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidArgument(f"a dataset's name must be an identifier like 'train', got {name!r}.")


def quoted(column: str) -> str:
    """Quote a column name: without quotes, ``a.b`` would be a field of ``a``."""
    return "`" + column.replace("`", "``") + "`"
