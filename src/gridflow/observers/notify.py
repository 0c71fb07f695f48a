"""Messages about the ends of jobs."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

from gridflow._coordinator.observing import Observer
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._coordinator.observing import JobEnd, JobStart


class Notify(Observer):
    """Send a message when a job has ended, or when it has failed.

    The message is JSON: ``text`` (a sentence, which chat services show), ``job``, ``run_id``,
    ``state``, ``seconds``, ``error`` (its kind, or null), ``task`` (the first that failed) and
    ``metrics`` (those of the last epoch).

    Parameters
    ----------
    url : str, optional
        Where to POST it. Proxies are those of the environment.
    command : sequence of str, optional
        What to run with it as standard input: ``["mail", "-s", "a job", "me@example.com"]``.
    on : {'end', 'failure'}, default 'end'
        ``'failure'``: not after success.
    headers : mapping of str to str, optional
        Of the request, such as an ``Authorization``.
    timeout : float, default 10
        Seconds for each of both.

    Raises
    ------
    InvalidArgument
        Neither a URL nor a command is given, or something else than what is said above.

    Examples
    --------
    >>> from gridflow import LocalLauncher, TensorflowDistributor
    >>> from gridflow.observers import Notify
    >>> says = Notify(command=["sh", "-c", "cat > /dev/null"], on="failure")
    >>> distributor = TensorflowDistributor(launcher=LocalLauncher(), observers=[says])
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        command: Sequence[str] | None = None,
        on: str = "end",
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        if url is None and command is None:
            raise InvalidArgument("Notify needs url= or command=.")
        if url is not None and not str(url).startswith(("http://", "https://")):
            raise InvalidArgument(f"Notify(url=) must begin with https:// or http://; got {url!r}.")
        if isinstance(command, str) or not (command is None or all(command)):
            raise InvalidArgument(
                'Notify(command=) must be a list of words, such as ["sh", "-c", "…"]; '
                f"got {command!r}."
            )
        if on not in {"end", "failure"}:
            raise InvalidArgument(f"Notify(on=) must be 'end' or 'failure'; got {on!r}.")
        self._url, self._command, self._on = url, command, on
        self._headers, self._timeout = dict(headers or {}), timeout
        self._job: JobStart | None = None

    def begin(self, job: JobStart) -> None:
        """Remember the job."""
        self._job = job

    def end(self, outcome: JobEnd) -> None:
        """Send the message."""
        if self._on == "failure" and outcome.state == "succeeded":
            return
        content = json.dumps(self._message(outcome)).encode()
        if self._url is not None:
            headers = {"Content-Type": "application/json", **self._headers}
            request = urllib.request.Request(self._url, content, headers)  # noqa: S310 (checked)
            with urllib.request.urlopen(request, timeout=self._timeout):  # noqa: S310
                pass
        if self._command is not None:
            subprocess.run(list(self._command), input=content, timeout=self._timeout, check=True)

    def _message(self, outcome: JobEnd) -> dict[str, Any]:
        job, report, error = self._job, outcome.report, outcome.error
        failures = getattr(error, "failures", ())
        task = failures[0].task if failures else None
        name = "" if job is None else job.run_id or job.id
        why = f": {failures[0].task}: {failures[0].summary}" if failures else ""
        last = {name: values[-1] for name, values in report.history.items() if values}
        return {
            "text": f"Job {name} {_SAID[outcome.state]} after {outcome.seconds:,.0f} s{why}",
            "job": None if job is None else job.id,
            "run_id": None if job is None else job.run_id,
            "state": outcome.state,
            "seconds": round(outcome.seconds, 1),
            "error": None if error is None else type(error).__name__,
            "task": task,
            "metrics": last,
        }


_SAID = {"succeeded": "has succeeded", "failed": "has failed", "cancelled": "was cancelled"}
