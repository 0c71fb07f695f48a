"""Finds the cause of a failed job in Spark's messages. Pure.

The messages are those of Spark 4.0 to 4.3: `TaskSetManager`, `DAGScheduler` and `PythonRunner`.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from gridflow._feed.ingest.partitions import not_beside_each_other
from gridflow.errors import (
    DataError,
    EnvironmentMismatch,
    GridflowError,
    InvalidArgument,
    NotEnoughSlots,
    TaskLost,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

_LOST: Final = (
    (re.compile(r"ExecutorLostFailure \((executor \S+) exited[^)]*\)[^\n]*"), "its executor died"),
    (re.compile(r"Python worker exited unexpectedly[^\n]*"), "its agent's process died"),
    (re.compile(r"(?:Executor|Worker|Host) \S+ (?:lost|removed|decommissioned)"), "it was lost"),
)
#: "barrier task ResultTask(5, 1)": stage 5, partition 1.
_BARRIER_RANK: Final = re.compile(r"ResultTask\(\d+, (\d+)\)")
#: "Task 1 in stage 5.0 failed": of any stage, including those before the agents'.
_RANK: Final = re.compile(r"Task (\d+) in stage \d+")
#: The message's beginning after the preambles, as a user's own error may contain these words, too.
_CANCELLED: Final = re.compile(
    r"\[?(?:SPARK_JOB_CANCELLED|OPERATION_CANCELED)|Job \d+ cancelled\b"
    r"|Job aborted due to stage failure: Stage \d+ was cancelled|Stage \d+ cancelled\b"
)
#: An argument that an agent refuses before it registers.
_REFUSED: Final = re.compile(r"^gridflow\.errors\.InvalidArgument: (.+)", re.MULTILINE)
#: Not caused by the user: an agent's own error, or rows lost between two stages.
_OURS: Final = re.compile(
    r"gridflow/(?:_agent|_launch/spark|deploy/inside|_coordinator)/|FetchFailed|MetadataFetchFailed"
)
#: Spark's text before the error itself: the caller, the task and the stage.
_PREAMBLES: Final = (
    re.compile(r"^An error occurred while calling \w+\.\w+\.\s*:?\s*"),
    re.compile(r"^.*?Job aborted due to stage failure: ", re.DOTALL),
    re.compile(r"^.*?barrier task ResultTask\(\d+, \d+\) finished unsuccessfully\.\s*", re.DOTALL),
    re.compile(r"^Task \d+ in stage .*?\(TID \d+\) \([^)]*\): ", re.DOTALL),
    re.compile(r"^[\w.$]+(?:Exception|Error): (?=\S)"),
)
_TRACEBACK_LINES: Final = 8
#: "java.net.SocketTimeoutException", "[FAILED_READ_FILE.NO_HINT]", "FetchFailed(…)".
_NAMES: Final = re.compile(
    r"\b((?:[a-z_]\w*\.)+[A-Z][\w$]*(?:Exception|Error|Failure)\b|FetchFailed\b|MetadataFetchFailed\b"
    r"|ExecutorLostFailure\b)|\[([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:\.[A-Z0-9_]+)*)\]"
)
_MOST_NAMES: Final = 20
#: Why Spark refuses a barrier stage before any of its tasks, by its error class and its words: the
#: error, and what to say for a number of tasks; None: what Spark says.
_BARRIER_REFUSALS: Final[
    tuple[tuple[re.Pattern[str], type[GridflowError], Callable[[int], str] | None], ...]
] = (
    (
        re.compile(r"SPARK-2482[01]|does not allow the following pattern of RDD chain"),
        InvalidArgument,
        not_beside_each_other,
    ),
    (
        re.compile(r"SPARK-24819|more slots than the total number of slots"),
        NotEnoughSlots,
        None,
    ),
    (
        re.compile(r"SPARK-24942|does not support dynamic resource allocation"),
        InvalidArgument,
        lambda _: (
            "Spark has dynamic allocation on, though the session's settings don't say so "
            "(SPARK-24942): set spark.dynamicAllocation.enabled where the application starts, to "
            "'false', or to 'true' so that gridflow sees it."
        ),
    ),
)
_MASTERS: Final = (
    re.compile(r"local\[(\d+)(?:,\s*\d+)?\]$"),
    re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]$"),
)
#: Python is missing, or lacks what an agent (or a Python function in the user's data) imports.
_MISSING: Final = re.compile(
    r"(?:ModuleNotFoundError|ImportError)[^\n]*|Cannot run program [^\n]*"
    r"|[^\n]*(?:while reading the port number from pyspark\.daemon|PYTHON_VERSION_MISMATCH)[^\n]*"
)
_PYTHON_HINT: Final = (
    "The executors run the Python named by PYSPARK_PYTHON (spark.pyspark.python with spark-submit; "
    "otherwise python3 on their PATH), which needs gridflow and its dependencies. "
    "pip install 'gridflow[tensorflow]' there, or ship an environment with spark.archives. Python "
    "functions in the data that were created before the first run() still use the python3 on the "
    "PATH: create SparkLauncher(spark) right after the session."
)


def explain(
    error: BaseException, num_tasks: int = 1, **about: bool
) -> tuple[int | None, str, GridflowError | None]:
    """Return the rank that was lost, what happened to it, and the job's error.

    `error`: Spark's exception.
    `num_tasks`: Of the agents' stage.
    `about`: See `_explain`.
    Returns: The rank is None if no agent caused it; the error is None for a cancelled job.
    """
    rank, what, found = _explain(error, num_tasks, **about)
    if found is not None and found is not error:
        with contextlib.suppress(Exception):  # they are asked of a JVM that may have died
            found.spark_errors = _names_in(error)
    return rank, what, found


def _names_in(error: BaseException | None) -> tuple[str, ...]:
    """Return the names of Spark's exceptions and error conditions, the outermost first.

    What PySpark makes of a Java exception tells less than that, which is its context.
    """
    found: list[str] = []
    while error is not None:
        kind = type(error)
        if kind.__module__.startswith("pyspark."):
            found.append(f"{kind.__module__}.{kind.__name__}")
        condition = getattr(error, "getCondition", str)()
        found += [condition] if condition else []
        found += [match[0] or match[1] for match in _NAMES.findall(str(error))]
        error = error.__cause__ or error.__context__
    return tuple(dict.fromkeys(found))[:_MOST_NAMES]


def _explain(
    error: BaseException,
    num_tasks: int = 1,
    *,
    has_data: bool = True,
    was_cancelled: bool = False,
    is_barrier: bool = True,
    agents_ran: bool = True,
) -> tuple[int | None, str, GridflowError | None]:
    """Do as `explain`, without the names.

    `has_data`: Whether the job computes the user's DataFrames.
    `was_cancelled`: Whether gridflow had cancelled the job.
    `is_barrier`: Whether the agents' stage is a barrier stage.
    `agents_ran`: Whether any agent had registered. If none had, a stage before theirs may have
        failed.
    """
    if isinstance(error, GridflowError):
        return None, "", error
    text = str(error)
    refused = _REFUSED.search(text)
    if refused:
        return None, "", InvalidArgument(refused[1].strip())
    rank, is_upstream = _place(text, is_barrier=is_barrier, agents_ran=agents_ran)
    is_upstream = is_upstream and has_data
    lost = any(pattern.search(text) for pattern, _ in _LOST) and not is_upstream
    if was_cancelled and not lost:
        return None, "", None
    if _CANCELLED.match(_without_preambles(text)) and not lost:
        return None, "", _failed("The Spark job was cancelled, but not by gridflow", text)
    for pattern, kind, words_for in _BARRIER_REFUSALS:
        if pattern.search(text):
            told = f"Spark refused the barrier stage: {_first_lines(text)}"
            return None, "", kind(words_for(num_tasks) if words_for else told)
    missing = _MISSING.search(text)
    if missing:
        return None, "", EnvironmentMismatch(f"{missing[0].strip()}\n{_PYTHON_HINT}")
    for pattern, what in _LOST:
        words = pattern.search(text)
        if words and lost:
            return rank, f"{what}: {words[0].strip()}", TaskLost(_first_lines(text))
    if has_data and not _OURS.search(text):
        return None, "", _failed("Spark failed to compute the rows of data=", text)
    return rank, _python_error(text), TaskLost(_first_lines(text))


def _place(text: str, *, is_barrier: bool, agents_ran: bool) -> tuple[int | None, bool]:
    """Return the rank whose task failed, and whether it was a task before the agents' stage."""
    found = _BARRIER_RANK.search(text)
    if found is None and not is_barrier and agents_ran:
        found = _RANK.search(text)
    if found:
        return int(found[1]), False
    return None, _RANK.search(text) is not None


def slots_of_master(master: str, cpus: Fraction) -> int | None:
    """Return the slots that a master's name implies, or None.

    `cpus`: Cores of a slot.
    """
    single, cluster = (pattern.match(master) for pattern in _MASTERS)
    if master == "local":
        return 1 // cpus
    if single:
        return int(single[1]) // cpus
    if cluster:
        return int(cluster[1]) * (int(cluster[2]) // cpus)
    return None


def _failed(what: str, text: str) -> DataError:
    return DataError(f"{what}: {words_of(text)}")


def words_of(text: str) -> str:
    """Return the error itself, without the JVM's stack and Spark's text around it."""
    words = re.split(r"\n\s*at [\w.$]+[(/]|\n+JVM stacktrace:|\n+Driver stacktrace:", text)[0]
    words = _without_preambles(words)
    head, mark, trace = words.rpartition("Traceback (most recent call last):")
    if mark:  # the last frames are the user's own
        lines = trace.strip("\n").splitlines()
        kept = lines[-_TRACEBACK_LINES:]
        return "\n".join([head + mark, *(["  ..."] if len(kept) < len(lines) else []), *kept])
    return words.strip()


def _without_preambles(words: str) -> str:
    for preamble in _PREAMBLES:
        words = preamble.sub("", words)
    return words


def _python_error(text: str) -> str:
    """Return the last line of the first Python traceback, or the first lines."""
    found = re.search(r"Traceback \(most recent call last\):.*?\n(?=\S)([^\n]+)", text, re.DOTALL)
    return found[1] if found else _first_lines(text)


def _first_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(line for line in lines if not line.startswith("at "))[:1000]
