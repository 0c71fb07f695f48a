"""An option is a field of its group: the group is made once, and carried whole to who reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gridflow import LaunchOptions, LocalLauncher, TensorflowDistributor

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]

#: What somebody who adds options writes: a field for each, with its default.
NEW = """
from dataclasses import dataclass

from gridflow._spec.option_groups import Deadlines, Distribution, TrainingOptions


@dataclass(frozen=True, kw_only=True)
class NewDistribution(Distribution):
    gradient_accumulation: int = 1


@dataclass(frozen=True, kw_only=True)
class NewDeadlines(Deadlines):
    checkpoint: float = 60.0


@dataclass(frozen=True)
class NewTrainingOptions(TrainingOptions):
    mixed_precision: bool = False
"""


def look(ctx):
    """Return the options as the process has them, without a line of gridflow's that names them."""
    from gridflow._keras.runtime import current

    runtime = current()
    spec = runtime.spec
    return (
        runtime.training.distribution.gradient_accumulation,
        runtime.training.mixed_precision,
        spec.deadlines.checkpoint,
        spec.training is runtime.training,
        ctx.seed,
    )


def test_a_field_that_a_group_has_more_arrives_in_the_training_process(tmp_path, monkeypatch):
    (tmp_path / "new_options.py").write_text(NEW)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import new_options as new

    distributor = TensorflowDistributor(
        2,
        "none",
        launcher=LocalLauncher(),
        seed=3,
        deadlines=new.NewDeadlines(step=50, checkpoint=7),
        distribution=new.NewDistribution(gradient_accumulation=4),
        launch_options=LaunchOptions(warm_seconds=0),
        logs="none",
        progress=False,
    )
    spec = distributor.spec
    training = new.NewTrainingOptions(**vars(spec.training), mixed_precision=True)
    distributor.spec = replace(spec, training=training)
    assert list(distributor.run(look).values) == [(4, True, 7, True, 3)] * 2
