"""Runs jobs on Marathon with its REST API at ``MARATHON_URL``."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TextIO

from gridflow.deploy.drivers.base import AlreadyThere, Patience, TaskStatus, say
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.rendering import Rendering

_POLL: Final = 2.0
_SECONDS: Final = 30.0
#: Marathon kills tasks before it forgets their apps.
_GONE: Final = 120.0


class _NotFound(GridflowError):
    """Marathon answered 404."""


class MarathonDriver:
    """Starts, follows and removes a rendered group."""

    def __init__(self, job: Job, rendering: Rendering, *, poll: float = _POLL) -> None:
        self._url = os.environ.get("MARATHON_URL", "").rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise InvalidArgument(
                "MARATHON_URL must be Marathon's address, such as http://host:8080; got "
                f"{self._url!r}."
            )
        self._name = job.name
        self._limits = (job.start_timeout, job.deadline)
        self._tasks = {
            f"/{job.name}/{role}-{i}" for role, r in job.role_items() for i in range(r.replicas)
        }
        self._text = rendering.text()
        self._poll = poll

    def start(self, *, replace: bool = False, follows: bool = True) -> None:  # noqa: ARG002
        """Create the group."""
        if self._apps():
            if not replace:
                states = ", ".join(f"{task.task} {task.state}" for task in self.status())
                raise AlreadyThere(self._name, f"/{self._name} already exists ({states})")
            self.cancel()
            self._wait_until_gone()
        answer = self._call("PUT", "/v2/groups", self._text)
        say(f"Marathon is deploying /{self._name}: {answer.get('deploymentId', '')}")

    def follow(self, output: TextIO) -> int:  # noqa: ARG002  (Marathon has no API for output)
        """Wait until all tasks run; Marathon's apps never end."""
        patience = Patience(self._name, *self._limits)
        seen: dict[str, str] = {}
        while True:
            states = self.status()
            if states and all(task.state == "running" for task in states):
                say("all tasks are running; remove them with 'gridflow cancel' when finished")
                return 0
            lines = {
                task.task: ": ".join(filter(None, (task.state, task.detail))) for task in states
            }
            for name, line in lines.items():
                if seen.get(name) != line:
                    say(f"{name}: {line}")
            seen = lines
            code = patience.verdict(
                # The tasks wait for each other, so one that runs hasn't started anything yet.
                has_begun=False,
                is_running=any(task.state == "running" for task in states),
                is_queued=False,
                reasons=[f"{task.task}: {lines[task.task]}" for task in states],
            )
            if code is not None:
                return code
            time.sleep(self._poll)

    def status(self) -> list[TaskStatus]:
        """Return the apps."""
        found = []
        reasons: dict[str, str] | None = None
        for app in self._apps() or ():
            if app.get("tasksRunning", 0) >= app.get("instances", 1):
                found.append(TaskStatus(app["id"], "running"))
                continue
            reasons = self._unplaced() if reasons is None else reasons
            failure = (app.get("lastTaskFailure") or {}).get("message", "")
            why = failure or reasons.get(app["id"], "")
            found.append(TaskStatus(app["id"], "waiting", why))
        return found

    def _unplaced(self) -> dict[str, str]:
        """Return why no host takes the apps that wait for one, by their ids."""
        try:
            queue = self._call("GET", "/v2/queue").get("queue", [])
        except _NotFound:
            return {}
        found = {}
        for item in queue:
            offers = item.get("processedOffersSummary") or {}
            declined = [
                each for each in offers.get("rejectSummaryLastOffers") or [] if each["declined"]
            ]
            if declined:
                why = ", ".join(
                    f"{each['reason']} ({each['declined']} offers)" for each in declined
                )
                found[item.get("app", {}).get("id", "")] = f"no host fits: {why}"
        return found

    def is_there(self) -> bool:
        """Return whether the group exists."""
        return self._apps() is not None

    def logs(self, *, follow: bool) -> int:  # noqa: ARG002  (all drivers have this parameter)
        """Raise an error that says where to find the output."""
        raise GridflowError(
            "Marathon has no API for output; look in each task's Mesos sandbox (stdout, stderr)."
        )

    def cancel(self) -> None:
        """Delete the group."""
        self._call("DELETE", f"/v2/groups/{self._name}?force=true")
        say(f"Marathon is removing /{self._name}")

    def _apps(self) -> list[Any] | None:
        """Return the group's apps, None if there is no such group."""
        embedded = ("group.apps", "group.apps.counts", "group.apps.lastTaskFailure")
        path = f"/v2/groups/{self._name}?" + "&".join(f"embed={each}" for each in embedded)
        try:
            group = self._call("GET", path)
        except _NotFound:
            return None
        return list(group.get("apps", []))

    def _wait_until_gone(self) -> None:
        end = time.monotonic() + _GONE
        while self._apps() is not None:
            if time.monotonic() > end:
                raise GridflowError(f"Marathon still has /{self._name} after {_GONE:g} s.")
            time.sleep(self._poll)

    def _call(self, method: str, path: str, text: str | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get("MARATHON_TOKEN"):
            headers["Authorization"] = f"token={token}"
        request = urllib.request.Request(  # noqa: S310  (the scheme is checked above)
            self._url + path, text.encode() if text else None, headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                body: dict[str, Any] = json.loads(answer.read() or b"{}")
                return body
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip()
            kind = _NotFound if error.code == HTTPStatus.NOT_FOUND else GridflowError
            raise kind(f"Marathon answered {error.code} to {method} {path}: {said}") from error
        except (OSError, ValueError) as error:
            raise GridflowError(f"Marathon at {self._url} can't be reached: {error}") from error
