"""A job on YARN one of whose nodes an operator drains: it makes a checkpoint and moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from clients import executors_of, has_executors_alone

from suite.waiting import wait_for

_TESTS = Path(__file__).parents[1]
_STEPS = 18


def train_twice(spark, tests, folder):
    """Train without and with a drain; the job waits for it before a step."""
    import pathlib
    import sys

    import cloudpickle

    sys.path[:0] = [f"{tests}/runtime", tests]
    import dynamic_driver
    import test_resume

    for module in (dynamic_driver, test_resume, dynamic_driver.waiting):
        cloudpickle.register_pickle_by_value(module)
    folder, data = pathlib.Path(folder), {"train": dynamic_driver.frame(spark)}
    distributor = dynamic_driver.distributor_on(spark)
    alone = distributor(**test_resume.OPTIONS).run(test_resume.train, data=data)
    told = dynamic_driver.train_elsewhere(distributor, folder, data, lambda _: None)
    return [weights.tolist() for weights in alone.value], told


def test_a_job_leaves_a_node_that_is_drained_and_loses_at_most_one_step(notebook, yarn, tmp_path):
    notebook.begin(train_twice, str(_TESTS), str(tmp_path))
    wait_for(lambda: len(list(tmp_path.glob("here-*"))) == 2, "both ranks", seen=notebook.said)
    drained, left = sorted(
        ("node-0", "node-1"), key=lambda node: not has_executors_alone(yarn, node)
    )
    assert [len(executors_of(yarn, node)) for node in (drained, left)] == [1, 1]
    with yarn.drained(drained):
        alone, moved = notebook.answer()
        assert yarn.state(drained).startswith("DECOMMISSION")
        assert len(executors_of(yarn, left)) == 2
    (_, failure), (_, no_failure) = moved["attempts"]
    assert (moved["preemptions"], failure["kind"], no_failure) == (1, "preempted", None)
    assert "is being decommissioned" in failure["summary"]
    for rank in (0, 1):
        before, after = [
            [int(line) for line in (tmp_path / f"steps-{rank}-{life}").read_text().split()]
            for life in (0, 1)
        ]
        assert after[-1] == _STEPS - 1
        assert after[0] in {before[-1], before[-1] + 1}
        assert len(before) + len(after) <= _STEPS + 1
    for ours, theirs in zip(moved["weights"], alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert moved["ledger"] == []
