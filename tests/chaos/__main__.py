"""Runs real jobs, and lets something go wrong in each: what, when and to whom is drawn from a seed.

    python -m chaos                       200 runs, and a table
    python -m chaos --runs 10 --first 40
    python -m chaos --kinds pulled replaced

A run is right if the job ends in time with a model that has made every step, and a ledger that
balances, or with an error of gridflow's that names a task; and if nothing is left of it. Where
workers come and go, weights must be those of one process that trains on the same rows.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback

import psutil

from chaos import faults, jobs

#: No run may take longer: the deadlines of all of its restarts.
LONGEST = 420.0
#: How long processes may take to go after their job's end.
GONE = 20.0


def run(seed: int, kinds: list[str]) -> tuple[str, str, str]:
    """Run a job; return its kind, what went wrong, and how it ended."""
    rng = random.Random(seed)
    kind = rng.choice(kinds)
    fault = rng.choice(faults.of(kind))
    return kind, fault, end_of(kind, fault, rng)


def end_of(kind: str, fault: str, rng: random.Random) -> str:
    """Run a job to which something happens; return how it ended, "WRONG: …" if it isn't right."""
    workers, ended = rng.choice((2, 3)), threading.Event()

    def later() -> None:
        give_up = time.monotonic() + 60
        while not faults.processes(faults.TRAINING) and time.monotonic() < give_up:
            time.sleep(0.1)
        if not ended.wait(rng.uniform(0.5, 8)):
            faults.strike(fault, rng, job)

    with tempfile.TemporaryDirectory() as folder:
        job = jobs.KINDS[kind](folder, workers)
        striker = threading.Thread(target=later)
        striker.start()
        try:
            end = job.end(LONGEST)
        except TimeoutError:
            end = f"WRONG: not over after {LONGEST:.0f} s"
            job.cancel()
        except KeyboardInterrupt:
            job.cancel()
            raise
        except BaseException:
            end = f"WRONG: {traceback.format_exc()}"
        finally:
            ended.set()
            striker.join()
        return _nothing_left(end)


def _nothing_left(end: str) -> str:
    """Return how a job ended, which is wrong if processes of it are left."""
    give_up = time.monotonic() + GONE
    while left := faults.processes(faults.TRAINING) + faults.processes(faults.AGENT):
        if time.monotonic() > give_up:
            break
        time.sleep(0.2)
    for each in left:
        with contextlib.suppress(psutil.Error):
            each.kill()
    return f"WRONG: {len(left)} processes are left, {end}" if left else end


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    known = list(jobs.KINDS)
    parser.add_argument("--kinds", nargs="+", choices=known, default=known)
    given = parser.parse_args()
    os.environ[faults.MARK] = str(os.getpid())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("py4j").setLevel(logging.ERROR)  # it tells of each thread's connection
    table: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    wrong = 0
    try:
        for seed in range(given.first, given.first + given.runs):
            began = time.monotonic()
            kind, fault, end = run(seed, given.kinds)
            wrong += end.startswith("WRONG")
            table[kind, fault][end.partition(":")[0]] += 1
            print(
                f"{seed:4d}  {kind}, {fault}: {end} ({time.monotonic() - began:.0f} s)", flush=True
            )
    finally:
        jobs.close()
    print("\n| job | what went wrong | how it ended |\n|---|---|---|")
    for (kind, fault), ends in sorted(table.items()):
        shown = ", ".join(f"{count} x {end}" for end, count in ends.most_common())
        print(f"| {kind} | {fault} | {shown} |")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
