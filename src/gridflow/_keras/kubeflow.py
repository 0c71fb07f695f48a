"""Progress reports for Kubeflow Trainer, which shows them in the TrainJob's status.

See KEP-2779 of kubeflow/trainer (``docs/proposals/2779-trainjob-progress``): if its feature
``TrainJobStatus`` is on, Trainer gives each pod an address, a certificate authority and a token.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import ssl
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.neutral import NeutralCallback, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

URL: Final = "KUBEFLOW_TRAINER_SERVER_URL"
_CA_CERT: Final = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
_TOKEN: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105  (a variable's name)
_INTERVAL: Final = 5.0
_LONGEST_INTERVAL: Final = 300.0
_SECONDS: Final = 5.0
#: The same number as in Kubeflow's own SDK.
_MOST_METRICS: Final = 256


class TrainerStatus(NeutralCallback):
    """Reports the progress of ``fit``, the remaining time and the metrics to Kubeflow Trainer.

    Only for the chief; ``ctx.callbacks()`` includes it if `URL` is set. Custom programs in a
    TrainJob can use it as well. It never fails a training: reports that can't be sent are dropped,
    with an increasing pause before the next try.
    """

    def __init__(self) -> None:
        super().__init__()
        self._url = os.environ.get(URL, "")
        self._interval = _INTERVAL
        self._due = self._began = 0.0
        self._epoch = 0
        self._first: float | None = None
        self._sending: threading.Thread | None = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start the clock."""
        del logs
        self._began, self._due, self._first = time.monotonic(), 0.0, None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Remember the epoch."""
        del logs
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report, if it is due."""
        if time.monotonic() >= self._due:
            steps = self.params.get("steps")
            done = (batch + 1) / steps if steps else 0.0
            self._tell(self._epoch + done, logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report the epoch's metrics, including those of validation."""
        if time.monotonic() >= self._due:
            self._tell(epoch + 1, logs)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Report the end, and wait a moment until it is sent."""
        self._join()
        self._tell(float(self.params.get("epochs") or 0), logs, is_over=True)
        self._join()

    def _tell(
        self, epochs_done: float, logs: Mapping[str, Any] | None, *, is_over: bool = False
    ) -> None:
        if self._sending is not None and self._sending.is_alive():
            return
        now = time.monotonic()
        self._due = now + self._interval
        # Converting tensors to numbers waits for the step, so it is done only here.
        status = self._status(epochs_done, numbers(logs), now - self._began, is_over=is_over)
        body = json.dumps({"trainerStatus": status}).encode()
        self._sending = threading.Thread(
            target=self._send, args=(body,), name="gridflow-trainer-status", daemon=True
        )
        self._sending.start()

    def _status(
        self, epochs_done: float, logs: dict[str, float], seconds: float, *, is_over: bool
    ) -> dict[str, Any]:
        epochs = self.params.get("epochs") or 0
        metrics = {
            "currentEpoch": str(self._epoch + 1),
            **{name: f"{value:.6g}" for name, value in logs.items() if math.isfinite(value)},
        }
        status: dict[str, Any] = {}
        if epochs:
            metrics["totalEpochs"] = str(epochs)
            part = 1.0 if is_over else min(epochs_done / epochs, 1.0)
            status["progressPercentage"] = int(100 * part)
            # The steps before a resume don't belong to this time.
            first = self._first = part if self._first is None else self._first
            if part > first:
                status["estimatedRemainingSeconds"] = int(seconds * (1 - part) / (part - first))
            elif is_over:
                status["estimatedRemainingSeconds"] = 0
        listed = list(metrics.items())[:_MOST_METRICS]
        status["metrics"] = [{"name": name, "value": value} for name, value in listed]
        now = dt.datetime.now(dt.UTC)
        return {**status, "lastUpdatedTime": now.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def _send(self, body: bytes) -> None:
        try:
            headers = {"Content-Type": "application/json"}
            if path := os.environ.get(_TOKEN):
                # The kubelet renews the file.
                with open(path, encoding="utf-8") as file:  # noqa: PTH123
                    headers["Authorization"] = f"Bearer {file.read().strip()}"
            request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310
            context = None
            if self._url.startswith("https:"):
                context = ssl.create_default_context(cafile=os.environ.get(_CA_CERT))
            with urllib.request.urlopen(request, timeout=_SECONDS, context=context):  # noqa: S310
                self._interval = _INTERVAL
        except (OSError, ValueError) as error:
            if self._interval == _INTERVAL:
                _log.warning("can't report progress to Kubeflow Trainer: %s", error)
            self._interval = min(2 * self._interval, _LONGEST_INTERVAL)

    def _join(self) -> None:
        if self._sending is not None:
            self._sending.join(timeout=_SECONDS + 1)
