"""Decisions about failures: restart or not, which is the cause, which error it becomes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from gridflow._spec.exits import KINDS, exit_of
from gridflow._spec.option_checks import whole_number
from gridflow._spec.printable import printable
from gridflow._wire.failures import PREEMPTED
from gridflow.errors import (
    GridflowError,
    InvalidArgument,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gridflow._wire.failures import TaskFailure

#: How often a job moves away from executors that are taken back, unless it says otherwise.
MAX_PREEMPTIONS: Final = 10


@runtime_checkable
class RestartPolicy(Protocol):
    """Says whether a failure is followed by another generation: `Restarts` takes any of these.

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
    that they will be taken away have one in any case, ``Restarts(max_preemptions=)``.

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
        code = exit_of(last.kind, last.exit_code)
        return (code.is_retryable or last.consequence) and len(causes) <= self.limit


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


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """Which failures the group is started again after, beside ``max_restarts``.

    Parameters
    ----------
    policy : RestartPolicy, optional
        Instead of ``max_restarts``: `MaxRestarts`, `PreemptionAware`, `RetryableExits`, or an
        object of your own with a method ``restart(causes) -> bool``.
    max_preemptions : int, optional
        How often the group moves away from executors of which Spark says that they will be taken
        back (``spark.decommission.enabled``), with a checkpoint made before; apart from
        ``max_restarts``, as it is no failure. Default: 10, or what a `PreemptionAware` says itself.
        See ``docs/failure.md``.

    Raises
    ------
    InvalidArgument
        For a policy that is none, a negative number, or ``max_preemptions`` given twice.
    """

    policy: RestartPolicy | None = None
    max_preemptions: int | None = None

    def __post_init__(self) -> None:
        policy, limit = self.policy, self.max_preemptions
        is_policy = isinstance(policy, RestartPolicy) and not isinstance(policy, type)
        if policy is not None and not is_policy:
            raise InvalidArgument(
                "Restarts(policy=) is MaxRestarts(3), PreemptionAware(…), RetryableExits(3) or an "
                f"object with a method restart(causes); got {policy!r}."
            )
        if limit is not None:
            whole_number("Restarts(max_preemptions=)", limit, 0)
            if isinstance(policy, PreemptionAware):
                raise InvalidArgument(
                    f"give max_preemptions= once; got max_preemptions={limit} beside "
                    f"policy={policy!r}, which counts executors that are taken back, too."
                )

    def policy_with(self, max_restarts: Any) -> RestartPolicy:
        """Return the policy for all of it.

        Raises
        ------
        InvalidArgument
            ``max_restarts`` is no number, or both say how often.
        """
        limit = whole_number("max_restarts", max_restarts, 0)
        if limit and self.policy is not None:
            raise InvalidArgument(
                f"give either Restarts(policy=) or max_restarts=; got max_restarts={limit} beside "
                f"policy={self.policy!r}. Restarts(policy=MaxRestarts({limit})) is the same."
            )
        policy = self.policy or MaxRestarts(limit)
        if isinstance(policy, PreemptionAware):
            return policy
        moves = MAX_PREEMPTIONS if self.max_preemptions is None else self.max_preemptions
        return ApartFromPreemptions(policy, moves)


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
