"""model.predict on an array in memory, in one process: the measure of all others."""

from __future__ import annotations

import json
import sys

from cases import BATCH, CASES
from measure import measured


def main(repetitions: int, path: str, name: str) -> None:
    import keras

    case, model = CASES[name], keras.saving.load_model(path)
    count = min(case.rows * case.times, 2 * case.rows, 1_000_000)
    rows = case.array(count)

    def work():
        model.predict(rows, batch_size=BATCH, verbose=0)

    work()
    samples = [vars(measured(work, 0.0)) for _ in range(repetitions)]
    print("RESULT " + json.dumps({"numpy": {"rows": count, "samples": {"all": samples}}}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
