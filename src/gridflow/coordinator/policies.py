"""Decisions about failures: restart or not, which is the cause, which error it becomes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from gridflow.errors import (
    GridflowError,
    InvalidArgument,
)
from gridflow.spec.failures import KINDS, PREEMPTED, exit_of
from gridflow.spec.options import whole_number
from gridflow.spec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gridflow.wire.failures import TaskFailure

#: How often a job moves away from executors that are taken back, unless it says otherwise.
MAX_PREEMPTIONS: Final = 10


@runtime_checkable
class RestartPolicy(Protocol):
    """Says whether a failure is followed by another generation: ``restart=`` takes any of these.

    Examples
    --------
    >>> class OnlyOutOfMemory:
    ...     def restart(self, causes):
    ...         return causes[-1].signal == "SIGKILL" and len(causes) <= 3
    """

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True for another generation.

        Parameters
        ----------
        causes : sequence of TaskFailure
            What ended each generation so far, the one that has just ended last. Executors that
            were taken back with notice aren't among them: ``max_preemptions`` counts those.
        """
        ...


@dataclass(frozen=True)
class MaxRestarts:
    """Restart up to ``limit`` times, whatever failed, unless it would fail the same way again.

    Parameters
    ----------
    limit : int
    """

    limit: int

    def __post_init__(self) -> None:
        whole_number("MaxRestarts(limit)", self.limit, 0)

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True while the limit isn't reached."""
        return not KINDS[causes[-1].kind].is_final and len(causes) <= self.limit


@dataclass(frozen=True)
class PreemptionAware:
    """Count tasks whose host or executor went away apart from all other failures.

    A spot instance that is taken back says nothing about the program: it has a budget of its own.
    Here that holds for those, too, that go without a word. Executors of which Spark says before
    that they will be taken away have one in any case, ``TensorflowDistributor(max_preemptions=)``.

    Parameters
    ----------
    max_preemptions : int, default 10
        Restarts after a loss of agents, executors or hosts.
    max_restarts : int, default 0
        Restarts after all else.
    """

    max_preemptions: int = 10
    max_restarts: int = 0

    def __post_init__(self) -> None:
        whole_number("PreemptionAware(max_preemptions)", self.max_preemptions, 0)
        whole_number("PreemptionAware(max_restarts)", self.max_restarts, 0)

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True while the budget of this kind of failure isn't used up."""
        last = KINDS[causes[-1].kind]
        if last.is_final:
            return False
        alike = sum(KINDS[cause.kind].is_gone == last.is_gone for cause in causes)
        return alike <= (self.max_preemptions if last.is_gone else self.max_restarts)


@dataclass(frozen=True)
class RetryableExits:
    """Restart after exits of 128 and above, signals and losses; what ends with less stays ended.

    So does ``restart_policy: exit-code`` in ``job.yaml``: a program that exits with 1 to 127, or a
    function that raises, would fail the same way again. Unless it failed for a peer that was lost.

    Parameters
    ----------
    limit : int
    """

    limit: int

    def __post_init__(self) -> None:
        whole_number("RetryableExits(limit)", self.limit, 0)

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True after a retryable exit, while the limit isn't reached."""
        last = causes[-1]
        if KINDS[last.kind].is_final:
            return False
        return (exit_of(last).is_retryable or last.consequence) and len(causes) <= self.limit


@dataclass(frozen=True)
class ApartFromPreemptions:
    """A policy for failures, beside a budget for executors that are taken back with notice.

    Parameters
    ----------
    policy : RestartPolicy
        Never hears of those.
    max_preemptions : int
    """

    policy: RestartPolicy
    max_preemptions: int

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True while the budget of this kind of failure isn't used up."""
        others = [cause for cause in causes if cause.kind != PREEMPTED]
        if causes[-1].kind == PREEMPTED:
            return len(causes) - len(others) <= self.max_preemptions
        return self.policy.restart(others)


def with_preemptions(policy: RestartPolicy, max_preemptions: Any) -> RestartPolicy:
    """Return a policy that counts executors that are taken back with notice apart.

    None: `MAX_PREEMPTIONS`, or what a `PreemptionAware` says itself.

    Raises
    ------
    InvalidArgument
        It is no number; or both say one.
    """
    if max_preemptions is not None:
        whole_number("max_preemptions", max_preemptions, 0)
    if not isinstance(policy, PreemptionAware):
        limit = MAX_PREEMPTIONS if max_preemptions is None else max_preemptions
        return ApartFromPreemptions(policy, limit)
    if max_preemptions is not None:
        raise InvalidArgument(
            f"give max_preemptions= once; got max_preemptions={max_preemptions} beside "
            f"restart={policy!r}, which counts executors that are taken back, too."
        )
    return policy


def policy_of(restart: Any, max_restarts: Any) -> RestartPolicy:
    """Return the policy that a user gave, as an object or as a number.

    Raises
    ------
    InvalidArgument
        It is neither; or both were given.
    """
    limit = whole_number("max_restarts", max_restarts, 0)
    if restart is None:
        return MaxRestarts(limit)
    if limit:
        raise InvalidArgument(
            f"give either restart= or max_restarts=; got max_restarts={limit} beside "
            f"restart={restart!r}. restart=MaxRestarts({limit}) is the same."
        )
    if isinstance(restart, int) and not isinstance(restart, bool):
        return MaxRestarts(restart)
    if isinstance(restart, type) or not isinstance(restart, RestartPolicy):
        raise InvalidArgument(
            "restart= is a number of restarts, MaxRestarts(3), PreemptionAware(...) or an object "
            f"with a method restart(causes); got {restart!r}."
        )
    return restart


def choose_cause(failures: Iterable[TaskFailure]) -> list[TaskFailure]:
    """Return the failures, the most likely cause first.

    Order of arrival, but echoes of another task's failure come last, and of two first-hand reports
    a lost agent comes behind: the task's own words say more.
    """
    return sorted(failures, key=lambda each: (each.consequence, KINDS[each.kind].is_gone))


def to_error(failures: tuple[TaskFailure, ...]) -> GridflowError:
    """Return the typed error for failures whose first is the cause."""
    first = failures[0]
    kind = KINDS[first.kind]
    lines = [first.describe()]
    others = [f"  {_place(other)}: {printable(other.summary)}" for other in failures[1:]]
    if others:
        words = "Nor do these fit:" if kind.is_hosts else "Failed after it, or because of it:"
        lines += [words, *others]
    return kind.error("\n".join(lines), failures=failures)


def _place(failure: TaskFailure) -> str:
    """Return the task; with its host, where that has to be looked into."""
    shown = KINDS[failure.kind].is_hosts and failure.host
    return f"{failure.task} on {failure.host}" if shown else failure.task


def stuck_rank(members: Sequence[tuple[bool, str | None, float]]) -> int:
    """Return the rank that keeps the others waiting.

    Parameters
    ----------
    members : sequence of (waiting, stack, last step)
        ``waiting`` is True for a rank that stands in a TensorFlow operation, as those do that wait
        for a peer; the stack is None for one that did not even answer.
    """
    order = sorted(
        range(len(members)),
        key=lambda rank: (members[rank][1] is not None, members[rank][0], members[rank][2]),
    )
    return order[0]
