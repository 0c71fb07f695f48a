"""What a source of rows is: one object in the driver, and what it sends to the agent of each rank.

::

    RowSource   driver   which columns and rows there are, what can't be fed, what a plan says
    RankRows    agent    the rows of one rank, as (dataset, record batch or file), once and in order

How many rows a rank gets is known to neither: the spool's writer counts them.
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
    """The rows of one rank. It travels to that rank's agent, pickled."""

    @abstractmethod
    def batches(
        self, arriving: Iterable[pa.RecordBatch] = ()
    ) -> Generator[tuple[str, pa.RecordBatch | Segment]]:
        """Yield the rows with the name of their dataset.

        Parameters
        ----------
        arriving : iterable of pyarrow.RecordBatch
            What the launcher itself brings to the task: on Spark the rows of the partition.
        """


class RowSource(ABC):
    """The datasets of one job, as they lie in the driver or are known to it.

    How the rows get to the ranks is the launcher's: a source for Spark makes the DataFrame whose
    last stage the agents are, one for plain processes writes a file for each rank.
    """

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """All columns of all datasets, each once, those that can't be fed included."""

    @property
    @abstractmethod
    def left_out(self) -> Mapping[str, Mapping[str, str]]:
        """Columns that can't be fed, and why, by dataset."""

    @abstractmethod
    def check(self, num_ranks: int) -> None:
        """Refuse what can't be fed to so many ranks, before anything is launched.

        Raises
        ------
        SchemaError, InvalidArgument
            Naming the dataset, the columns, and what to do.
        """

    def details(self) -> dict[str, str]:
        """Return what a plan says of the rows."""
        return {}


def check_name(name: object) -> None:
    """Refuse what is no name of a dataset."""
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidArgument(f"a dataset's name must be an identifier like 'train', got {name!r}.")
