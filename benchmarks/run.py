"""All benchmarks of the main job, one after the other: ``make bench``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

for bench in (
    "feed/bench.py",
    "feed/push.py",
    "feed/streams.py",
    "feed/files.py",
    "training/bench.py",
    "training/steps.py",
    "training/early.py",
    "training/memory.py",
    "training/checkpoints.py",
    "failure/bench.py",
    "inference/bench.py",
    "adapt/bench.py",
):
    print(f"\n== benchmarks/{bench}", flush=True)
    done = subprocess.run([sys.executable, str(HERE / bench), *sys.argv[1:]], check=False)
    if done.returncode:
        sys.exit(done.returncode)
