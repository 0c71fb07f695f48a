"""What holds a training back is named, and nothing is where all is as it should be."""

from __future__ import annotations

import re

import pytest

from gridflow._coordinator.bottleneck import find

NOTHING = {
    **dict.fromkeys(("rows", "ranks", "callbacks", "batch_callbacks", "checkpoints"), 0.0),
    "validation": 0.0,
    "source": 0.0,
    "coming": 0.0,
    "arriving": 0.0,
    "rows_a_step": 32.0,
    "total": 20.0,
    "steps": 1000.0,
}


def of(**seconds):
    return {**NOTHING, **seconds}


@pytest.mark.parametrize(
    ("chief", "other", "cause", "task", "words"),
    [
        (of(rows=8.0, source=9.0), of(ranks=7.0), "rows", 0, "rows 40% .* it 35%: reading them"),
        (of(rows=8.0, source=1.0), of(ranks=7.0), "rows", 0, "what the program does with them"),
        (of(ranks=9.0), of(callbacks=9.0, batch_callbacks=9.0), "callbacks", 1, "those of each"),
        (of(ranks=9.0), of(callbacks=9.0), "callbacks", 1, "those at the ends of epochs"),
        (of(checkpoints=4.0), of(ranks=4.0), "checkpoints", 0, "checkpoints 20% .*_every="),
        (of(validation=4.0), of(validation=4.0), "validation", 0, "validates 20% of the time: a"),
        (of(ranks=15.0), of(), "slow", 1, "worker:0 waits for it 75%: its steps take 4.0 times"),
        (of(ranks=5.0), of(ranks=4.9), "computing", 1, "computes 76% of the time$"),
        (of(arriving=60.0), of(arriving=60.0), "arriving", 0, "waited 60 s .* for 20 s: more exec"),
        (
            of(arriving=60.0, inflow=50.0, upstream=49.0, inflow_bytes=1e9),
            of(arriving=60.0),
            "arriving",
            0,
            r"computing them took 98% of the time in which they came, at 20.0 MB/s; more executors",
        ),
        (
            of(arriving=60.0, inflow=50.0, upstream=5.0, inflow_bytes=1e9),
            of(arriving=60.0),
            "arriving",
            0,
            r"storing them took 90% of the time .*, at 20.0 MB/s; a faster disk",
        ),
        (of(rows=8.0, source=8.0, coming=7.0), of(), "rows", 0, "still to come; more executors"),
        (of(steps=9000.0), of(), "fixed", 0, "a step of 32 rows takes 2.2 ms"),
        (of(rows_a_step=2.0), of(), "fixed", 0, "a step of 2 rows takes 20.0 ms"),
        (of(rows=4.0, steps=9000.0, rows_a_step=0.0), of(), "fixed", 0, "a step takes 2.2 ms"),
        (of(), of(), "computing", 0, "computes 100% of the time$"),
    ],
)
def test_the_cause_is_named_at_the_task_that_others_wait_for(chief, other, cause, task, words):
    found = find({"worker:0": chief, "worker:1": other})
    assert (found.cause, found.task) == (cause, f"worker:{task}")
    assert re.search(words, found.sentence)


def test_many_that_wait_are_counted():
    found = find({"worker:0": of(rows=9.0), "worker:1": of(ranks=8.0), "worker:2": of(ranks=9.0)})
    assert "and 2 others wait for it 45%" in found.sentence


def test_it_is_too_early_before_ten_steps():
    assert find({}) is None
    assert find({"worker:0": {}, "worker:1": of(steps=9.0)}) is None
    assert find({"worker:0": {}, "worker:1": of()}).task == "worker:1"
