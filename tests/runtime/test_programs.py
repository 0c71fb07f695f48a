"""What can be run: functions of all kinds, scripts; what is refused at the call; the dry run."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading

import numpy as np
import pytest

from gridflow import (
    LocalLauncher,
    SparkLauncher,
    TensorflowDistributor,
    errors,
)

NOTEBOOK = """
import functools

from gridflow import LocalLauncher, TensorflowDistributor

offset = 40

@functools.cache
def helper(number):
    return helper(number - 1) + 1 if number else offset

class Answer:
    def __init__(self, value):
        self.value = value

def train(ctx, number):
    return Answer(helper(number) * ctx.num_workers)

result = TensorflowDistributor(2, "none", launcher=LocalLauncher(), progress=False).run(train, 2)
print("answer:", result.value.value)
"""


@pytest.mark.slow
def test_functions_and_classes_of_a_notebook_are_sent_with_what_they_use(tmp_path):
    """A cell's code lives in ``__main__``, in no file."""
    done = subprocess.run(
        [sys.executable, "-"],
        input=NOTEBOOK,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "answer: 84" in done.stdout, done.stderr


@pytest.mark.slow
def test_modules_beside_the_users_script_are_sent_along(tmp_path):
    (tmp_path / "layers.py").write_text("def double(number):\n    return 2 * number\n")
    script = tmp_path / "job.py"
    script.write_text(
        "from layers import double\n"
        "from gridflow import LocalLauncher, TensorflowDistributor\n"
        "def train():\n"
        "    return double(21)\n"
        "run = TensorflowDistributor(launcher=LocalLauncher(), progress=False).run\n"
        "print('answer:', run(train).value)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd="/", capture_output=True, text=True, check=False
    )
    assert "answer: 42" in done.stdout, done.stderr


def test_a_script_runs_as_if_called_with_its_command_line(distribute, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import argparse\n"
        "from gridflow import current_context\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--rate', type=float)\n"
        "def main():\n"
        "    print('rate', parser.parse_args().rate, 'rank', current_context().rank, __name__)\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    result = distribute().run(script, "--rate", 0.5)
    assert [result.logs(rank).strip() for rank in (0, 1)] == [
        f"rate 0.5 rank {rank} __main__" for rank in (0, 1)
    ]
    assert result.value is None


def test_a_script_that_fails_shows_its_own_lines(distribute, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("def main():\n    raise ValueError('of the script')\nmain()\n")
    with pytest.raises(errors.TrainingFailed) as caught:
        distribute(1).run(script)
    assert "ValueError: of the script" in caught.value.first.summary
    assert "line 2, in main" in caught.value.first.traceback


def test_the_context_is_passed_by_name_of_the_first_parameter_only(distribute):
    def with_context(ctx, a, *, b):
        return [ctx.rank, a, b]

    def without(a, ctx):
        return [a, ctx]

    assert distribute(1).run(with_context, 1, b=2).value == [0, 1, 2]
    assert distribute(1).run(without, 1, 2).value == [1, 2]


local = TensorflowDistributor(2, "none", launcher=LocalLauncher(), logs="none", progress=False)


def test_an_unpicklable_function_is_refused_at_the_call_with_the_culprit():
    lock = threading.Lock()

    def train():
        with lock:
            return 1

    with pytest.raises(errors.UnpicklableFunction, match="captured variable 'lock'"):
        local.run(train)
    with pytest.raises(errors.UnpicklableFunction, match="argument 1"):
        local.run(print, threading.Lock())


def test_arguments_that_dont_fit_the_function_are_refused_at_the_call(tmp_path):
    def train(ctx, rate):
        return rate

    with pytest.raises(errors.InvalidArgument, match=r"don't match train\(ctx, rate\).*'rate'"):
        local.run(train)
    with pytest.raises(errors.InvalidArgument, match="a function or the path of a script; got int"):
        local.run(3)
    with pytest.raises(errors.InvalidArgument, match="no script"):
        local.run(tmp_path / "none.py")
    broken = tmp_path / "broken.py"
    broken.write_text("def main(:\n")
    with pytest.raises(errors.InvalidArgument, match="valid Python script"):
        local.run(broken)
    with pytest.raises(errors.InvalidArgument, match="no keyword arguments, .* got rate"):
        local.run(broken, rate=1)


def test_a_function_that_runs_nothing_when_called_is_refused_at_the_call():
    async def waits(ctx):
        return ctx

    def yields(ctx):
        yield ctx

    class Waits:
        __call__ = waits

    for function in (waits, functools.partial(waits, 1), Waits()):
        with pytest.raises(errors.InvalidArgument, match=r"an async function .*asyncio\.run"):
            local.run(function)
    with pytest.raises(errors.InvalidArgument, match="a generator function"):
        local.run(yields)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_workers": 0}, "num_workers must be a whole number of at least 1; got 0"),
        ({"num_workers": 1.5}, "got 1.5"),
        ({"num_workers": 10**12}, "num_workers must be a whole number up to 10,000; got"),
        ({"strategy": "mirored"}, "Did you mean 'mirrored'"),
        ({"num_workers": 2, "strategy": "mirrored"}, "'multi_worker_mirrored'"),
        ({"max_restarts": -1}, "max_restarts must be a whole number of at least 0; got -1"),
        ({"start_timeout": 0}, "start_timeout must be a number of seconds greater than 0; got 0"),
        ({"deadlines": 10}, "deadlines= must be a Deadlines(…); got 10"),
        ({"tensorboard": "yes"}, "tensorboard= must be True, False or a TensorBoard"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a whole number of at least 1"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"logs": "some"}, "logs must be one of 'all', 'chief', 'none'"),
        ({"env": {"A": 1}}, "env= must map names to values"),
        ({"nulls": "fill"}, "nulls"),
    ],
)
def test_options_are_checked_when_given(options, said):
    with pytest.raises(errors.InvalidArgument) as caught:
        TensorflowDistributor(**options)
    assert said in str(caught.value)


def test_a_plan_tells_what_a_run_would_do_and_starts_nothing(spark):
    data = {"train": spark.range(10).selectExpr("float(id) AS x"), "test": spark.range(2)}
    plan = TensorflowDistributor(2, launcher=SparkLauncher(spark)).plan(print, data=data)
    assert [str(task) for task in plan.tasks] == ["worker:0", "worker:1"]
    assert (plan.strategy, plan.slots) == ("multi_worker_mirrored", 2)
    assert plan.datasets == ("train", "test")
    assert "barrier" in str(plan)
    assert spark.sparkContext.statusTracker().getActiveStageIds() == []
    with pytest.raises(errors.SchemaError, match="no rows"):
        TensorflowDistributor(4, "none", launcher=LocalLauncher()).plan(print, data=np.ones(0))
    for launcher, rows in ((SparkLauncher(spark), data), (LocalLauncher(), np.ones(3))):
        typo = TensorflowDistributor(1, launcher=launcher, nulls={"X": 0})
        with pytest.raises(errors.InvalidArgument, match="not a column of the.*Did you mean 'x'"):
            typo.plan(print, data=rows)


def test_without_a_session_the_call_says_how_to_get_one():
    code = (
        "from gridflow import TensorflowDistributor\n"
        "try:\n"
        "    TensorflowDistributor().run(print)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "InvalidArgument there is no active SparkSession" in done.stdout
    assert "LocalLauncher()" in done.stdout


def test_importing_gridflow_brings_neither_tensorflow_nor_spark_nor_numpy():
    code = (
        "import sys, gridflow\n"
        "gridflow.TensorflowDistributor, gridflow.errors\n"
        "print([m for m in ('tensorflow', 'keras', 'pyspark', 'numpy', 'pyarrow')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
