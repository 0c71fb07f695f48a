"""What the functions of all ranks returned, in the driver."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow import LocalLauncher, Role, TensorflowDistributor, errors
from gridflow._result import RankValues

pytestmark = pytest.mark.slow


def job(num_workers, strategy, **options):
    """Make a silent job of plain processes."""
    quiet = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    return TensorflowDistributor(num_workers, strategy, **quiet, **options)


def test_each_ranks_value_comes_back_typed(distribute):
    def train(ctx):
        import numpy as np

        return {"rank": ctx.rank, "rows": np.arange(ctx.rank + 1), "nan": (None, b"x")}

    values = distribute().run(train).values
    assert [value["rank"] for value in values] == [0, 1]
    assert values[1]["rows"].tolist() == [0, 1]
    assert values[-1]["nan"] == (None, b"x")
    with pytest.raises(IndexError, match="ranks 0 to 1; got 2"):
        values[2]


def test_independent_models_come_back_one_for_each_rank():
    def train(ctx):
        import numpy as np

        import keras

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        model.set_weights([np.full((2, 1), ctx.rank + 1.0)])
        return model

    result = job(2, "none").run(train)
    assert result.values[0] is result.model
    found = [float(model.load()(np.ones((1, 2)))[0, 0]) for model in result.values]
    assert found == [2, 4]


def test_a_model_of_the_group_is_the_chiefs_and_one_of_a_ranks_own_is_its_own():
    def train(ctx):
        import numpy as np

        import keras

        with ctx.strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(ctx.dataset(batch_size=2, features=[["x"]], label="y"), verbose=0)
        own = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        own.set_weights([np.full((1, 1), 7.0)])
        return own if ctx.rank == 2 else model

    values = job(3, None).run(train, data={"train": {"x": np.ones(9), "y": np.ones(9)}}).values
    assert values[1] is values[0]
    assert values[2].load().get_weights()[0].tolist() == [[7]]


def test_a_model_of_the_group_that_the_chief_did_not_return_is_an_error_that_says_so(tmp_path):
    chief = {"kind": "none", "files": []}
    other = {"kind": "shared", "files": [], "class": "Sequential", "inputs": {}, "outputs": {}}
    values = RankValues([chief, other], tmp_path)
    assert values[0] is None
    with pytest.raises(errors.GridflowError, match="rank 1 returned a model .*on all ranks"):
        values[1]
    # Keras counts names up in each process.
    chief = {**other, "kind": "keras", "files": ["model.keras"], "inputs": {"x": [None, 1]}}
    values = RankValues([chief, {**other, "inputs": {"x_1": [None, 1]}}], tmp_path)
    assert values[1] is values[0]


def test_a_value_over_the_limit_is_named_when_asked_for_and_fails_no_job():
    def train(ctx):
        import threading

        import numpy as np

        return [ctx.rank, np.ones((257 << 20) - 1000, "int8"), threading.Lock()][ctx.rank]

    result = job(3, "none").run(train)
    assert result.value == 0
    with pytest.raises(
        errors.GridflowError,
        match=r"rank 1 .*ndarray too large: 257\.0 MiB.* at most 256 MiB.*return the path",
    ):
        result.values[1]
    with pytest.raises(errors.GridflowError, match="rank 2 .*can't be pickled"):
        result.values[2]
    assert not list((result.job_dir / "values").rglob("*.pickle"))


def test_ranks_that_run_no_function_have_none_and_servers_have_no_place():
    def train(ctx):
        return str(ctx.task)

    roles = [Role("ps", 1), Role("worker", 1)]
    assert job(None, "parameter_server", roles=roles).run(train).values == ["chief:0", None]
