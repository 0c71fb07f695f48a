"""Run ``classic_digits.py`` on a parameter server and two workers of this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from gridflow import LocalLauncher, Programs, Role, TensorflowDistributor


def main():
    """Fill in the flags that the program asks for, and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    distributor = TensorflowDistributor(
        roles=[Role("ps", 1), Role("worker", 2)],
        strategy="server",
        programs=Programs(classic_flags=True),
        launcher=LocalLauncher(),
    )
    distributor.run(Path(__file__).with_name("classic_digits.py"), f"--steps={steps}")


if __name__ == "__main__":
    main()
