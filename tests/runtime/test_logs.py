"""Every line of every task, in order, live and in files."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios

import pytest

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow._agent.process import silencer
from gridflow.errors import TrainingFailed
from suite.waiting import patience, wait_for


def chatter(ctx, lines):
    """Print a lot, in every way there is."""
    import os
    import sys

    for number in range(lines):
        print(f"line {number}")
    sys.stderr.write("to stderr\n")
    sys.stdout.flush()
    os.write(1, b"past Python's buffers\n")
    os.write(1, b"bytes \xff\xfe that are no text\n")
    sys.stdout.write("the last one has no end of line")


def test_nothing_is_lost_cut_or_out_of_order(distribute):
    result = distribute().run(chatter, 30_000)
    for rank in (0, 1):
        lines = result.logs(rank).splitlines()
        numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
        assert numbers == list(range(30_000))
        assert "to stderr" in lines
        assert "past Python's buffers" in lines
        assert r"bytes \xff\xfe that are no text" in lines
        assert lines[-1] == "the last one has no end of line"


def test_lines_are_shown_live_with_role_and_index(distribute, capsys):
    distribute(logs="all").run(chatter, 3)
    shown = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        mine = [line for line in shown if line.startswith(f"[worker:{rank}] line ")]
        assert mine == [f"[worker:{rank}] line {number}" for number in range(3)]


OUT_OF_NOTHING = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795349661.766612   18460 port.cc:153] oneDNN custom operations are on. You may see
2026-11-22 12:21:01.1: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary \
is optimized to use available CPU instructions in performance-critical operations.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the \
appropriate compiler flags.
E0000 00:00:1795349661.766612   18460 cuda_platform.cc:51] failed call to cuInit: INTERNAL: CUDA \
error: Failed call to cuInit: UNKNOWN ERROR (303)
""".splitlines()
MEANT = [
    "E0000 00:00:1795349661.766612   18460 rpc.cc:1] UNAVAILABLE: failed call to cuInit: no, of ps",
    "W0000 00:00:1795349661.766612   18460 cuda_executor.cc:1] out of memory",
    "failed call to cuInit: printed by a user",
]


def test_only_lines_of_tensorflow_that_mean_nothing_are_left_out():
    lines = [*OUT_OF_NOTHING, *MEANT]
    assert silencer({"CUDA_VISIBLE_DEVICES": "-1"})(lines) == MEANT
    # With a GPU the driver's error is one; and who asks for all that there is gets it.
    assert silencer({"CUDA_VISIBLE_DEVICES": "0"})(lines) == [OUT_OF_NOTHING[-1], *MEANT]
    assert silencer({"TF_CPP_MIN_LOG_LEVEL": "0"})(lines) == lines
    by_jax = {"TF_CPP_MIN_LOG_LEVEL": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    assert silencer(by_jax)(lines) == MEANT


@pytest.mark.slow
def test_a_task_that_uses_tensorflow_prints_what_its_function_prints_and_nothing_else():
    def train(words):
        import os

        import tensorflow as tf

        assert float(tf.reduce_sum(tf.ones(3))) == 3
        os.write(2, f"{words}\n".encode())
        return [device.name for device in tf.config.list_logical_devices()]

    # TensorFlow's own level, not the tests'.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    options = {"launcher": LocalLauncher(), "logs": "none", "progress": False, "env": environment}
    for strategy in ("none", "multi_worker_mirrored"):
        result = TensorflowDistributor(1, strategy, **options).run(train, MEANT[0])
        assert result.value == ["/device:CPU:0"]
        lines = result.logs(0).splitlines()
        assert [line for line in lines if not line.startswith("gridflow:")] == [MEANT[0]]


ON_A_TERMINAL = """
import time
from pyspark.sql import SparkSession
from gridflow import TensorflowDistributor
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
def slow(batches):
    import time
    time.sleep(2)
    yield from batches
def count():
    return spark.range(1).mapInPandas(slow, "id long").count()
def train(ctx):
    import time
    time.sleep(2)
TensorflowDistributor(1, "none", launcher=None).run(train)
print("trained", flush=True)
count()
spark.stop()
"""


@pytest.mark.slow
def test_spark_draws_its_bar_of_stages_not_over_a_training_but_again_after_it():
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 100))
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen([sys.executable, "-c", ON_A_TERMINAL], **streams)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # what a terminal says when its last user has gone
        while data := os.read(ours, 1 << 16):
            seen += data
    os.close(ours)
    assert process.wait() == 0, seen.decode()
    before, _, after = seen.decode().partition("trained")
    assert "[Stage" not in before
    assert "[Stage" in after


def test_the_chief_alone_is_shown_on_request(distribute, capsys):
    distribute(logs="chief").run(chatter, 1)
    shown = capsys.readouterr().out
    assert "[worker:0]" in shown
    assert "[worker:1]" not in shown


def test_lines_arrive_while_the_task_still_runs(distribute, capsys, tmp_path):
    flag = tmp_path / "seen"

    def train(ctx):
        print("waiting for you", flush=True)
        return wait_for(flag.exists, "the driver, which sees this line")

    import sys

    written = []
    real = sys.stdout

    class Watcher:
        def write(self, text):
            written.append(text)
            if "waiting for you" in text:
                flag.touch()
            return real.write(text)

        def flush(self):
            real.flush()

        def isatty(self):
            return False

    sys.stdout = Watcher()
    try:
        assert distribute(logs="all").run(train).value
    finally:
        sys.stdout = real
    assert any("waiting for you" in text for text in written)


def test_epochs_are_shown_with_their_results_and_steps_move_a_bar(launcher, capsys):
    import numpy as np

    from gridflow import TensorflowDistributor

    def train(ctx):
        import keras

        with ctx.strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")

        class Own(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                logs["own"] = float(epoch + 1)

        x = np.ones((16, 2), "float32")
        callbacks = [*ctx.callbacks(), Own()]
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
        return model

    distributor = TensorflowDistributor(1, launcher=launcher, logs="none")
    result = distributor.run(train)
    shown = capsys.readouterr().out
    assert re.search(r"\[gridflow\] epoch 1: .*loss [\d.e-]+", shown)
    assert re.search(r"\[gridflow\] epoch 2: ", shown)
    assert re.search(r"\[gridflow\] epoch 2: own 2$", shown, re.MULTILINE)
    assert len(result.history["loss"]) == 2
    assert result.history["own"] == [1, 2]
    assert list(result.tensorboard_dir.rglob("events.out.tfevents.*"))
    assert result.model.path.exists()


NOBODY_READS = """
import sys
from pathlib import Path
from gridflow import Deadlines, LocalLauncher, TensorflowDistributor
def train(ctx):
    import time
    for number in range(20_000):
        print(f"line {number} ".ljust(100, "x"), flush=True)
    time.sleep(4)
    return 42
deadlines = Deadlines(heartbeat=1.5)
distributor = TensorflowDistributor(1, "none", launcher=LocalLauncher(), deadlines=deadlines)
result = distributor.run(train)
Path(sys.argv[1]).write_text(f"{result.value} {len(result.logs(0).splitlines())}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_driver_whose_output_nobody_reads_ends_its_job_well(tmp_path, kind):
    ours, theirs = os.pipe() if kind == "pipe" else pty.openpty()
    streams = {"stdin": subprocess.DEVNULL, "stdout": theirs, "stderr": subprocess.STDOUT}
    command = [sys.executable, "-c", NOBODY_READS, str(tmp_path / "said")]
    driver = subprocess.Popen(command, **streams)
    os.close(theirs)
    try:
        # Not a word is read: neither the job nor the interpreter's end waits for it.
        code = driver.wait(patience())
    finally:
        driver.kill()
        driver.wait()
        os.close(ours)
    assert code == 0
    assert (tmp_path / "said").read_text() == "42 20000"


def shout(ctx, lines, length):
    """Print long lines, then one without an end; return by how much the agent has grown."""
    import os
    from pathlib import Path

    from gridflow._wire.channel import AGENT_VARIABLE

    def memory(name):
        status = Path(f"/proc/{os.environ[AGENT_VARIABLE]}/status").read_text()
        return next(int(row.split()[1]) for row in status.splitlines() if row.startswith(name))

    before = memory("VmRSS")
    for number in range(lines):
        os.write(1, f"{number} ".encode().ljust(length, b"x") + b"\n")
    for _ in range(lines):
        os.write(1, b"y" * length)
    return memory("VmHWM") - before


@pytest.mark.slow
def test_lines_however_long_take_little_memory_in_an_agent_and_none_is_lost():
    options = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    result = TensorflowDistributor(1, "none", **options).run(shout, 100, 1 << 20)
    assert result.value < 120_000  # kB, for 200 MiB
    # Where a busy machine has no fork server in time, the agent says so.
    lines = [line for line in result.logs(0).splitlines() if not line.startswith("gridflow: ")]
    assert [int(line.split()[0]) for line in lines[:100]] == list(range(100))
    assert all(len(line) == 1 << 20 for line in lines[:100])
    assert "".join(lines[100:]) == "y" * (100 << 20)


@pytest.mark.slow
def test_a_failure_shows_the_ends_of_long_lines_and_of_a_long_message():
    def fail(ctx):
        print("x" * 10_000_000 + " the end")
        raise ValueError("begins " + "z" * 10_000_000)

    options = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    with pytest.raises(TrainingFailed, match="ValueError: begins z+") as caught:
        TensorflowDistributor(1, "none", **options).run(fail)
    assert len(str(caught.value)) < 500_000
    assert any(line.endswith(" the end") for line in caught.value.failures[0].log_tail)


@pytest.mark.slow
def test_an_error_of_a_task_holds_nothing_that_a_terminal_obeys():
    def fail(ctx):
        print("\x1b]0;title\x07\x9b2Jprinted")
        raise ValueError("\x1b[2J\x9b5Araised")

    options = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    with pytest.raises(TrainingFailed, match="raised") as caught:
        TensorflowDistributor(1, "none", **options).run(fail)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", str(caught.value))
    assert "printed" in str(caught.value)
