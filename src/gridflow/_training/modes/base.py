"""The base class of training modes, and the requests they handle."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gridflow._spec.option_checks import batch_function, boolean, whole_number
from gridflow._wire.reports import EpochFed
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow._feed.dataset.reading import Reader
    from gridflow._feed.dataset.stream import StreamSource
    from gridflow._feed.ingest.files.reader import FileReader
    from gridflow._feed.plan.epochs import Absence, Tail
    from gridflow._feed.selection import Columns, Weights
    from gridflow._feed.store import SpoolReader
    from gridflow._training.process import TaskProcess


@dataclass(frozen=True)
class DatasetRequest:
    """A request for ``ctx.dataset``.

    `name`, `batch_size`, `features`, `label`, `sample_weight`, `shuffle`, `seed`, `tail`,
        `function`, `prefetch`: As in ``ctx.dataset``, in the same order.
    `rows`, `own_rows`: Row counts by rank: all, and those without borrowed rows.
    `gathered`: Rows of all ranks, to be read once each instead of this rank's.
    `files`: Reads this rank's rows, if they aren't fed.
    """

    name: str
    batch_size: int
    features: Columns
    label: Columns | None = None
    sample_weight: Weights | None = None
    shuffle: bool | None = None
    seed: int | None = None
    tail: Tail = "spread"
    function: Callable[..., Any] | None = None
    prefetch: int | None = None
    rows: Sequence[int] = ()
    own_rows: Sequence[int] = ()
    gathered: SpoolReader | None = None
    files: FileReader | None = None

    def __post_init__(self) -> None:
        if self.shuffle is not None:
            boolean("shuffle", self.shuffle)
        batch_function("map", self.function)

    @property
    def columns(self) -> dict[str, Any]:
        """Which columns become features, labels and weights."""
        return {
            "features": self.features,
            "label": self.label,
            "sample_weight": self.sample_weight,
        }

    def shuffling(self, process: TaskProcess) -> dict[str, Any]:
        return {
            "shuffle": self.name == "train" if self.shuffle is None else self.shuffle,
            "seed": (process.training.seed or 0) if self.seed is None else self.seed,
        }

    def reader(self, process: TaskProcess) -> Reader:
        """Return what reads the rows."""
        return self.gathered or self.files or process.spool(self.name)

    def options(self, process: TaskProcess) -> dict[str, Any]:
        """Return how the rows of this rank become batches, and where that is reported."""
        from gridflow._feed.plan.epochs import EpochCounter, steps_for
        from gridflow._feed.plan.grants import FixedGrant

        if self.gathered is not None:
            size = whole_number("batch_size", self.batch_size, 1)
            steps = -(-self.gathered.rows // size)
            grant = FixedGrant(steps)
            return {**self.columns, "batch_size": size, "grant": grant, "tail": "partial"}
        counter, shuffling = EpochCounter(), self.shuffling(process)
        steps = steps_for(self.rows, self.batch_size, self.tail)
        # Otherwise rows are read again, and dropped, which the ledger would count as fed. A job of
        # one worker may become one of several.
        is_elastic = process.regrouping is not None or process.spec.least is not None
        if shuffling["shuffle"] or is_elastic:
            process.epoch_counters.append(counter)
            counter.tell_missed = partial(self._tell_missed, process, steps)
        return {
            **self.columns,
            **shuffling,
            "batch_size": self.batch_size,
            "grant": FixedGrant(steps),
            "tail": self.tail,
            "rank": process.rank,
            "own_rows": self.own_rows,
            "function": self.function,
            "counter": counter,
            "on_epoch": lambda record: process.channel.send(EpochFed(record)),
        }

    def _tell_missed(
        self, process: TaskProcess, steps: int, rank: int, absences: Sequence[Absence]
    ) -> None:
        """Report the epochs that ended in the last absence of a rank."""
        from gridflow._feed.dataset.epochs import of_absent
        from gridflow._feed.plan.epochs import BatchPlan

        plan = BatchPlan([self.rows[rank]], self.batch_size, steps, self.tail)
        (left, _), (until, _) = absences[-1]
        for epoch in range(left, until):
            record = of_absent(self.name, rank, epoch, plan, absences)
            process.channel.send(EpochFed(record.to_dict()))

    @property
    def ahead(self) -> int:
        """How many batches tf.data prefetches."""
        return 2 if self.prefetch is None else whole_number("prefetch", self.prefetch, 0)


class Trainer(Protocol):
    """Trains and evaluates a model for ``ctx.fit`` and ``ctx.evaluate``."""

    def fit(
        self,
        data: Any,
        *,
        epochs: int,
        steps_per_epoch: int | None,
        validation: Any,
        validation_steps: int | None,
        callbacks: Sequence[Any],
        verbose: int,
        initial_epoch: int,
        class_weight: Mapping[int, float] | None,
    ) -> Any:
        """Train; return the History."""

    def evaluate(self, data: Any, *, steps: int | None) -> dict[str, float]:
        """Return losses and metrics by name."""


class Mode(ABC):
    """One way to train, in one process."""

    def __init__(self, process: TaskProcess) -> None:
        self._process = process
        self._strategy: Any = None
        self._lock = threading.RLock()

    @property
    def strategy(self) -> Any:
        """The value of ``ctx.strategy``, created on first use."""
        with self._lock:
            if self._strategy is None:
                self._strategy = self.make_strategy()
            return self._strategy

    @abstractmethod
    def begin(self) -> None:
        """Prepare for the user's function; all ranks may wait for each other here."""

    @abstractmethod
    def make_strategy(self) -> Any:
        """Return a new strategy, which finds the cluster in the environment."""

    @abstractmethod
    def dataset(self, request: DatasetRequest) -> Any:
        """Return the requested dataset in the form that ``fit`` takes here."""

    def early_strategy(self) -> Any:
        """Return the strategy, if its ``fit`` can start before all rows have arrived."""
        raise InvalidArgument(
            f"start='early' isn't available for {self._where} with "
            f"backend={self._process.training.backend!r}: the number of rows must be known before "
            "training. Use start='complete'."
        )

    def streams(self, *, together: bool) -> Callable[[StreamSource, int], tuple[Any, StreamSource]]:
        """Return a function that makes a dataset of pushed rows, given a source and a prefetch.

        `together`: Whether the ranks run equal steps.
        """
        del together
        raise InvalidArgument(
            f"ctx.stream() isn't available for {self._where}: the function has no rows of its own "
            "there. Use strategy='multi_worker_mirrored' or 'none'."
        )

    def gather(self, content: bytes) -> list[bytes]:
        """Return the bytes of all ranks that train one model; all of them must call it."""
        self.strategy  # noqa: B018 (with it, the process joins the group)
        return self._process.agreement.gather(content)

    @abstractmethod
    def trainer(self, model: Any) -> Trainer:
        """Return the trainer that ``ctx.fit`` and ``ctx.evaluate`` use for a model."""

    @abstractmethod
    def end(self) -> None:
        """Leave the group, when all ranks do."""

    @property
    def coordinator(self) -> Any:
        """The ``ClusterCoordinator``, if there is one."""
        raise GridflowError(
            "ctx.coordinator is only for the chief of strategy='parameter_server'; this is "
            f"{self._where}."
        )

    def server(self, config: Any) -> Any:
        """Return this task's ``tf.distribute.Server``, if programs have their own."""
        del config
        raise GridflowError(
            "ctx.server() is only for the cluster's tasks under strategy='server'; this is "
            f"{self._where}."
        )

    @property
    def _where(self) -> str:
        return f"{self._process.task} of strategy={self._process.facts.name!r}"
