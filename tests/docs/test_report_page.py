"""A job's page in Chromium: light and dark, by keyboard, and as a screen reader has it."""

from __future__ import annotations

from pathlib import Path

import axe_playwright_python
import numpy as np
import pytest
from test_site import CONTRAST, SCHEMES, browser, opened, visit  # noqa: F401 (a fixture)

from gridflow import LocalLauncher, TensorflowDistributor, cli
from gridflow._coordinator.journal import Journal
from gridflow._coordinator.progress import TaskProgress
from gridflow._spec.place import Place
from suite.waiting import patience

pytestmark = pytest.mark.slow

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")


def trains(ctx):
    """Train, and fail once in the second epoch."""
    import keras

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            print(f"epoch {epoch} begins")
            if epoch == 1 and not ctx.generation:
                raise ValueError("<b>no</b>")

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    rows = ctx.dataset("rows", batch_size=16, features="x", label="y")
    model.fit(rows, epochs=3, verbose=0, callbacks=[*ctx.callbacks(tensorboard=False), Fails()])


@pytest.fixture(scope="module")
def page_of_a_job(tmp_path_factory):
    """Train with one restart; give the address of the job's page."""
    values = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")
    distributor = TensorflowDistributor(
        launcher=LocalLauncher(),
        job_dir=tmp_path_factory.mktemp("jobs"),
        max_restarts=1,
        logs="none",
        progress=False,
    )
    handle = distributor.start(trains, data={"rows": {"x": values, "y": values[:, 0]}})
    handle.result(timeout=patience())
    assert cli.main(["report", str(handle.job_dir)]) == 0
    return f"file://{handle.job_dir}/report.html"


def test_the_page_of_a_large_job_shows_every_rank(browser, tmp_path):  # noqa: F811
    journal = Journal(tmp_path)
    tasks = [f"worker:{rank}" for rank in range(64)]
    journal.put({"tasks": tasks, "strategy": "multi_worker_mirrored"})
    for rank in range(len(tasks)):
        at = TaskProgress(Place(0, 0, 9), 10, "train", {"loss": 1.0}, rows=32)
        journal.progress(rank, rank, at)
    journal.close()
    assert cli.main(["report", str(tmp_path)]) == 0
    with opened(browser, "wide", "light") as page:
        assert visit(page, f"file://{tmp_path}/report.html") == []
        rows = [page.get_by_role("rowheader", name=task, exact=True) for task in tasks]
        assert [row.count() for row in rows] == [1] * len(tasks)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("window", ["wide", "narrow"])
def test_a_jobs_page_is_for_everybody(browser, page_of_a_job, window, scheme):  # noqa: F811
    with opened(browser, window, scheme) as page:
        assert visit(page, page_of_a_job) == []
        assert page.evaluate(CONTRAST.read_text()) == []
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run()")
        assert [(each["id"], each["help"]) for each in found["violations"]] == []
        assert page.get_by_role("heading", level=1).inner_text().startswith("Job ")
        row = page.get_by_role("row", name="worker:0")
        assert row.get_by_role("img").get_attribute("aria-label").startswith("computing ")
        assert page.get_by_role("img", name="loss, from ").count() == 2  # by epoch and by time
        fails = page.get_by_role("row").filter(
            has_text="worker:0 fails, exception: the function raised ValueError: <b>no</b>"
        )
        assert fails.count() == 1
        logs = page.get_by_text("worker:0: the last")
        logs.focus()
        page.keyboard.press("Enter")
        assert page.get_by_text("epoch 2 begins").is_visible()
