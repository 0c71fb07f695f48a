"""Runs jobs on Kubernetes with ``kubectl`` and its current context."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

from gridflow._spec.exits import Exit
from gridflow.deploy.drivers.base import (
    UNKNOWN_KIND,
    AlreadyThere,
    Patience,
    TaskStatus,
    call,
    is_final,
    say,
    tool,
)
from gridflow.deploy.drivers.objects import (
    BAD,
    GOOD,
    STANDING,
    Pod,
    components,
    is_queued,
    is_suspended,
    reason_of,
    resource,
    state_of,
)
from gridflow.deploy.drivers.streams import LogStream, show
from gridflow.deploy.drivers.troubles import Troubles, waiting
from gridflow.deploy.pods import COMPONENT
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Rendering

_T = TypeVar("_T")
_POLL: Final = 2.0
_LAST_WORDS: Final = 10.0
_GONE: Final = "120s"
#: Seconds that the API server may be unreachable while following a job; timeout of one call.
_AWAY: Final = 600.0
_ONE_CALL: Final = "--request-timeout=30s"
#: The reason that controllers report for an exceeded deadline.
_LATE: Final = "DeadlineExceeded"
#: How often an object may be missing before it counts as gone, because its watch may lag behind.
_MISSES: Final = 2
#: Objects kept for less time than this may disappear between two looks.
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
#: Kinds that stand beside a job, and are made to be removed with it.
_LEAVING: Final = ("Service", "Deployment", "TrainingRuntime")


class KubectlDriver:
    """Starts, follows and removes a rendered job."""

    def __init__(self, job: Job, rendering: Rendering, *, poll: float = _POLL) -> None:
        self._kubectl = tool(
            "kubectl", "Install it, or pipe 'gridflow render' to a host that has it."
        )
        self._job = job
        self._rendering = rendering
        self._poll = poll
        self._trains = rendering.target.trains
        self._seen: dict[tuple[str, str], str] = {}
        self._streams: dict[tuple[str, str, int], LogStream] = {}
        self._exit_codes: set[int] = set()
        self._last: dict[str, Any] = {}
        self._missed: dict[str, int] = {}
        contents = (document.content for document in rendering.documents)
        self._troubles = Troubles(self._briefly, contents)

    def start(self, *, replace: bool = False, follows: bool = True) -> None:
        """Apply the documents."""
        rights = self._rights(replace=replace, follows=follows)
        if lacking := missing(self._briefly, self._job.namespace, rights):
            raise NotAllowed(self._job.name, self._job.namespace, lacking)
        there = self._there()
        if self._trains:
            self._make_room(there, replace=replace)
        # The documents have passed the lint, and not every server has the schemas kubectl needs.
        words = ("apply", "--filename=-", "--validate=false")
        for line in self._call(*words, text=self._rendering.text()).splitlines():
            say(line)
        if self._is_removed:
            self._leave_with_the_job()

    @property
    def _is_removed(self) -> bool:
        """Whether the job is removed some time after its end."""
        job = self._job
        return self._trains and (job.time_to_live is not None or job.clean_up == "all")

    def _rights(self, *, replace: bool, follows: bool) -> list[dict[str, str]]:
        """Return what the user needs to be allowed to."""
        rights = []
        for content in (document.content for document in self._rendering.documents):
            kind = content["kind"]
            verbs = ["get", "create"]
            if follows and self._is_brief() and _name(content) in self._watched():
                verbs += ["list", "watch"]
            if not self._trains or (self._is_removed and kind in _LEAVING):
                verbs.append("patch")
            if replace and self._trains and kind != "PersistentVolumeClaim":
                verbs.append("delete")
            group = content["apiVersion"].rpartition("/")[0]
            # All kinds that targets render have regular plurals.
            about = {"group": group, "resource": f"{kind.lower()}s"}
            rights += [{**about, "verb": verb} for verb in verbs]
        if follows:
            rights.append({"resource": "pods", "verb": "list"})
            rights.append({"resource": "pods", "subresource": "log", "verb": "get"})
        return list({tuple(right.items()): right for right in rights}.values())

    def _there(self) -> dict[str, Any]:
        """Return the objects that the server has."""
        try:
            return {name: item for name in self._watched() if (item := self._get(name))}
        except GridflowError as error:
            if UNKNOWN_KIND not in str(error):
                raise
            kinds = ", ".join(d.content["kind"] for d in self._rendering.documents)
            needs = f"install the controller that the target {self._rendering.target.name} needs"
            needs += f" ({kinds})"
            raise GridflowError(f"{error}; {needs}.") from error

    def _make_room(self, there: dict[str, Any], *, replace: bool) -> None:
        if not there:
            return
        # Objects removed by 'gridflow cancel' may still be terminating.
        staying = {n: i for n, i in there.items() if "deletionTimestamp" not in i["metadata"]}
        if staying and not replace:
            states = {name: state_of(item) or "not finished" for name, item in staying.items()}
            what = ", ".join(f"{name} ({state})" for name, state in states.items())
            raise AlreadyThere(self._job.name, f"{self._job.name} already exists: {what}")
        # Delete all objects, and wait: garbage collection of what the old job owns could otherwise
        # remove objects of the new one.
        words = ("--ignore-not-found", "--cascade=foreground", f"--timeout={_GONE}")
        for line in self._call("delete", *self._removable(), *words).splitlines():
            say(line)

    def _leave_with_the_job(self) -> None:
        """Make the job own its sidecars, so that they are removed together."""
        item = self._get(self._watched()[0])
        if not item or not item["metadata"].get("uid"):
            return
        owner = {key: item["metadata"][key] for key in ("name", "uid")}
        owner |= {key: item[key] for key in ("apiVersion", "kind")}
        patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
        for document in self._rendering.documents:
            if document.content["kind"] in _LEAVING:
                name = _name(document.content)
                self._call("patch", name, "--type=merge", f"--patch={patch}")

    def follow(self, output: TextIO) -> int:
        """Print pods and their output until the job has ended or its service is ready."""
        wanted = self._watched() if self._is_brief() else []
        watches = {name: Watch(self._words("get", name)) for name in wanted}
        deadline = self._job.deadline if self._trains else None
        patience = Patience(self._job.name, self._job.start_timeout, deadline)
        try:
            while True:
                items, pods = self._patiently(lambda: self._look(output, watches))
                code = self._verdict(items)
                if code is not None:
                    # Include pods that started and ended since the last look.
                    self._patiently(lambda: self._show_all(output))
                    return self._told(code, items)
                code = patience.verdict(
                    has_begun=any(pod.has_begun for pod in pods),
                    is_running=any(pod.has_begun and not pod.has_ended for pod in pods),
                    is_queued=is_queued(self._job, items, pods),
                    reasons=[*self._troubles.unmade, *waiting(pods)],
                )
                if code is not None:
                    return code
                time.sleep(self._poll)
        finally:
            for watch in watches.values():
                watch.close()
            self._end_streams()

    def _look(self, output: TextIO, watches: dict[str, Watch]) -> tuple[dict[str, Any], list[Pod]]:
        items = {name: self._now(name, watches.get(name)) for name in self._watched()}
        self._troubles.note_age(items.values())
        return items, self._show_all(output)

    def _patiently(self, look: Callable[[], _T]) -> _T:
        """Retry failed lookups: a server that is away for minutes doesn't end a job."""
        until = None
        while True:
            try:
                found = look()
            except GridflowError as error:
                if is_final(str(error)):
                    raise
                now = time.monotonic()
                if until is None:
                    until = now + _AWAY
                    say(f"{error}; retrying for {_AWAY / 60:g} minutes, the job keeps running")
                if now > until:
                    raise
                time.sleep(self._poll)
            else:
                if until is not None:
                    say("kubectl can reach the server again")
                return found

    def _told(self, code: int, items: dict[str, Any]) -> int:
        """Print how the job ended, and return its exit code."""
        name = self._job.name
        if code == Exit.SUCCEEDED:
            say(f"{name} succeeded" if self._trains else f"{name} is ready")
        elif code == Exit.OTHER:
            say(f"{name} was removed before its result was known")
        else:
            reasons = [reason_of(item) for item in items.values() if item and state_of(item) in BAD]
            late = Exit.OVERDUE in self._exit_codes or _LATE in {reason for reason, _ in reasons}
            code = int(Exit.OVERDUE) if late else code
            why = [": ".join(filter(None, pair)) for pair in reasons if any(pair)]
            why = ["it exceeded its deadline", *why] if late else why
            hint = "remove it with 'gridflow cancel'"
            say("; ".join([f"{name} failed", *dict.fromkeys(why), hint]))
        return code

    def status(self) -> list[TaskStatus]:
        """Return the job's pods."""
        self._troubles.note_age(map(self._get, self._watched()))
        return [TaskStatus(pod.name, pod.phase, pod.detail) for pod in self._pods()]

    def logs(self, *, follow: bool) -> int:
        """Print the output of all pods, with the pod's name on each line."""
        words = ["logs", *self._labels(), "--prefix", "--tail=-1", "--max-log-requests=100"]
        words += ["--follow"] if follow else []
        return show(self._words(*words), sys.stdout)

    def cancel(self) -> None:
        """Delete the documents' objects, except notebooks' claims."""
        words = ("delete", *self._removable(), "--ignore-not-found", "--wait=false")
        for line in self._call(*words).splitlines():
            say(line)

    def _removable(self) -> list[str]:
        contents = [document.content for document in self._rendering.documents]
        return [_name(each) for each in contents if each["kind"] != "PersistentVolumeClaim"]

    def _verdict(self, items: dict[str, Any]) -> int | None:
        """Return the exit code if the job has ended, otherwise None."""
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
        """Return an object's current or last known content."""
        if item := self._get(name):
            self._missed.pop(name, None)
            self._last[name] = item
            return item
        last = (watch.last() if watch else None) or self._last.get(name)
        # One of several objects may be removed after its time to live while others keep running.
        if last and state_of(last) in GOOD | BAD:
            return last
        # The watch may lag behind.
        self._missed[name] = self._missed.get(name, 0) + 1
        return None if self._missed[name] > _MISSES else last or {"kind": "", "status": {}}

    def is_there(self) -> bool:
        """Return whether the server has any of the job's objects, and print their state."""
        there = {name: item for name in self._watched() if (item := self._get(name))}
        for name, item in there.items():
            why = ": ".join(filter(None, reason_of(item)))
            state = state_of(item) or ("suspended" if is_suspended(item) else "not finished")
            say(f"{name}: {state} ({why})" if why else f"{name}: {state}")
        return bool(there)

    def _is_brief(self) -> bool:
        return self._is_removed and (self._job.time_to_live or 0) < _SHORT_LIVED

    def _watched(self) -> list[str]:
        """Return the names of the objects that determine the job's state, main role first."""
        wanted = []
        for document in self._rendering.documents:
            kind = document.content["kind"]
            if kind in _BESIDE or (self._trains and kind in STANDING):
                continue
            wanted.append(_name(document.content))
        main = f"/{self._job.name}-{self._job.main_role}"
        return sorted(wanted, key=lambda name: not name.endswith(main))

    def _get(self, name: str) -> Any:
        """Return an object from the server, None if it doesn't exist."""
        text = self._briefly("get", name, "--output=json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def _pods(self) -> list[Pod]:
        """Return the job's pods; print why others can't be made."""
        listing = json.loads(self._briefly("get", "pods", *self._labels(), "--output=json"))
        pods = [Pod.of(item) for item in listing["items"]]
        wanted = self._job.tasks if self._trains else len(pods) + 1
        if sum(pod.has_begun for pod in pods) < wanted:
            return self._troubles.read(pods)
        return pods

    def _show_all(self, output: TextIO) -> list[Pod]:
        shown = []
        for pod in self._pods():
            if pod.is_leaving and (pod.name, pod.uid) not in self._seen:
                continue  # from an earlier job
            shown.append(pod)
            line = f"{pod.phase} {pod.detail}".strip()
            if self._seen.get((pod.name, pod.uid)) != line:
                self._seen[pod.name, pod.uid] = line
                say(f"{pod.name}: {line}")
            # Volcano restarts with a new pod of the same name, the kubelet within the same pod.
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
        return shown

    def _end_streams(self) -> None:
        # The log stream of an ended pod ends by itself.
        until = time.monotonic() + _LAST_WORDS
        cut = [
            name
            for (name, *_), stream in self._streams.items()
            if not stream.close(max(0.0, until - time.monotonic()))
        ]
        if cut:
            say(f"the end of the output of {', '.join(cut)} is missing; see 'gridflow logs'")

    def _labels(self) -> list[str]:
        """Return the selector for this target's pods among all pods with the job's name."""
        parts = sorted(components([d.content for d in self._rendering.documents]))
        chosen = f",{COMPONENT} in ({','.join(parts)})" if parts else ""
        return [f"--selector=app.kubernetes.io/name={self._job.name}{chosen}"]

    def _words(self, *words: str) -> list[str]:
        return [self._kubectl, f"--namespace={self._job.namespace}", *words]

    def _briefly(self, *words: str, text: str | None = None) -> str:
        return self._call(*words, _ONE_CALL, text=text)

    def _call(self, *words: str, text: str | None = None) -> str:
        return call(self._words(*words), text)


def _name(content: Any) -> str:
    return f"{resource(content)}/{content['metadata']['name']}"


# Remembers the last state of an object that may disappear between two looks.

_CHUNK = 4096


class Watch:
    """Follows an object with ``kubectl get --watch``, which misses no change.

    The server ends each watch after some minutes, so it is restarted until it is closed. Without
    permission to watch, there is no last state.

    `words` (sequence of str): The command that gets the object.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = [*words, "--watch", "--output=json"]
        self._last: Any = None
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gridflow-watch", daemon=True)
        self._thread.start()

    def last(self) -> Any:
        """Return the object's last known content, None if it was never seen."""
        return self._last

    def close(self) -> None:
        """End the watch."""
        self._closed.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                if self._closed.is_set():
                    return
                self._process = subprocess.Popen(
                    self._words,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL,
                    text=True,
                )
            self._read(self._process)
            self._process.wait()
            self._closed.wait(1.0)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        decoder, text = json.JSONDecoder(), ""
        with process.stdout as stream:
            for line in stream:
                text += line
                if line.rstrip() != "}":  # the object's last line isn't indented
                    continue
                try:
                    self._last, end = decoder.raw_decode(text.lstrip())
                except ValueError:
                    continue
                text = text.lstrip()[end:]


# What a user may do on Kubernetes, asked before anything is created.


class NotAllowed(GridflowError):
    """The user lacks permissions that the job needs, so nothing was started.

    `missing` (tuple of str): Each is a resource with its verbs, such as ``pods: list``.
    """

    def __init__(self, name: str, namespace: str, missing: tuple[str, ...]) -> None:
        self.name, self.namespace, self.missing = name, namespace, missing
        super().__init__(
            f"you lack permissions in the namespace {namespace}: {'; '.join(missing)}. Nothing of "
            f"{name} was started. Ask for a Role with them, or set another namespace; 'kubectl "
            f"auth can-i --list --namespace={namespace}' prints those that you have."
        )

    def __reduce__(self) -> tuple[type[NotAllowed], tuple[str, str, tuple[str, ...]]]:
        return type(self), (self.name, self.namespace, self.missing)


def missing(
    call: Callable[..., str], namespace: str, rights: list[dict[str, str]]
) -> tuple[str, ...]:
    """Return what the user may not do, asking the server all at once.

    ``kubectl auth can-i`` asks the same way, one by one.

    `call`: Runs kubectl with these words and an input ``text``, and returns what it prints.
    `rights` (list of dict): The fields ``verb``, ``group``, ``resource`` and ``subresource`` of
        each permission.
    Returns: Each is a resource with its verbs, such as ``pods: list``. Empty if the server can't be
        asked.
    """
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": namespace, **right}},
        }
        for right in rights
    ]
    words = ("create", "--filename=-", "--output=json", "--validate=false")
    try:
        answers = call(*words, text="\n".join(map(json.dumps, reviews)))
    except GridflowError:
        return ()  # if anything else is wrong, too, the next call says so
    found: dict[str, list[str]] = {}
    for right, answer in zip(rights, _each_json(answers), strict=True):
        if not answer.get("status", {}).get("allowed", True):
            found.setdefault(_resource_of(right), []).append(right["verb"])
    return tuple(f"{resource}: {', '.join(verbs)}" for resource, verbs in found.items())


def _each_json(text: str) -> Iterator[Any]:
    """Yield the objects of a text with one after the other."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        found, end = decoder.raw_decode(text)
        yield found
        text = text[end:].lstrip()


def _resource_of(right: dict[str, str]) -> str:
    resource = ".".join(filter(None, (right["resource"], right.get("group"))))
    return "/".join(filter(None, (resource, right.get("subresource"))))
