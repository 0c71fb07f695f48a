"""model.predict on an array in memory, in one process: the measure of all others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "feed"))

from measure import measured

BATCH = 1024
ROWS = 120_000


def main(repetitions: int, path: str) -> None:
    import numpy as np

    import keras

    model = keras.saving.load_model(path)
    rows = np.random.default_rng(1).random((ROWS, 784), np.float32)

    def work():
        model.predict(rows, batch_size=BATCH, verbose=0)

    work()
    samples = [vars(measured(work, 0.0)) for _ in range(repetitions)]
    print("RESULT " + json.dumps({"numpy": {"rows": ROWS, "samples": {"all": samples}}}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
