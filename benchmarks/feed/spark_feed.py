"""(a) bare mapInArrow, (w) with a file written, (b) gridflow, in turn in one application.

``spark_feed.py [times [case …]]``; without cases, all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from measure import (
    IMAGES,
    SHAPES,
    Consumers,
    cached_frame,
    idle_rate,
    measured,
    parquet_frame,
    session,
)

#: Name -> what the rows are, where they come from, how many workers are fed.
CASES = {
    "784 floats": ("784 floats", "cache", 2),
    "11 numbers": ("11 numbers", "cache", 2),
    "784 floats, one worker": ("784 floats", "cache", 1),
    "11 numbers, one worker": ("11 numbers", "cache", 1),
    "784 floats, Parquet": ("784 floats", "parquet", 2),
    "11 numbers, Parquet": ("11 numbers", "parquet", 2),
    "images of 100 KB": ("images of 100 KB", "cache", 2),
    "images of 100 KB, Parquet": ("images of 100 KB", "parquet", 2),
}


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


def spooled(frame, directory: str, workers: int = 2) -> int:
    """Let the last stage of a DataFrame be what the agents of the ranks do with their rows."""
    from gridflow._feed.ingest.frames import FrameSource
    from gridflow._launch.spark.bodies import taking

    source = FrameSource(frame.sparkSession, {"train": frame}, "never")
    stage, own = source.stage(workers, (), directory)

    def agent(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        from gridflow._feed.store import SpoolWriter

        rank = TaskContext.get().partitionId()
        writer = SpoolWriter(Path(directory) / f"rank-{rank}")
        for dataset, rows in own.batches(batches):
            writer.write(dataset, rows)
        yield pa.RecordBatch.from_pydict({"rows": [writer.close()["train"].rows]})

    return sum(row.rows for row in stage.mapInArrow(taking(own, agent), "rows long").collect())


def main(repetitions: int, cases: list[str]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session("gridflow feed")
    consumers = Consumers()
    results = {}
    spools = Path(tempfile.mkdtemp(prefix="gridflow-bench-"))
    for case in cases or CASES:
        shape, source, workers = CASES[case]
        rows, batch = ({**SHAPES, **IMAGES}[shape][key] for key in ("rows", "batch"))
        if source == "cache":
            frame = cached_frame(spark, shape, rows, workers)
        else:
            frame = parquet_frame(spark, shape, rows, spools / "files", workers)

        def run_bare(frame=frame, rows=rows):
            done = frame.mapInArrow(bare, "rows long").collect()
            assert sum(row.rows for row in done) == rows

        def run_writing(frame=frame, rows=rows):
            done = frame.mapInArrow(writing(str(spools)), "rows long").collect()
            assert sum(row.rows for row in done) == rows

        def run_gridflow(frame=frame, shape=shape, batch=batch, rows=rows, workers=workers):
            assert spooled(frame, str(spools), workers) == rows
            assert consumers.drain(spools, shape, batch, workers) >= rows

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
        results[case] = {"rows": rows, "idle": idle, "samples": samples}
        frame.unpersist()
        cpu = {name: statistics.median(s["cpu"] for s in samples[name]) for name in variants}
        ratio = f"{cpu['bare'] / cpu['gridflow']:.2f} of bare mapInArrow's rows per CPU-second"
        print(f"{case}: {ratio}, {cpu['written'] / cpu['gridflow']:.2f} written", file=sys.stderr)
    consumers.close()
    shutil.rmtree(spools)
    spark.stop()
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:])
