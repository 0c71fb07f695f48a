"""Why pods can't be made or started, from the events of a job's objects and pods."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from gridflow.deploy.drivers.base import is_final, say
from gridflow.deploy.drivers.objects import GOOD, state_of
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gridflow.deploy.drivers.objects import Pod

#: Length of a timestamp up to its seconds.
_SECONDS: Final = 19
#: Objects that controllers make for others, by kind, and their names: the Jobs of a JobSet, the
#: JobSet of a TrainJob, what notebooks, servers and TensorBoards consist of, Volcano's pod group,
#: Kueue's Workload.
_MADE: Final = {
    "Job": r"{name}-[a-z]+-0",
    "JobSet": r"{name}",
    "StatefulSet": r"{name}",
    "Deployment": r"{name}(-predictor)?",
    "ReplicaSet": r"{name}(-predictor)?-[0-9a-z]+",
    "PodGroup": r"{name}(-[0-9a-f-]{{36}})?",
    "Workload": r"[a-z]+-{name}-[0-9a-f]+",
}
#: What events and pods say, and what can be done about it.
_WAYS_OUT: Final = (
    ("exceeded quota", "ask for less in roles.ROLE, or have the namespace's ResourceQuota raised"),
    (
        "must specify",
        (
            "give the pods what the namespace's ResourceQuota wants, in roles.ROLE.resources or in "
            "overrides, or have a LimitRange with defaults made"
        ),
    ),
    (" usage per ", "keep roles.ROLE.resources within the namespace's LimitRange"),
    ("violates PodSecurity", "change the pods in overrides, or the namespace's level"),
    ("denied the request", "change what the cluster's policy denies, if need be in overrides"),
    ("InvalidImageName", "check the field image"),
    ("ErrImage", "check the field image, and secrets.image_pull for a private registry"),
    ("ImagePullBackOff", "check the field image, and secrets.image_pull for a private registry"),
    ("FailedMount", "check that the claims, secrets and config maps of the job exist"),
    ("CreateContainerConfigError", "check that the secrets and config maps of the job exist"),
    (
        "nschedulable",
        (
            "ask for less in roles.ROLE.resources, check node_selector, affinity and tolerations, "
            "or have nodes added and raise start_timeout"
        ),
    ),
)


def way_out(text: str) -> str:
    """Return what can be done about a reason, in parentheses; empty if that isn't known."""
    return next((f" ({hint})" for sign, hint in _WAYS_OUT if sign in text), "")


@dataclass(frozen=True)
class Trouble:
    """What went wrong with an object, as a controller has reported it.

    `kind`, `name`: The object.
    `text`: Reason and message.
    `last`: The time at which it was last reported, to the second.
    """

    kind: str
    name: str
    text: str
    last: str

    @classmethod
    def of(cls, item: Any) -> Self:
        """Read a warning from the server's object."""
        about = item.get("involvedObject") or {}
        times = (
            (item.get("series") or {}).get("lastObservedTime"),
            item.get("lastTimestamp"),
            item.get("eventTime"),
            item.get("metadata", {}).get("creationTimestamp"),
        )
        said = (item.get("reason"), item.get("message"))
        return cls(
            str(about.get("kind", "")),
            str(about.get("name", "")),
            ": ".join(" ".join(part.split()) for part in said if part),
            next((time[:_SECONDS] for time in times if time), ""),
        )

    @property
    def topic(self) -> str:
        """The text without the names of pods, which are new at each try."""
        return re.sub(r'"[^"]*"', '""', self.text)

    def concerns(self, contents: Iterable[Any], pods: Iterable[str]) -> bool:
        """Return whether the event is about one of these documents, what is made for it, or a pod.

        Controllers report a pod that they can't make at what should have made it.
        """
        if self.kind == "Pod":
            return self.name in pods
        form = _MADE.get(self.kind, "")
        return any(
            (self.kind, self.name) == (each["kind"], each["metadata"]["name"])
            or re.fullmatch(form.format(name=re.escape(each["metadata"]["name"])), self.name)
            for each in contents
        )


def waiting(pods: list[Pod]) -> list[str]:
    """Return what pods wait for that haven't started, one line for each reason."""
    named: dict[str, list[str]] = {}
    for pod in pods:
        if not pod.has_begun:
            named.setdefault(pod.detail or pod.phase, []).append(pod.name)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {why}{way_out(why)}"
        for why, names in named.items()
    ]


class Troubles:
    """The warnings about a job.

    `call`: Runs kubectl with these words, and returns what it prints.
    `contents`: The job's documents.
    """

    def __init__(self, call: Callable[..., str], contents: Iterable[Any]) -> None:
        self._call = call
        self._contents = tuple(contents)
        #: When the job's objects were created, by the server's clock.
        self._since = ""
        self._may_read = True
        self._said: set[tuple[str, str]] = set()
        #: Why pods that don't exist can't be made.
        self.unmade: list[str] = []

    def note_age(self, items: Iterable[Any]) -> None:
        """Remember since when the job's objects exist: older events are about earlier ones."""
        open_ones = [each for each in items if each and state_of(each) not in GOOD]
        times = [each.get("metadata", {}).get("creationTimestamp") for each in open_ones]
        self._since = min(filter(None, times), default="")

    def read(self, pods: list[Pod]) -> list[Pod]:
        """Return the pods with what events add to their details; print why others can't be made.

        The reasons of schedulers and of the kubelet are also in the pods' own states, but not all
        of them: a volume that can't be mounted is only in an event.
        """
        waits = {pod.name: pod for pod in pods if not pod.has_begun}
        known = {name for name, pod in waits.items() if ": " in pod.detail}
        self.unmade = []
        for trouble in self._listed():
            if not trouble.concerns(self._contents, waits):
                continue
            if trouble.kind == "Pod":
                if trouble.name not in known:
                    told = dataclasses.replace(waits[trouble.name], detail=trouble.text)
                    waits[trouble.name] = told
                continue
            line = f"{trouble.kind}/{trouble.name}: {trouble.text}{way_out(trouble.text)}"
            if (trouble.kind, trouble.topic) not in self._said:
                self._said.add((trouble.kind, trouble.topic))
                say(line)
            self.unmade.append(line)
        return [waits.get(pod.name, pod) for pod in pods]

    def _listed(self) -> list[Trouble]:
        """Return the warnings since the job's start, oldest first; one for each of their topics."""
        if not self._since or not self._may_read:
            return []
        try:
            text = self._call("get", "events", "--field-selector=type=Warning", "--output=json")
        except GridflowError as error:
            if not is_final(str(error)):
                raise
            self._may_read = False
            say(f"why pods can't be made or started won't be shown: {error}")
            return []
        found = sorted(map(Trouble.of, json.loads(text)["items"]), key=lambda each: each.last)
        fresh = [each for each in found if each.last >= self._since[: len(each.last)]]
        return list({(each.kind, each.name, each.topic): each for each in fresh}.values())
