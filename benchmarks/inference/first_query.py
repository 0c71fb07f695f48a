"""How long the first query of a session takes, and the second: of one road, in its own session."""

from __future__ import annotations

import json
import os
import sys
import time

from cases import CASES
from measure import session
from spark_predict import road

NAME = "784 floats"


def main(name: str, model: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    case, spark = CASES[NAME], session("first query")
    rows = case.frame(spark, NAME, 1).limit(2048).repartition(2).cache()
    assert rows.count() == 2048

    def seconds(frame):
        start = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        return time.monotonic() - start

    bare = [seconds(rows) for _ in range(3)][-1]
    start = time.monotonic()
    predicted = road(name, case, model)(rows)
    first = time.monotonic() - start + seconds(predicted)
    start = time.monotonic()
    again = road(name, case, model)(rows)
    second = time.monotonic() - start + seconds(again)
    spark.stop()
    print("RESULT " + json.dumps({"first": first, "second": second - bare}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
