"""Runs jobs in the simulated world, many at a time; a seed that fails is shrunk and told.

python -m simulation                  100,000 seeds, on all cores
python -m simulation --seeds 1000
python -m simulation --seed 4711      that one, as a story
python -m simulation --workers 4096   one job of that size
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import replace

from simulation.world import Plan, World, check, plan_of, simulate

#: Seeds that a process is given at a time.
_PIECE = 250


def problem_of(plan: Plan) -> str:
    """Return what is wrong with a plan's job; empty if nothing is."""
    try:
        simulate(plan)
    except AssertionError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def failing(seeds: range) -> list[int]:
    return [seed for seed in seeds if problem_of(plan_of(seed))]


def shrunk(plan: Plan) -> Plan:
    """Return the plan without the faults, steps and options that its failure doesn't need."""
    while True:
        smaller = [
            replace(plan, faults=(*plan.faults[:at], *plan.faults[at + 1 :]))
            for at in range(len(plan.faults))
        ]
        smaller += [
            replace(plan, **{name: value})
            for name, value in (
                ("restarts", 0),
                ("preemptions", 0),
                ("replacements", 0),
                ("steps", 5),
                ("launches", "plain processes"),
                ("room", plan.room[:-1]),
            )
            if getattr(plan, name) != value
        ]
        smaller += [
            replace(
                plan,
                faults=tuple(
                    each if each is not one else replace(one, seconds=0.5) for each in plan.faults
                ),
            )
            for one in plan.faults
            if one.seconds > 1
        ]
        found = next((each for each in smaller if problem_of(each)), None)
        if found is None:
            return plan
        plan = found


def tell(plan: Plan) -> bool:
    """Print a plan's job as a story; return whether it went well."""
    world = World(plan, tells=True)
    try:
        finish = world.run()
        check(plan, finish, world)
        end = f"{world.now:7.2f} s  the end: {finish.error or 'success'}"
    except AssertionError as error:
        end = f"{world.now:7.2f} s  WRONG: {error}"
    print(plan, *world.story, end, sep="\n")
    return "WRONG" not in end


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m simulation",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=100_000, help="how many (default: 100,000)")
    parser.add_argument("--seed", type=int, help="run this one, and tell its story")
    parser.add_argument("--workers", type=int, help="of the one job (default: as drawn)")
    given = parser.parse_args()
    if given.seed is not None or given.workers is not None:
        return 0 if tell(plan_of(given.seed or 0, given.workers)) else 1
    began = time.monotonic()
    pieces = [range(at, min(at + _PIECE, given.seeds)) for at in range(0, given.seeds, _PIECE)]
    wrong: list[int] = []
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for done, found in enumerate(pool.imap(failing, pieces), 1):
            wrong += found
            if sys.stderr.isatty() or done % 40 == 0 or done == len(pieces):
                seeds = min(done * _PIECE, given.seeds)
                print(f"{seeds:,} seeds, {len(wrong)} failed", end="\n" if done % 40 == 0 else "\r")
    seconds = time.monotonic() - began
    print(f"{given.seeds:,} seeds in {seconds:.0f} s: {len(wrong)} failed")
    for seed in wrong[:3]:
        print(f"\nseed {seed} (python -m simulation --seed {seed}), shrunk:")
        tell(shrunk(plan_of(seed)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
