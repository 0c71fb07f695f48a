"""Jobs on Kubernetes, through the real ``kubectl`` with its current context."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

from gridflow._spec.exits import Exit
from gridflow.deploy.drivers.base import AlreadyThere, TaskStatus, call, say, tool
from gridflow.deploy.drivers.objects import (
    BAD,
    GOOD,
    STANDING,
    Pod,
    components,
    reason_of,
    resource,
    state_of,
)
from gridflow.deploy.drivers.streams import LogStream
from gridflow.deploy.drivers.watch import Watch
from gridflow.deploy.pods import COMPONENT
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.rendering import Rendering

_T = TypeVar("_T")
_POLL: Final = 2.0
_LAST_WORDS: Final = 10.0
_GONE: Final = "120s"
#: Seconds that the API server may be away while a job is followed, and that one call may take.
_AWAY: Final = 600.0
_ONE_CALL: Final = "--request-timeout=30s"
#: The reason that controllers give for a passed deadline.
_LATE: Final = "DeadlineExceeded"
#: What another try won't change.
_REFUSED: Final = ("(Forbidden)", "(Unauthorized)", "must be logged in")
#: Looks that an object may be missing from while its watch still has to tell of its end.
_MISSES: Final = 2
#: An object that is kept for less time than this may be gone between two looks.
_SHORT_LIVED: Final = 120
#: Kinds that neither train nor serve.
_BESIDE: Final = (
    "Service",
    "ConfigMap",
    "PersistentVolumeClaim",
    "PodGroup",
    "TrainingRuntime",
    "ClusterTrainingRuntime",
)
_ONGOING: Final = ("kubernetes", "jobset", "tfjob", "trainjob", "volcano", "sparkapplication")


class KubectlDriver:
    """Start, follow and remove a rendered job."""

    def __init__(self, job: Job, rendering: Rendering, *, poll: float = _POLL) -> None:
        self._kubectl = tool("kubectl", "Install it, or pipe 'gridflow render' to where it is.")
        self._job = job
        self._rendering = rendering
        self._poll = poll
        self._trains = rendering.target.name in _ONGOING
        self._seen: dict[tuple[str, str], str] = {}
        self._streams: dict[tuple[str, str, int], LogStream] = {}
        self._exit_codes: set[int] = set()
        self._last: dict[str, Any] = {}
        self._missed: dict[str, int] = {}

    def start(self, *, replace: bool = False) -> None:
        """Apply the documents."""
        if self._trains:
            self._make_room(replace=replace)
        # They have passed the lint, and not every server has the schemas that kubectl wants.
        words = ("apply", "--filename=-", "--validate=false")
        for line in self._call(*words, text=self._rendering.text()).splitlines():
            say(line)
        if self._trains and (self._job.time_to_live is not None or self._job.clean_up == "all"):
            self._leave_with_the_job()

    def _make_room(self, *, replace: bool) -> None:
        try:
            there = {name: item for name in self._watched() if (item := self._get(name))}
        except GridflowError as error:
            if "doesn't have a resource type" not in str(error):
                raise
            kinds = ", ".join(d.content["kind"] for d in self._rendering.documents)
            needs = f"the target {self._rendering.target.name} needs its controller there ({kinds})"
            raise GridflowError(f"{error}; {needs}.") from error
        if not there:
            return
        # What 'gridflow cancel' removes may still be on its way.
        staying = {n: i for n, i in there.items() if "deletionTimestamp" not in i["metadata"]}
        if staying and not replace:
            states = {name: state_of(item) or "not finished" for name, item in staying.items()}
            what = ", ".join(f"{name} ({state})" for name, state in states.items())
            raise AlreadyThere(self._job.name, f"{self._job.name} is there: {what}")
        # All of it: what the old job owns is collected with it, maybe after the new one is applied.
        words = ("--ignore-not-found", "--cascade=foreground", f"--timeout={_GONE}")
        for line in self._call("delete", *self._removable(), *words).splitlines():
            say(line)

    def _leave_with_the_job(self) -> None:
        """Let what stands beside the job be collected with it, once its time to live is over."""
        item = self._get(self._watched()[0])
        if not item or not item["metadata"].get("uid"):
            return
        owner = {key: item["metadata"][key] for key in ("name", "uid")}
        owner |= {key: item[key] for key in ("apiVersion", "kind")}
        patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
        for document in self._rendering.documents:
            if document.content["kind"] in {"Service", "Deployment", "TrainingRuntime"}:
                name = _name(document.content)
                self._call("patch", name, "--type=merge", f"--patch={patch}")

    def follow(self, output: TextIO) -> int:
        """Show pods and their output until the job has ended, or its service is ready."""
        wanted = self._watched() if self._is_brief() else []
        watches = {name: Watch(self._words("get", name)) for name in wanted}
        try:
            while True:
                items = self._patiently(lambda: self._look(output, watches))
                code = self._verdict(items)
                if code is not None:
                    # Of a pod that came and ended since the last look, too.
                    self._patiently(lambda: self._show_all(output))
                    return self._told(code, items)
                time.sleep(self._poll)
        finally:
            for watch in watches.values():
                watch.close()
            self._end_streams()

    def _look(self, output: TextIO, watches: dict[str, Watch]) -> dict[str, Any]:
        self._show_all(output)
        return {name: self._now(name, watches.get(name)) for name in self._watched()}

    def _patiently(self, look: Callable[[], _T]) -> _T:
        """Look again where a look fails: a server that is away for minutes ends no job."""
        until = None
        while True:
            try:
                found = look()
            except GridflowError as error:
                now = time.monotonic()
                if until is None:
                    until = now + _AWAY
                    say(f"{error}; trying again for {_AWAY / 60:g} minutes, the job goes on")
                if now > until or any(word in str(error) for word in _REFUSED):
                    raise
                time.sleep(self._poll)
            else:
                if until is not None:
                    say("kubectl gets through again")
                return found

    def _told(self, code: int, items: dict[str, Any]) -> int:
        """Say how the job has ended, and return its exit code."""
        name = self._job.name
        if code == Exit.SUCCEEDED:
            say(f"{name} succeeded" if self._trains else f"{name} is ready")
        elif code == Exit.OTHER:
            say(f"{name} was removed before its end was seen")
        else:
            reasons = [reason_of(item) for item in items.values() if item and state_of(item) in BAD]
            late = Exit.OVERDUE in self._exit_codes or _LATE in {reason for reason, _ in reasons}
            code = int(Exit.OVERDUE) if late else code
            why = [": ".join(filter(None, pair)) for pair in reasons if any(pair)]
            why = ["it was not done at its deadline", *why] if late else why
            say("; ".join([f"{name} failed", *dict.fromkeys(why), "'gridflow cancel' removes it"]))
        return code

    def status(self) -> list[TaskStatus]:
        """Return the job's pods."""
        return [TaskStatus(pod.name, pod.phase, pod.detail) for pod in self._pods()]

    def logs(self, *, follow: bool) -> int:
        """Print the output of all pods, each line with its pod."""
        words = ["logs", *self._labels(), "--prefix", "--tail=-1", "--max-log-requests=100"]
        words += ["--follow"] if follow else []
        return subprocess.run(self._words(*words), check=False).returncode

    def cancel(self) -> None:
        """Delete the documents' objects, claims of notebooks excepted."""
        words = ("delete", *self._removable(), "--ignore-not-found", "--wait=false")
        for line in self._call(*words).splitlines():
            say(line)

    def _removable(self) -> list[str]:
        contents = [document.content for document in self._rendering.documents]
        return [_name(each) for each in contents if each["kind"] != "PersistentVolumeClaim"]

    def _verdict(self, items: dict[str, Any]) -> int | None:
        """Return the exit code once the job has ended, None before."""
        states = {name: state_of(item) if item else "gone" for name, item in items.items()}
        followers = {f"{self._job.name}-{role}" for role in self._job.followers}
        decisive = [s for n, s in states.items() if n.rpartition("/")[2] not in followers]
        if all(state in GOOD for state in decisive):
            return int(Exit.SUCCEEDED)
        if any(state in BAD for state in states.values()):
            return int(Exit.PROGRAM)
        if "gone" in decisive:
            return int(Exit.OTHER)
        return None

    def _now(self, name: str, watch: Watch | None) -> Any:
        """Return an object as it is, or as it was when it was seen last."""
        if item := self._get(name):
            self._missed.pop(name, None)
            self._last[name] = item
            return item
        last = (watch.last() if watch else None) or self._last.get(name)
        # One of several may be removed, its time to live over, while others go on.
        if last and state_of(last) in GOOD | BAD:
            return last
        # The watch may be a moment behind.
        self._missed[name] = self._missed.get(name, 0) + 1
        return None if self._missed[name] > _MISSES else last or {"kind": "", "status": {}}

    def is_there(self) -> bool:
        """Return whether the server has anything of the job; what has no pods says its state."""
        there = {name: item for name in self._watched() if (item := self._get(name))}
        for name, item in there.items():
            why = ": ".join(filter(None, reason_of(item)))
            state = state_of(item) or "not finished"
            say(f"{name}: {state} ({why})" if why else f"{name}: {state}")
        return bool(there)

    def _is_brief(self) -> bool:
        brief = self._job.time_to_live is not None and self._job.time_to_live < _SHORT_LIVED
        return self._trains and (brief or self._job.clean_up == "all")

    def _watched(self) -> list[str]:
        """Return the names of the objects whose state is the job's, the main role's first."""
        wanted = []
        for document in self._rendering.documents:
            kind = document.content["kind"]
            if kind in _BESIDE or (self._trains and kind in STANDING):
                continue
            wanted.append(_name(document.content))
        main = f"/{self._job.name}-{self._job.main_role}"
        return sorted(wanted, key=lambda name: not name.endswith(main))

    def _get(self, name: str) -> Any:
        """Return an object of the server, None if it isn't there."""
        text = self._call("get", name, "--output=json", "--ignore-not-found", _ONE_CALL)
        return json.loads(text) if text.strip() else None

    def _pods(self) -> list[Pod]:
        listing = json.loads(self._call("get", "pods", *self._labels(), "--output=json", _ONE_CALL))
        return [Pod.of(item) for item in listing["items"]]

    def _show_all(self, output: TextIO) -> None:
        for pod in self._pods():
            if pod.is_leaving and (pod.name, pod.uid) not in self._seen:
                continue  # of a job that was here before
            line = f"{pod.phase} {pod.detail}".strip()
            if self._seen.get((pod.name, pod.uid)) != line:
                self._seen[pod.name, pod.uid] = line
                say(f"{pod.name}: {line}")
            # Volcano starts a pod of the same name again, the kubelet a container of the same pod.
            attempt = (pod.name, pod.uid, pod.restarts)
            if pod.has_output and attempt not in self._streams:
                for (name, *_), stream in self._streams.items():
                    if name == pod.name:
                        stream.close(0.0)
                words = self._words("logs", f"pod/{pod.name}", "--prefix", "--timestamps")
                self._streams[attempt] = LogStream(words, output, self._poll, since="--since-time")
            if pod.has_ended and attempt in self._streams:
                self._streams[attempt].end()
            if pod.exit_code is not None:
                self._exit_codes.add(pod.exit_code)

    def _end_streams(self) -> None:
        # The output of an ended pod comes to its end by itself.
        until = time.monotonic() + _LAST_WORDS
        cut = [
            name
            for (name, *_), stream in self._streams.items()
            if not stream.close(max(0.0, until - time.monotonic()))
        ]
        if cut:
            say(f"the end of the output of {', '.join(cut)} is missing; 'gridflow logs' prints it")

    def _labels(self) -> list[str]:
        """Return the words that select the pods of this target, of all that have the job's name."""
        parts = sorted(components([d.content for d in self._rendering.documents]))
        chosen = f",{COMPONENT} in ({','.join(parts)})" if parts else ""
        return [f"--selector=app.kubernetes.io/name={self._job.name}{chosen}"]

    def _words(self, *words: str) -> list[str]:
        return [self._kubectl, f"--namespace={self._job.namespace}", *words]

    def _call(self, *words: str, text: str | None = None) -> str:
        return call(self._words(*words), text)


def _name(content: Any) -> str:
    return f"{resource(content)}/{content['metadata']['name']}"
