"""gridflow.predict while whatever computes is killed, frozen or cancelled, in random order."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import psutil
import pytest
from processes import executors, models
from pyspark import InheritableThread

import gridflow

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FAULTS = 8
ROWS = 20_000


def plus(more):
    """Return what makes a model that adds a number, not too fast."""

    def make():
        def predict(x):
            time.sleep(0.01)
            return x + more

        return predict

    return make


class Query:
    """A query that computes in another thread."""

    def __init__(self, spark, more):
        rows = spark.range(0, ROWS, 1, 4).selectExpr("id", "double(id) AS x")
        self.more, self.found, self.error = more, None, None
        self._frame = gridflow.predict(rows, plus(more), columns=["x"], outputs="double")
        self._context, self._tag = spark.sparkContext, f"query-{time.monotonic_ns()}"
        self._thread = InheritableThread(self._run)
        self._thread.start()

    def _run(self):
        self._context.addJobTag(self._tag)
        try:
            self.found = self._frame.toArrow().to_pydict()
        except Exception as error:
            self.error = error

    def cancel(self):
        self._context.cancelJobsWithTag(self._tag)

    def end(self):
        """Wait for its end; return whether it gave rows, which are right."""
        self._thread.join(180)
        assert not self._thread.is_alive(), "the query hangs"
        if self.error is not None:
            return False
        by_id = dict(zip(self.found["id"], self.found["prediction"], strict=True))
        assert by_id == {row: row + self.more for row in range(ROWS)}
        assert len(self.found["id"]) == ROWS
        return True


def act(spark, fault, chosen, queries):
    """Do something bad to a query that computes."""
    if fault == "cancel":
        queries[0].cancel()
    word, _, number = fault.partition(" ")
    victims = {"model": models, "executor": executors}.get(word, lambda _: [])(spark)
    if victims:
        os.kill(chosen.choice(victims).pid, getattr(signal, number))


def endure(spark, count, seed=0):
    """Let queries run into random faults; return how often each gave rows."""
    chosen, ended = random.Random(seed), {}
    faults = ["model SIGKILL", "model SIGSTOP", "executor SIGKILL", "cancel", "nothing"]
    for number in range(count):
        fault = faults[number % len(faults)] if number < len(faults) else chosen.choice(faults)
        queries = [Query(spark, more) for more in range(chosen.choice([1, 1, 2]))]
        time.sleep(chosen.random() * 1.5)
        act(spark, fault, chosen, queries)
        gave_rows = [query.end() for query in queries]
        for query, is_right in zip(queries, gave_rows, strict=True):
            assert is_right or fault == "cancel", query.error
        ended.setdefault(fault, []).append(all(gave_rows))
        assert Query(spark, 1).end(), f"after {fault}"
    return ended


def test_queries_give_right_rows_or_an_error_and_leave_nothing(spark):
    ended = endure(spark, FAULTS)
    assert all(ended["nothing"])
    assert threading.active_count() < 50
    before = {each.pid: each.num_fds() for each in executors(spark)}
    memory = sum(each.memory_info().rss for each in models(spark))
    for _ in range(10):
        assert Query(spark, 1).end()
    assert all(each.num_fds() <= before.get(each.pid, 10**6) + 20 for each in executors(spark))
    assert sum(each.memory_info().rss for each in models(spark)) < memory * 1.5 + (100 << 20)
    old = models(spark)
    for executor in executors(spark):
        executor.kill()
    psutil.wait_procs(old, 30)
    assert not any(process.is_running() for process in old)
    assert Query(spark, 2).end()
