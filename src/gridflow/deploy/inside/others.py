"""Communication of a launcher with the job's other tasks."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, Self

from gridflow._spec.cluster import CHIEF, WORKER, in_order
from gridflow.deploy.inside.finish import (
    GIVE_UP,
    MEET,
    FinishListener,
    call,
    finish_addresses,
    is_gone,
)
from gridflow.deploy.inside.identity import nodes_of_a_trainjob
from gridflow.errors import InvalidArgument, StartTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow._spec.cluster import ClusterMember

_PAUSE: Final = 0.5
#: Seconds between two calls to a task that knows of this one's end and keeps running.
_LOOKS: Final = 5.0
#: Seconds to report an end to tasks seen before: if they are gone, and if they are out of reach,
#: because a cluster's name server or network may be silent for a while. After a success it is
#: longer: those who are gone may come back, and who isn't told waits in vain for minutes.
_TELL_SUCCESS: Final = (30.0, 60.0)
_TELL_FAILURE: Final = (5.0, 30.0)
#: Starts of others within this time after this task's restart count as the same group restart.
_ONE_RESTART: Final = 120.0


class Others:
    """Tells other tasks about this one's start and end, and receives the same from them.

    `who`: This task.
    `environ` (mapping of str to str): The variables of `gridflow.deploy.task_start.News`. Without
        them there is no communication.
    `patience`: Seconds that others may take to come up or to come back.
    `meets`: Whether training tasks end together.
    `over`: Called once when training has finished, if this task ends with it.
    `give_up`: Called once with the task that has failed permanently, and its exit code.
    `absent`: Called once with a training task that has disappeared without a message, if this task
        ends only when that one does.
    `say`: Shows the user a message.
    """

    def __init__(
        self,
        who: ClusterMember,
        environ: Mapping[str, str],
        *,
        patience: float,
        meets: bool,
        over: Callable[[], None],
        give_up: Callable[[str, int], None],
        absent: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._who = who
        self._patience = patience
        self._over, self._give_up, self._absent, self._say = over, give_up, absent, say
        self._trainer = CHIEF if CHIEF in who.cluster else WORKER
        followers, others = finish_addresses(environ), finish_addresses(environ, GIVE_UP)
        meeting = finish_addresses(environ, MEET) or nodes_of_a_trainjob(environ, who)
        #: Failures are only reported on targets where no controller does it.
        self._tells_failures = bool(followers or others)
        self._follows = who.role in followers
        self._own = {**meeting, **others, **followers}.get(who.role, [])[who.index :][:1]
        self._followers = self._by_task(followers)
        self._together = self._by_task(meeting or others)
        self._meeting = self._together if meets and not self._follows else {}
        self._everybody = self._by_task({**meeting, **others, **followers})
        self._reached: set[str] = set()
        #: Tasks that weren't there at the last call.
        self._gone: set[str] = set()
        self._again = threading.Event()
        self._same_restart_until = 0.0
        self._start = ""
        self._closed = threading.Event()
        self._absence: Absence | None = None
        self._listener: FinishListener | None = None

    def __enter__(self) -> Self:
        self._listener = self._listen()
        if self._listener is not None and self._follows:
            self._absence = self._look_after(self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._absence is not None:
            self._absence.close()
        if self._listener is not None:
            self._listener.close()

    def begin(self, *, anew: bool = False) -> None:
        """Tell the others that this task starts; ``anew`` after a failure."""
        self._again.clear()
        self._same_restart_until = time.monotonic() + _ONE_RESTART if anew else 0.0
        self._start = uuid.uuid4().hex
        if self._listener is not None:
            self._listener.start = self._start
        if self._everybody:
            threading.Thread(
                target=self._greet, args=(self._start,), name="gridflow-greet", daemon=True
            ).start()

    def meet(self, ending: threading.Event) -> bool:
        """After success, wait until the tasks that end together with this one have ended.

        On most targets the DNS name of an ended task disappears. A task that starts late, or again,
        would wait for it in vain. So would one that has ended and doesn't know of this end yet: it
        is told until it answers, or is gone for good.

        Returns: False if a task has restarted and needs this one again, because a single task can't
            rejoin a synchronous group.
        """
        if self._listener is None or not self._meeting:
            return True
        is_said = False
        told: set[str] = set()
        signs = dict.fromkeys(self._meeting, time.monotonic())
        while not ending.is_set():
            if self._again.is_set():
                self._again.clear()
                return False
            for task in list(signs):
                # Check before calling: a task that has ended and is gone knows of this end.
                has_ended = self._listener.has_succeeded(task)
                silence = time.monotonic() - signs[task]
                is_due = task not in told or silence >= _LOOKS
                if is_due and self._call(task, self._meeting[task], code=0):
                    signs[task] = time.monotonic()
                    told.add(task)
                    silence = 0.0
                if has_ended and task in told:
                    del signs[task]
                elif has_ended and silence >= self._limit(task, 0):
                    del signs[task]
                    self._say(f"could not tell {task} that {self._who} has finished; ending")
                elif silence > self._patience:
                    del signs[task]
                    self._say(f"no sign of {task} for {self._patience:g} s; ending")
            if not signs and not self._again.is_set():
                return True
            if signs and not is_said:
                is_said = True
                self._say(f"{self._who} has finished; waiting for {', '.join(signs)} to finish")
            ending.wait(_PAUSE)
        return True

    def tell(self, code: int, stopped: threading.Event, *, waits: bool = True) -> None:
        """Report this task's end to the tasks that need to know.

        ``waits`` is whether to wait for tasks that haven't started yet.
        """
        waiting = self._concerned(code)
        began = time.monotonic()
        while waiting and not stopped.is_set():
            waiting = {
                task: address
                for task, address in waiting.items()
                if not self._is_over(task, code) and not self._call(task, address, code=code)
            }
            passed = time.monotonic() - began
            late = {
                task
                for task in waiting
                if passed >= self._limit(task, code, is_late=waits and not self._is_known(task))
            }
            if late and not code and self._who.role == self._trainer:
                self._say(f"could not tell these tasks that training is over: {', '.join(late)}")
            waiting = {task: a for task, a in waiting.items() if task not in late}
            if waiting:
                stopped.wait(_PAUSE)

    def _concerned(self, code: int) -> dict[str, str]:
        if code:
            return self._everybody if self._tells_failures else {}
        if self._who.role == self._trainer:
            return self._followers
        # Otherwise they would look for this task when they end.
        return self._together if self._follows else {}

    def _limit(self, task: str, code: int, *, is_late: bool = False) -> float:
        """Return for how many seconds to report this task's end to one that doesn't answer."""
        gone, out_of_reach = _TELL_FAILURE if code else _TELL_SUCCESS
        return self._patience if is_late else gone if task in self._gone else out_of_reach

    def _is_over(self, task: str, code: int) -> bool:
        """Return whether a task has ended, and doesn't wait for this one that ends with a code."""
        if self._listener is None or not self._listener.has_ended(task):
            return False
        waits = code and task in self._meeting and self._listener.has_succeeded(task)
        return not waits

    def _is_known(self, task: str) -> bool:
        return task in self._reached or (
            self._listener is not None and self._listener.has_begun(task)
        )

    def _call(self, task: str, address: str, **news: str | int) -> bool:
        try:
            start = call(address, task=str(self._who), **news)
        except OSError as error:
            (self._gone.add if is_gone(error) else self._gone.discard)(task)
            return False
        self._gone.discard(task)
        if start is None:
            return False
        self._reached.add(task)
        if start and self._listener is not None:
            self._listener.note_start(task, start)
        return True

    def _greet(self, start: str) -> None:
        waiting = dict(self._everybody)
        end = time.monotonic() + self._patience
        while waiting and start == self._start and time.monotonic() < end:
            for task, address in list(waiting.items()):
                if self._call(task, address, begun=start):
                    del waiting[task]
            if self._closed.wait(_PAUSE):
                return

    def _begun_anew(self, task: str) -> None:
        if task not in self._together or self._listener is None:
            return
        # It may need all others again, whatever they have reported before.
        self._listener.forget_ends()
        if time.monotonic() > self._same_restart_until:
            self._again.set()

    def _by_task(self, addresses: dict[str, list[str]]) -> dict[str, str]:
        """Return the addresses of all other tasks."""
        found = {f"{r}:{i}": a for r, each in addresses.items() for i, a in enumerate(each)}
        return {task: a for task, a in found.items() if task != str(self._who)}

    def _listen(self) -> FinishListener | None:
        if not self._own:
            return None
        counts = {role: len(in_order(hosts)) for role, hosts in self._who.cluster.items()}
        awaited = {f"{self._trainer}:{i}" for i in range(counts.get(self._trainer, 0))}
        cluster = {f"{r}:{i}" for r, count in counts.items() for i in range(count)}
        try:
            return FinishListener(
                self._own[0],
                awaited - {str(self._who)},
                self._over if self._follows else lambda: None,
                self._give_up,
                frozenset((cluster | set(self._everybody)) - {str(self._who)}),
                self._begun_anew,
            )
        except OSError as error:
            reason = f"{self._who} can't listen on {self._own[0]} ({error.strerror})"
            if self._follows:
                raise InvalidArgument(f"{reason}, so it would never end.") from error
            self._say(f"{reason}: it won't learn how the other tasks end")
            return None

    def _look_after(self, listener: FinishListener) -> Absence:
        """Watch the training tasks, for a server or evaluator that ends only when they do."""
        hosts = in_order(self._who.cluster.get(self._trainer, []))
        named = {f"{self._trainer}:{i}": host.rpartition(":")[0] for i, host in enumerate(hosts)}
        return Absence(named, lambda: listener.awaited, self._patience, self._absent)


# The DNS names of a task's peers: waits for them at the start, and notices when they disappear.

#: Seconds before the Job controller restarts a pod, doubled with each failure up to the maximum
#: (kubernetes/kubernetes, pkg/controller/job/job_controller.go, DefaultJobPodFailureBackOff and
#: MaxJobPodFailureBackOff).
_BACK_OFF: Final = 10.0
_MOST_BACK_OFF: Final = 600.0


def wait_for_peers(
    who: ClusterMember,
    seconds: float,
    stopped: threading.Event,
    resolve: Callable[..., Any] = socket.getaddrinfo,
) -> None:
    """Wait until every peer's name resolves.

    TensorFlow fails at once if a name doesn't resolve, but targets publish names one after the
    other.

    Raises `StartTimeout`: If any doesn't resolve within ``seconds``; the message lists them all.
    """
    waiting = list(dict.fromkeys(address.rpartition(":")[0] for address in who.peers))
    end = time.monotonic() + seconds
    while waiting:
        waiting = [host for host in waiting if not _resolves(host.strip("[]"), resolve)]
        if not waiting or stopped.is_set():
            return
        if time.monotonic() >= end:
            reason = (
                f"{', '.join(waiting)} did not resolve in {seconds:g} s. Check that all tasks are "
                "running, and that their Service publishes unready addresses."
            )
            raise StartTimeout(reason)
        stopped.wait(_PAUSE)


def _resolves(host: str, resolve: Callable[..., Any]) -> bool:
    try:
        resolve(host, None)
    except OSError:
        return False
    return True


def longest_back_off(restarts: int) -> float:
    """Return the Job controller's longest delay before a restart, for a number of restarts."""
    return min(_MOST_BACK_OFF, _BACK_OFF * 2 ** (restarts - 1)) if restarts > 0 else 0.0


class Absence:
    """Notices when a task's name is gone for longer than a restart takes.

    `hosts` (mapping of str to str): The host of each task.
    `awaited`: Returns the tasks that are still needed.
    `patience`: Seconds that a name may be gone.
    `gone`: Called once, with the task.
    """

    def __init__(
        self,
        hosts: Mapping[str, str],
        awaited: Callable[[], set[str]],
        patience: float,
        gone: Callable[[str], None],
        resolve: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:
        self._hosts = dict(hosts)
        self._awaited = awaited
        self._patience = patience
        self._gone = gone
        self._resolve = resolve
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gridflow-absence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking, without waiting for a lookup in progress, because resolvers can be slow."""
        self._closed.set()

    def _watch(self) -> None:
        last = dict.fromkeys(self._hosts, time.monotonic())
        while not self._closed.wait(max(0.1, min(_LOOKS, self._patience / 4))):
            for task in self._awaited() & set(last):
                now = time.monotonic()
                if _resolves(self._hosts[task].strip("[]"), self._resolve):
                    last[task] = now
                elif now - last[task] > self._patience and not self._closed.is_set():
                    self._gone(task)
                    return
