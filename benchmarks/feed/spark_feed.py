"""(a) bare mapInArrow and (b) gridflow's path, alternating, in one Spark application."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from measure import SHAPES, cached_frame, idle_rate, measured, session


def bare(batches):
    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": [rows]})


def spooling(directory: str, tags):
    def agent(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        from gridflow.feed.frames import agent_batches
        from gridflow.feed.spool import SpoolWriter

        rank = TaskContext.get().partitionId()
        writer = SpoolWriter(Path(directory) / f"rank-{rank}")
        for dataset, rows in agent_batches(batches, tags):
            writer.write(dataset, rows)
        yield pa.RecordBatch.from_pydict({"rows": [writer.close()["train"].rows]})

    return agent


def main(repetitions: int) -> None:
    from gridflow.feed.frames import stage_frame

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session("gridflow feed")
    consumers = [
        subprocess.Popen(
            [sys.executable, HERE / "consumer.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2)
    ]
    for consumer in consumers:
        assert consumer.stdout.readline() == "ready\n"
    results = {}
    spools = Path(tempfile.mkdtemp(prefix="gridflow-bench-"))
    for shape, options in SHAPES.items():
        rows, batch = options["rows"], options["batch"]
        frame = cached_frame(spark, shape, rows)
        staged, tags = stage_frame({"train": frame}, 2)
        assert staged is frame, "a cached DataFrame of two partitions needs no shuffle"

        def run_bare(staged=staged, rows=rows):
            done = staged.mapInArrow(bare, "rows long").collect()
            assert sum(row.rows for row in done) == rows

        def run_gridflow(staged=staged, tags=tags, shape=shape, batch=batch, rows=rows):
            done = staged.mapInArrow(spooling(str(spools), tags), "rows long").collect()
            assert sum(row.rows for row in done) == rows
            for rank, consumer in enumerate(consumers):
                request = {"directory": f"{spools}/rank-{rank}", "shape": shape, "batch": batch}
                consumer.stdin.write(json.dumps(request) + "\n")
                consumer.stdin.flush()
            assert sum(int(consumer.stdout.readline()) for consumer in consumers) >= rows

        for _ in range(6):  # the JVM compiles what it runs often
            run_bare()
            run_gridflow()
        idle = idle_rate()
        samples = {"bare": [], "gridflow": []}
        for _ in range(repetitions):
            samples["bare"].append(vars(measured(run_bare, idle)))
            samples["gridflow"].append(vars(measured(run_gridflow, idle)))
        results[shape] = {"rows": rows, "idle": idle, "samples": samples}
        frame.unpersist()
    for consumer in consumers:
        consumer.stdin.close()
        consumer.wait()
    shutil.rmtree(spools)
    spark.stop()
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]))
