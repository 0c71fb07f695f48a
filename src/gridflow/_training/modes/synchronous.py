"""TensorFlow on equal ranks: one model on all of them, or one on each."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from gridflow._gpu import devices
from gridflow._keras import group
from gridflow._training.groups import base as groups
from gridflow._training.groups import cpu
from gridflow._training.modes.base import Mode
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._collectives.host import HostGroup
    from gridflow._feed.dataset.stream import StreamSource
    from gridflow._training.modes.base import DatasetRequest, Trainer


class Synchronous(Mode):
    """Strategies in which each rank calls ``model.fit`` itself."""

    def begin(self) -> None:
        """Limit GPU memory, and create a strategy for which all ranks wait."""
        process = self._process
        devices.limit_memory(process.setup.gpu_memory)
        if process.trains and process.facts.is_made_together:
            self.strategy  # noqa: B018 (made now)
        elif process.trains and process.num_workers > 1:
            group.offer(self._multi_worker, process.num_workers)
        if process.training.seed is not None:
            import keras

            # Seeds Python, numpy, TensorFlow and Keras; tf_keras uses Python's generator.
            keras.utils.set_random_seed(process.training.seed)

    def make_strategy(self) -> Any:
        """Return the strategy; an evaluator runs alone and has TensorFlow's default one."""
        import tensorflow as tf

        from gridflow._keras.patches.hooks import timed_iterators, untuned

        process = self._process
        if process.is_evaluator:
            return tf.distribute.get_strategy()
        untuned.install()
        timed_iterators.install(process.spent)
        match process.facts.name:
            case "multi_worker_mirrored" if "TF_CONFIG" in os.environ:
                return self._multi_worker()
            case "multi_worker_mirrored" | "mirrored" if devices.are_several():
                return tf.distribute.MirroredStrategy()
            case "multi_worker_mirrored" | "mirrored":  # a group of one
                from gridflow._keras.group.exchange import GroupExchange
                from gridflow._keras.group.strategy import GroupStrategy

                return GroupStrategy.of(GroupExchange(None))
            case _:
                return tf.distribute.get_strategy()

    def _multi_worker(self) -> Any:
        import tensorflow as tf

        process = self._process
        cpu.share_cores(process)
        from gridflow._keras.group import programs

        met = cpu.meet(process, groups.own_gpus(len(tf.config.list_physical_devices("GPU"))))
        if met is None:
            return self._own(None)
        members, everyone = met
        is_own = cpu.adds_up(process, everyone)
        process.agreement.join(members, in_steps=is_own)
        if is_own:
            return self._own(members)
        have_several = any(len(each) > 1 for each in everyone)
        if have_several and process.training.distribution.local_steps is not None:
            raise InvalidArgument(
                "Distribution(local_steps=) needs a worker for each GPU (gpus=1), but some have "
                "several."
            )
        theirs = self._tensorflows()
        if have_several:
            return theirs
        given = process.training.distribution.communication
        most = 0 if given is None else given.bytes_per_pack
        strategy = programs.through_tensorflow(theirs, self._wire, most)
        programs.use(strategy)
        return strategy

    def _own(self, members: HostGroup | None) -> Any:
        """Return the strategy that exchanges values through gridflow's own group."""
        import tensorflow as tf

        from gridflow._keras.group import programs
        from gridflow._keras.group.exchange import GroupExchange
        from gridflow._keras.group.strategy import GroupStrategy

        process = self._process
        exchange = GroupExchange(members, process.rank, process.num_workers, self._wire)
        if process.regrouping is not None:
            process.regrouping.use(exchange)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = GroupStrategy.of(exchange, resolver)
        programs.use(strategy)
        return strategy

    def _tensorflows(self) -> Any:
        """Return TensorFlow's own strategy."""
        from gridflow._keras.group import programs
        from gridflow._keras.patches import private_parts

        given = self._process.training.distribution.communication
        groups.await_first(self._process)
        strategy = programs.tensorflows(
            communication_options=None if given is None else given.to_tensorflow()
        )
        private_parts.keep_server(strategy)
        return strategy

    @property
    def _wire(self) -> Any:
        """The type in which gradients of float32 are exchanged, if it is another one."""
        import tensorflow as tf

        given = self._process.training.distribution.communication
        if given is None or given.wire_dtype == "float32":
            return None
        return tf.as_dtype(given.wire_dtype)

    def dataset(self, request: DatasetRequest) -> Any:
        """Return a ``tf.data.Dataset``, or the distributed dataset of a mirrored strategy."""
        from gridflow._feed.dataset.distributed import distribute

        process = self._process
        return distribute(
            self.strategy if request.gathered is None else None,
            request.reader(process),
            prefetch=request.ahead,
            **request.options(process),
        )

    def early_strategy(self) -> Any:
        """Return the strategy: Keras 3 asks for each step."""
        return self.strategy

    def streams(self, *, together: bool) -> Callable[[StreamSource, int], tuple[Any, StreamSource]]:
        """Return a function that makes a ``tf.data.Dataset``, or the strategy's own dataset."""
        del together
        from gridflow._feed.dataset.stream import distribute
        from gridflow._keras.patches.hooks import position

        if not self._process.trains:
            return super().streams(together=False)
        position.install_imported()
        return partial(distribute, self.strategy)

    def trainer(self, model: Any) -> Trainer:
        """Raise an error: ``model.fit`` works here."""
        del model
        raise GridflowError(
            "ctx.fit and ctx.evaluate are for strategy='parameter_server'; with "
            f"strategy={self._process.facts.name!r} use model.fit and model.evaluate."
        )

    def end(self) -> None:
        """Do nothing: a process leaves TensorFlow's group cleanly when it exits."""


MODE = Synchronous
