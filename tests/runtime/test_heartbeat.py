"""An agent that is busy is no dead agent."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow.agent.life import Life
from gridflow.wire.child import Returned
from gridflow.wire.reports import Succeeded

pytestmark = pytest.mark.slow


class Reports:
    """Takes reports as a reporter does."""

    def __init__(self):
        self.kinds = []

    def report(self, report):
        self.kinds.append(report)

    def lines(self, lines):
        self.kinds.append(lines)


class LateUploads:
    """Uploads whose results come when they are asked for."""

    def __init__(self):
        self.waiting = []

    def file(self, path, header, done):
        self.waiting.append(done)

    def after(self, done):
        self.waiting.append(done)

    def catch_up(self):
        pass


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.timeout(120)
def test_a_large_checkpoint_on_its_way_looks_like_no_death(monkeypatch, tmp_path):
    """The download of a resume, and the wait for uploads, take longer than heartbeat_timeout."""

    def train(ctx):
        import keras

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((32, 4), "float32")
        model.fit(x, x.sum(axis=1), epochs=2, verbose=0, callbacks=ctx.callbacks())
        if ctx.generation == 0:
            time.sleep(1)
            raise RuntimeError("once")
        return ctx.generation

    # In the agents, which are processes of their own: each transfer of a checkpoint is slow.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'gridflow.agent.main' in ' '.join(sys.orig_argv):\n"
        "    import time\n"
        "    from gridflow.wire import client\n"
        "    download = client.CoordinatorClient.download\n"
        "    def slow(self, header, path):\n"
        "        time.sleep(5 if header['kind'] == 'checkpoint' else 0)\n"
        "        download(self, header, path)\n"
        "    client.CoordinatorClient.download = slow\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    distributor = TensorflowDistributor(
        1,
        launcher=LocalLauncher(),
        heartbeat_timeout=2,
        max_restarts=1,
        warm_seconds=0,  # an agent of its own, that reads the file above
        logs="none",
        progress=False,
    )
    result = distributor.run(train)
    assert result.value == 1
    assert [each.failure and each.failure.kind for each in result.attempts] == ["exception", None]


def test_what_fails_late_of_a_life_that_is_over_says_nothing_of_the_next():
    reports, uploads = Reports(), LateUploads()
    options = {"serves": False, "reporter": reports, "uploads": uploads, "frozen_after": 9.0}
    lives = [Life("worker:0", 0, 0, on_imported=list, on_other=print, **options) for _ in range(2)]
    result = {"kind": "pickle", "files": ["value"]}
    for life in lives:
        life._take(Returned(result, "/nowhere"))
    lives[0].end()
    failed, succeeds = uploads.waiting
    failed(OSError("the connection broke"))
    assert reports.kinds == []
    succeeds(None)
    assert reports.kinds == [Succeeded(0, result)]
