"""Run every old program and its twin of today, on one Spark application; print what they found."""

from __future__ import annotations

import argparse
import importlib
import sys
import time

import common

#: The programs by name; each has a twin with ``_old`` behind its name.
PROGRAMS = (
    "digits_fed",
    "digits_files",
    "loop",
    "pipeline",
    "inference",
    "parallel",
    "streaming",
    "resnet",
    "unet",
)


def main():
    """Run them, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=PROGRAMS)
    parser.add_argument("--time", choices=("old", "today"), help="only the programs of that time")
    given = parser.parse_args()
    names = given.names
    spark = common.session()
    weights = common.trained(spark) if {"inference", "parallel"} & set(names) else None
    for name in names:
        for program in (f"{name}_old", name):
            if given.time not in (None, "old" if program.endswith("_old") else "today"):
                continue
            began = time.monotonic()
            more = (weights,) if name in {"inference", "parallel"} else ()
            found = importlib.import_module(program).main(spark, *more)
            print(f"{program}: {found} in {time.monotonic() - began:.1f} s")
            sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
