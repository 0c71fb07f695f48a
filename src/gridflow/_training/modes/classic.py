"""TensorFlow servers, roles and sessions for the user's own program."""

from __future__ import annotations

from typing import Any

from gridflow._gpu.devices import server_config
from gridflow._training import tensorflow_server
from gridflow._training.modes.synchronous import Synchronous


class Classic(Synchronous):
    """Each task of the cluster has a ``tf.distribute.Server``; the rest is as with ``none``."""

    _server: Any = None

    def begin(self) -> None:
        """Make a task that joins its server announce it."""
        super().begin()
        tensorflow_server.announce_joins(self._process.channel, self._process.inbox)

    def server(self, config: Any) -> Any:
        """Return this task's server, started on first use."""
        process = self._process
        if process.is_evaluator:
            return super().server(config)
        with self._lock:
            if self._server is None:
                setup = process.setup
                config = config or server_config(setup.gpu_memory, len(setup.gpus))
                self._server = tensorflow_server.make_server(
                    process.cluster_spec, process.task, config
                )
            return self._server


MODE = Classic
