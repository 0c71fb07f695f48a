"""Tests that every launcher must pass; inherit them to test your own. Needs pytest.

Examples
--------
>>> from gridflow.testing.launchers import LauncherSuite
>>> class TestMyLauncher(LauncherSuite):  # pytest collects it
...     def launcher(self):
...         return MyLauncher()
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from gridflow._distributor import TensorflowDistributor
from gridflow._spec.option_groups import Deadlines
from gridflow.errors import JobCancelled, TaskLost, TrainingFailed

if TYPE_CHECKING:
    from gridflow._launch.base import Launcher

_SECONDS: Final = 120.0


class LauncherSuite:
    """Runs jobs with two tasks on a launcher, which must have room for both.

    Override `launcher`, and also `rows` if the target needs another kind of dataset.
    """

    def launcher(self) -> Launcher:
        """Return the launcher to test."""
        raise NotImplementedError

    def rows(self, count: int) -> Any:
        """Return a dataset with a column ``x`` that holds 0 to ``count - 1``."""
        import numpy as np

        return {"x": np.arange(count, dtype="float32")}

    def distributor(self, **options: Any) -> TensorflowDistributor:
        """Return a distributor for two tasks on the launcher."""
        options = {"logs": "none", "progress": False, **options}
        return TensorflowDistributor(2, "none", launcher=self.launcher(), **options)

    def test_each_task_knows_its_place(self) -> None:
        """Each task runs once, in its own process."""

        def place(ctx: Any) -> tuple[int, int, int]:
            return ctx.rank, ctx.num_workers, os.getpid()

        values = list(self.distributor().run(place).values)
        assert [value[:2] for value in values] == [(0, 2), (1, 2)]
        assert len({value[2] for value in values}) == 2

    def test_every_row_comes_to_one_task(self) -> None:
        """No row is lost or duplicated."""

        def total(ctx: Any) -> list[float]:
            batches = ctx.dataset("rows", features="x", batch_size=4)
            return [float(value) for batch in batches for value in batch]

        values = self.distributor().run(total, data={"rows": self.rows(20)}).values
        assert sorted(values[0] + values[1]) == list(range(20))

    def test_what_a_task_raises_is_the_jobs_error(self) -> None:
        """The error names the task that failed, and the other task is stopped."""

        def fails(ctx: Any) -> None:
            if ctx.rank == 1:
                raise ValueError("no such luck")
            time.sleep(_SECONDS)

        with pytest.raises(TrainingFailed, match=r"(?s)worker:1.*no such luck"):
            self.distributor().run(fails)

    def test_an_agent_that_dies_is_lost(self) -> None:
        """A killed agent counts as a lost task, and the job restarts if it may."""

        def dies(ctx: Any) -> int:
            if ctx.generation == 0 and ctx.rank == 0:
                os.kill(int(os.environ["GRIDFLOW_AGENT_PID"]), signal.SIGKILL)
                time.sleep(_SECONDS)
            return int(ctx.generation)

        with pytest.raises(TaskLost, match="worker:0"):
            self.distributor(deadlines=Deadlines(heartbeat=5)).run(dies)
        result = self.distributor(deadlines=Deadlines(heartbeat=5), max_restarts=1).run(dies)
        assert list(result.values) == [1, 1]

    def test_a_job_that_is_cancelled_ends(self, tmp_path: Path) -> None:
        """`cancel` stops the running tasks."""

        def waits(ctx: Any, folder: str) -> None:
            Path(folder, f"here-{ctx.rank}").touch()
            time.sleep(_SECONDS)

        handle = self.distributor().start(waits, str(tmp_path))
        give_up = time.monotonic() + _SECONDS
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < give_up, f"the tasks did not start: {handle.report}"
            time.sleep(0.05)
        handle.cancel()
        with pytest.raises(JobCancelled):
            handle.result(timeout=_SECONDS)
        assert handle.state == "cancelled"
