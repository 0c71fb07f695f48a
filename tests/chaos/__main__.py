"""Runs real jobs, and lets something go wrong in each: what, when and to whom is drawn from a seed.

    python -m chaos                       200 runs, and a table
    python -m chaos --runs 10 --first 40
    python -m chaos --kinds pulled replaced

A run is right if the job ends in time with a model that has made every step, and a ledger that
balances, or with an error of gridflow's that names a task; and if nothing is left of it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import random
import resource
import sys
import tempfile
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from gridflow import GridflowError, LocalLauncher, Restarts, Role, TensorflowDistributor

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, BATCH, EPOCHS = 400, 10, 3
#: No run may take longer: the deadlines of all of its restarts.
LONGEST = 420.0
#: How long processes may take to go after their job's end.
GONE = 20.0
TRAINING, AGENT = "gridflow._training.main", "gridflow._agent"
FAULTS = ("none", "kill", "kill", "kill twice", "stop", "starve", "kill an agent", "no disk")


def build(keras: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu")])
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def train(ctx: Any) -> Any:
    """Train slowly, so that there is time for something to go wrong."""
    import time

    import keras

    with ctx.strategy.scope():
        model = build(keras)
    slow = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.05))
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y", shuffle=True)
    model.fit(rows, epochs=EPOCHS, verbose=0, callbacks=[*ctx.callbacks(), slow])
    return int(model.optimizer.iterations.numpy())


def train_on_servers(ctx: Any) -> Any:
    import keras

    with ctx.strategy.scope():
        model = build(keras)
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y")
    ctx.fit(model, rows, epochs=EPOCHS * 4, callbacks=ctx.callbacks())
    return int(model.optimizer.iterations.numpy())


def data() -> dict[str, dict[str, np.ndarray]]:
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    return {"train": {"x": x, "y": x[:, 0] ** 2}}


OPTIONS = {"logs": "none", "progress": False, "start_timeout": 90, "seed": 1}


def pulled(workers: int, **options: Any) -> TensorflowDistributor:
    return TensorflowDistributor(
        workers,
        "multi_worker_mirrored",
        launcher=LocalLauncher(),
        checkpoint_every=5,
        **{"max_restarts": 2, **OPTIONS, **options},
    )


def on_servers(workers: int, **options: Any) -> TensorflowDistributor:
    return TensorflowDistributor(
        roles=[Role("ps", 1), Role("worker", workers)],
        launcher=LocalLauncher(),
        checkpoint_every=10,
        max_restarts=2,
        **OPTIONS,
        **options,
    )


#: How to make the job of a kind, its function, and the steps that it makes with so many workers.
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[int], int]]] = {
    "pulled": (pulled, train, lambda n: EPOCHS * -(-ROWS // (n * BATCH))),
    "replaced": (
        functools.partial(pulled, restarts=Restarts(max_replacements=3)),
        train,
        lambda n: EPOCHS * -(-ROWS // (n * BATCH)),
    ),
    "parameter servers": (on_servers, train_on_servers, lambda n: 0),
}


def processes(name: str) -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            # A process that was forked has its command line as one word.
            if name in " ".join(each.cmdline()) and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return sorted(found, key=lambda each: each.pid)


def strike(fault: str, rng: random.Random) -> None:
    """Let something go wrong in a process of the job that runs."""
    name = f"{AGENT}.main" if fault == "kill an agent" else TRAINING
    there = processes(name)
    if not there:
        return
    with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
        victim = rng.choice(there)
        match fault:
            case "kill" | "kill an agent":
                victim.kill()
            case "kill twice":
                victim.kill()
                time.sleep(rng.uniform(0, 6))
                again = processes(TRAINING)
                if again:
                    rng.choice(again).kill()
            case "stop":
                victim.suspend()
            case "starve":
                for _ in range(20):
                    victim.suspend()
                    time.sleep(0.3)
                    victim.resume()
                    time.sleep(0.05)
            case "no disk":
                _, hard = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (512, hard))


def run(seed: int, kinds: list[str]) -> tuple[str, str, str]:
    """Run a job; return its kind, what went wrong, and how it ended."""
    rng = random.Random(seed)
    kind, fault = rng.choice(kinds), rng.choice(FAULTS)
    workers = rng.choice((2, 3))
    make, function, steps_of = KINDS[kind]
    ended = threading.Event()

    def later() -> None:
        give_up = time.monotonic() + 60
        while not processes(TRAINING) and time.monotonic() < give_up:
            time.sleep(0.1)
        if not ended.wait(rng.uniform(1, 14)):
            strike(fault, rng)

    striker = threading.Thread(target=later)
    with tempfile.TemporaryDirectory() as folder:
        handle = make(workers, job_dir=folder).start(function, data=data())
        striker.start()
        try:
            result = handle.result(timeout=LONGEST)
            wrong = result.ledger.check()
            steps, wanted = result.value, steps_of(workers)
            if wrong:
                end = f"WRONG: {wrong[0]}"
            elif wanted and steps != wanted:
                end = f"WRONG: {steps} steps instead of {wanted}"
            else:
                again = len(result.attempts) - 1
                end = "right" + (f", after {again} restarts" if again else "")
        except TimeoutError:
            end = f"WRONG: not over after {LONGEST:.0f} s"
            handle.cancel()
        except GridflowError as error:
            named = getattr(error, "failures", ())
            end = f"{type(error).__name__} of a task" if named else f"WRONG: {error!r}"
        except BaseException:
            end = f"WRONG: {traceback.format_exc()}"
        ended.set()
        striker.join()
    give_up = time.monotonic() + GONE
    while (left := processes(TRAINING) + processes(f"{AGENT}.main")) and time.monotonic() < give_up:
        time.sleep(0.2)
    if left:
        end = f"WRONG: {len(left)} processes are left, {end}"
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
    return kind, fault, end


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    given = parser.parse_args()
    table: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    wrong = 0
    for seed in range(given.first, given.first + given.runs):
        began = time.monotonic()
        kind, fault, end = run(seed, given.kinds)
        wrong += end.startswith("WRONG")
        table[kind, fault][end.partition(":")[0]] += 1
        print(f"{seed:4d}  {kind}, {fault}: {end} ({time.monotonic() - began:.0f} s)", flush=True)
    print("\n| job | what went wrong | how it ended |\n|---|---|---|")
    for (kind, fault), ends in sorted(table.items()):
        shown = ", ".join(f"{count} x {end}" for end, count in ends.most_common())
        print(f"| {kind} | {fault} | {shown} |")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
