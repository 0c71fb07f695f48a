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

#: What Spark reports when executors or what they had computed are gone: another try may succeed,
#: also where rows couldn't be computed.
PASSING: Final = frozenset(
    {
        "ExecutorLostFailure",
        "FetchFailed",
        "FetchFailedException",
        "MetadataFetchFailed",
        "MetadataFetchFailedException",
        "ExecutorDeadException",
    }
)
#: How often a job moves away from preempted executors, by default.
MAX_PREEMPTIONS: Final = 10


@runtime_checkable
class RestartPolicy(Protocol):
    """Decides whether to restart after a failure. `Restarts` takes any object like this.

    Examples
    --------
    >>> class OnlyOutOfMemory:
    ...     def restart(self, causes):
    ...         return causes[-1].signal == "SIGKILL" and len(causes) <= 3
    """

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True to restart the group.

        `causes`: The failures that ended the attempts so far, the latest last. Executors preempted
            with notice aren't among them: ``max_preemptions`` counts those.
        """
        ...


@dataclass(frozen=True)
class MaxRestarts:
    """Restart up to ``limit`` times, except after failures that a restart can't fix.

    Rows that Spark can't compute would fail again, unless it reported that executors or shuffled
    blocks were lost, or one of ``errors``.

    Parameters
    ----------
    limit : int
    errors : sequence of str, optional
        Exceptions or error conditions of Spark's after which another try may succeed, such as
        ``("java.net.SocketTimeoutException", "FAILED_READ_FILE")``. The last part of a name is
        enough. Default: none beside those above.

    Raises
    ------
    InvalidArgument
        ``limit`` isn't a number, or ``errors`` aren't names.
    """

    limit: int
    errors: Sequence[str] = ()

    def __post_init__(self) -> None:
        whole_number("MaxRestarts(limit)", self.limit, 0)
        names = self.errors
        if isinstance(names, str) or not all(isinstance(each, str) and each for each in names):
            raise InvalidArgument(
                "MaxRestarts(errors=) takes names of Spark's exceptions and error conditions, such "
                f"as ['java.net.SocketTimeoutException', 'FAILED_READ_FILE']; got {names!r}."
            )

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True until the limit is reached."""
        return not _is_final(causes[-1], self.errors) and len(causes) <= self.limit


@dataclass(frozen=True)
class PreemptionAware:
    """Count lost hosts and executors separately from all other failures.

    Losing a spot instance says nothing about the program, so it has a budget of its own. This
    includes instances that vanish without notice. Executors whose preemption Spark announces have
    such a budget in any case: ``Restarts(max_preemptions=)``.

    Parameters
    ----------
    max_preemptions : int, default 10
        Restarts after losing agents, executors or hosts.
    max_restarts : int, default 0
        Restarts after any other failure.
    """

    max_preemptions: int = 10
    max_restarts: int = 0

    def __post_init__(self) -> None:
        whole_number("PreemptionAware(max_preemptions)", self.max_preemptions, 0)
        whole_number("PreemptionAware(max_restarts)", self.max_restarts, 0)

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True while the budget for this kind of failure lasts."""
        if _is_final(causes[-1]):
            return False
        last = KINDS[causes[-1].kind]
        alike = sum(KINDS[cause.kind].is_gone == last.is_gone for cause in causes)
        return alike <= (self.max_preemptions if last.is_gone else self.max_restarts)


@dataclass(frozen=True)
class RetryableExits:
    """Restart after exit codes of 128 and above, signals and losses, not after lower exit codes.

    ``restart_policy: exit-code`` in ``job.yaml`` does the same. A program that exits with 1 to 127,
    or a function that raises, would fail the same way again, unless it failed because a peer was
    lost.

    Parameters
    ----------
    limit : int
    """

    limit: int

    def __post_init__(self) -> None:
        whole_number("RetryableExits(limit)", self.limit, 0)

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True after a retryable exit until the limit is reached."""
        last = causes[-1]
        if _is_final(last):
            return False
        code = exit_of(last.kind, last.exit_code)
        return (code.is_retryable or last.consequence) and len(causes) <= self.limit


@dataclass(frozen=True)
class ApartFromPreemptions:
    """A policy for failures, with a separate budget for executors preempted with notice.

    `policy`: It doesn't see preemptions.
    """

    policy: RestartPolicy
    max_preemptions: int

    def restart(self, causes: Sequence[TaskFailure]) -> bool:
        """Return True while the budget for this kind of failure lasts."""
        others = [cause for cause in causes if cause.kind != PREEMPTED]
        if causes[-1].kind == PREEMPTED:
            return len(causes) - len(others) <= self.max_preemptions
        return self.policy.restart(others)


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """When to restart the group, in addition to ``max_restarts``.

    Parameters
    ----------
    policy : RestartPolicy, optional
        Replaces ``max_restarts``: `MaxRestarts`, `PreemptionAware`, `RetryableExits`, or your own
        object with a method ``restart(causes) -> bool``.
    max_preemptions : int, optional
        How often the group moves away from executors whose preemption Spark announces
        (``spark.decommission.enabled``), after making a checkpoint. These moves aren't failures and
        don't count toward ``max_restarts``. Default: 10, or the value of a `PreemptionAware`.
        See ``docs/failure.md``.
    max_replacements : int, default 0
        How many workers of a group may be replaced while the others go on: when the process of one
        is killed, exits or is frozen, or its agent or executor is lost, the others keep theirs,
        wait for a new one, and repeat only the step that was interrupted. For ``fit`` of tf_keras,
        and of Keras 3, but not on JAX, under ``strategy="multi_worker_mirrored"``, without
        GPUs and with `ctx.callbacks`; what can't go on so restarts as a whole, if ``max_restarts``
        or ``policy`` allow it. Replacements don't count toward these. See ``docs/failure.md``.

    Raises
    ------
    InvalidArgument
        The policy has no ``restart`` method, a number is negative, or ``max_preemptions`` is given
        twice.
    """

    policy: RestartPolicy | None = None
    max_preemptions: int | None = None
    max_replacements: int = 0

    def __post_init__(self) -> None:
        policy, limit = self.policy, self.max_preemptions
        is_policy = isinstance(policy, RestartPolicy) and not isinstance(policy, type)
        if policy is not None and not is_policy:
            raise InvalidArgument(
                "Restarts(policy=) must be MaxRestarts(3), PreemptionAware(…), RetryableExits(3), "
                f"or an object with a method restart(causes); got {policy!r}."
            )
        whole_number("Restarts(max_replacements=)", self.max_replacements, 0)
        if limit is not None:
            whole_number("Restarts(max_preemptions=)", limit, 0)
            if isinstance(policy, PreemptionAware):
                raise InvalidArgument(
                    f"give max_preemptions= only once; got max_preemptions={limit} and "
                    f"policy={policy!r}, which also counts preempted executors."
                )

    def policy_with(self, max_restarts: Any) -> RestartPolicy:
        """Return the combined policy.

        Raises
        ------
        InvalidArgument
            ``max_restarts`` isn't a number, or both it and the policy are given.
        """
        limit = whole_number("max_restarts", max_restarts, 0)
        if limit and self.policy is not None:
            raise InvalidArgument(
                f"give either Restarts(policy=) or max_restarts=; got max_restarts={limit} and "
                f"policy={self.policy!r}. max_restarts={limit} is the same as "
                f"Restarts(policy=MaxRestarts({limit}))."
            )
        policy = self.policy or MaxRestarts(limit)
        if isinstance(policy, PreemptionAware):
            return policy
        moves = MAX_PREEMPTIONS if self.max_preemptions is None else self.max_preemptions
        return ApartFromPreemptions(policy, moves)


def _is_final(failure: TaskFailure, passing: Sequence[str] = ()) -> bool:
    """Return whether another try would fail in the same way."""
    known = PASSING.union(passing)
    passes = any(known.intersection(_names_of(error)) for error in failure.spark_errors)
    return KINDS[failure.kind].is_final and not passes


def _names_of(error: str) -> tuple[str, str]:
    """Return how an exception, or an error condition with a subcondition, may be called."""
    is_condition = error[:1].isupper()
    return error, error.partition(".")[0] if is_condition else error.rpartition(".")[2]


def choose_cause(failures: Iterable[TaskFailure]) -> list[TaskFailure]:
    """Return the failures, the most likely cause first.

    In order of arrival, but consequences of other failures come last, and a lost agent comes after
    a task's own report, which says more.
    """
    return sorted(failures, key=lambda each: (each.consequence, KINDS[each.kind].is_gone))


def to_error(failures: tuple[TaskFailure, ...]) -> GridflowError:
    """Return the typed error for failures, of which the first is the cause."""
    first = failures[0]
    kind = KINDS[first.kind]
    lines = [first.describe()]
    others = [f"  {_place(other)}: {printable(other.summary)}" for other in failures[1:]]
    if others:
        words = (
            "These don't match either:"
            if kind.is_hosts
            else "Failed afterwards or as a consequence:"
        )
        lines += [words, *others]
    return kind.error("\n".join(lines), failures=failures)


def _place(failure: TaskFailure) -> str:
    """Return the task, with its host if the host matters."""
    shown = KINDS[failure.kind].is_hosts and failure.host
    return f"{failure.task} on {failure.host}" if shown else failure.task


def stuck_rank(members: Sequence[tuple[bool, str | None, float]]) -> int:
    """Return the rank that keeps the others waiting.

    `members` (sequence of (waiting, stack, last step)): ``waiting`` is True for a rank inside a
        TensorFlow operation, where ranks wait for peers. The stack is None for a rank that didn't
        answer.
    """
    order = sorted(
        range(len(members)),
        key=lambda rank: (members[rank][1] is not None, members[rank][0], members[rank][2]),
    )
    return order[0]
