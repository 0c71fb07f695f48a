"""TensorFlow with parameter servers: a chief schedules steps, workers run them in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow._spec.cluster import PS, WORKER
from gridflow._spec.option_checks import whole_number
from gridflow._training.groups import base as groups
from gridflow._training.modes.base import Mode
from gridflow._training.modes.synchronous import Synchronous
from gridflow._wire.commands import Counts
from gridflow._wire.reports import EpochFed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._feed.dataset.stream import StreamSource
    from gridflow._keras.servers.fit import ServerTrainer
    from gridflow._training.modes.base import DatasetRequest


class Servers(Synchronous):
    """For the chief and an evaluator; workers and parameter servers run no Python."""

    _coordinator: Any = None

    def make_strategy(self) -> Any:
        """Return a ``ParameterServerStrategy`` whose updates of a variable don't interleave."""
        process = self._process
        if process.is_evaluator:
            return super().make_strategy()
        import tensorflow as tf

        from gridflow._keras.patches.hooks import locked_updates

        addresses = process.cluster_spec.addresses
        given = process.training.distribution.variable_partitioner
        partitioner = None if given is None else given.to_tensorflow(len(addresses[PS]))
        groups.await_listeners([*addresses[PS], *addresses[WORKER]], process.spec.start_timeout)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
        return locked_updates.lock_updates(strategy)

    @property
    def coordinator(self) -> Any:
        """The chief's ``ClusterCoordinator``, created on first use."""
        if not self._process.is_chief:
            return super().coordinator
        with self._lock:
            if self._coordinator is None:
                import tensorflow as tf

                self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
            return self._coordinator

    def early_strategy(self) -> Any:
        """Raise an error: workers loop over their rows inside TensorFlow's servers."""
        return Mode.early_strategy(self)

    def streams(self, *, together: bool) -> Callable[[StreamSource, int], tuple[Any, StreamSource]]:
        """Return a function that makes rows for ``ctx.fit``, whose chief distributes them."""
        if not self._process.is_chief:
            return Mode.streams(self, together=together)
        from gridflow._keras.servers.pushed import PushedRows

        def make(source: StreamSource, ahead: int) -> tuple[Any, StreamSource]:
            del ahead
            return PushedRows(source), source

        return make

    def dataset(self, request: DatasetRequest) -> Any:
        """Return a function that creates the dataset in a worker's server."""
        from gridflow._feed.store.records import decode_specs
        from gridflow._keras.servers import data

        specs = self._process.inbox.wait(Counts).specs.get(request.name, {})
        return data.make(
            request.name,
            decode_specs(specs),
            tuple(request.rows),
            own_rows=tuple(request.own_rows),
            function=request.function,
            prefetch=request.ahead,
            batch_size=whole_number("batch_size", request.batch_size, 1),
            on_epoch=lambda record: self._process.channel.send(EpochFed(record)),
            **request.columns,
            **request.shuffling(self._process),
        )

    def trainer(self, model: Any) -> ServerTrainer:
        """Return the trainer that schedules the steps of a model."""
        from gridflow._keras.servers.fit import ServerTrainer

        process = self._process
        num_workers = len(process.cluster_spec.addresses[WORKER])
        return ServerTrainer(
            self.coordinator, num_workers, model, process.training.checkpoint_every
        )


MODE = Servers
