"""(a) bare mapInArrow, (w) with a file written, (b) gridflow, in turn in one application."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from measure import SHAPES, Consumers, cached_frame, idle_rate, measured, session


def bare(batches):
    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": [rows]})


def writing(directory: str):
    """Put every byte that comes into a plain file: what any copy on disk costs at least."""

    def iterate(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        path = Path(directory) / f"plain-{TaskContext.get().partitionId()}"
        rows = 0
        with path.open("wb", buffering=0) as file:
            for batch in batches:
                rows += batch.num_rows
                for column in batch.columns:
                    for buffer in column.buffers():
                        if buffer is not None:
                            file.write(buffer)
        path.unlink()
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    return iterate


def spooling(directory: str, tags):
    def agent(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        from gridflow.feed.spool import SpoolWriter

        rank = TaskContext.get().partitionId()
        writer = SpoolWriter(Path(directory) / f"rank-{rank}")
        for dataset, rows in tags.batches(batches):
            writer.write(dataset, rows)
        yield pa.RecordBatch.from_pydict({"rows": [writer.close()["train"].rows]})

    return agent


def main(repetitions: int) -> None:
    from gridflow.feed.sources.dataframes import stage_frame

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session("gridflow feed")
    consumers = Consumers()
    results = {}
    spools = Path(tempfile.mkdtemp(prefix="gridflow-bench-"))
    for shape, options in SHAPES.items():
        rows, batch = options["rows"], options["batch"]
        frame = cached_frame(spark, shape, rows)
        staged, tags = stage_frame({"train": frame}, 2)
        plan = staged._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001
        assert "Exchange" not in plan, "a cached DataFrame of two partitions needs no shuffle"

        def run_bare(frame=frame, rows=rows):
            done = frame.mapInArrow(bare, "rows long").collect()
            assert sum(row.rows for row in done) == rows

        def run_writing(frame=frame, rows=rows):
            done = frame.mapInArrow(writing(str(spools)), "rows long").collect()
            assert sum(row.rows for row in done) == rows

        def run_gridflow(staged=staged, tags=tags, shape=shape, batch=batch, rows=rows):
            done = staged.mapInArrow(spooling(str(spools), tags), "rows long").collect()
            assert sum(row.rows for row in done) == rows
            assert consumers.drain(spools, shape, batch) >= rows

        for _ in range(6):  # the JVM compiles what it runs often
            run_bare()
            run_writing()
            run_gridflow()
        idle = idle_rate()
        variants = {"bare": run_bare, "written": run_writing, "gridflow": run_gridflow}
        samples = {name: [] for name in variants}
        for _ in range(repetitions):
            for name, run in variants.items():
                samples[name].append(vars(measured(run, idle)))
        results[shape] = {"rows": rows, "idle": idle, "samples": samples}
        frame.unpersist()
    consumers.close()
    shutil.rmtree(spools)
    spark.stop()
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]))
