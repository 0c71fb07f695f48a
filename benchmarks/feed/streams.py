"""Micro-batches of a stream: into a running job, and into the driver by ``toPandas``.

``python benchmarks/feed/streams.py [FILES]``: files of 100,000 rows of 11 numbers, each a
micro-batch. Prints

- rows per second where all files lie there at the beginning, and
- the delay where one file comes after the other: from the moment that a file is there until its
  last row has been seen, in batches of 1024 rows, the median of the files.

``noop`` reads each micro-batch and does nothing with it: what Spark itself takes.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from measure import NUMBERS, session

ROWS, BATCH = 100_000, 1024
SECONDS = 60.0  # that a file may take


def drain(ctx, folder):
    """Note when the last row of each file is seen, in a file of its own."""
    import collections

    import numpy as np

    seen = collections.Counter()
    for _, files in ctx.stream(BATCH, features=NUMBERS, label="file"):
        note(folder, seen, np.asarray(files).ravel())
    return sum(seen.values())


def note(folder, seen, files):
    import numpy as np

    for file, rows in zip(*np.unique(files, return_counts=True), strict=True):
        seen[int(file)] += int(rows)
        if seen[int(file)] % ROWS == 0:  # the file comes again each time
            (Path(folder) / "part").write_text(repr(time.time()))
            (Path(folder) / "part").replace(Path(folder) / str(int(file)))


class Files:
    """Files that come to a folder, each with its own number in its rows."""

    def __init__(self, spark, root: Path, count: int) -> None:
        self.spark, self.root, self.count = spark, root, count
        ids = spark.range(0, ROWS, 1, 1)
        numbers = [f"float((id * {i + 3}) % 1000 / 7) as {n}" for i, n in enumerate(NUMBERS)]
        self.made = []
        for number in range(count):
            rows = ids.selectExpr(*numbers, f"{number} as file")
            rows.write.parquet(str(root / f"made-{number}"))
            self.schema = rows.schema
            self.made += (root / f"made-{number}").glob("*.parquet")

    def stream(self, folder: Path):
        """Return a stream of a folder, of a file at a time."""
        folder.mkdir()
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(folder))

    def bring(self, folder: Path, number: int) -> float:
        """Let a file appear; return when."""
        aside = self.root / "aside"
        shutil.copy(self.made[number], aside)
        began = time.time()
        aside.replace(folder / f"{number}.parquet")
        return began


def seen_at(folder: Path, number: int) -> float:
    """Return when the last row of a file was seen."""
    until = time.monotonic() + SECONDS
    while not (folder / str(number)).exists():
        if time.monotonic() > until:
            raise TimeoutError(f"rows of file {number} didn't come in {SECONDS:g} s")
        time.sleep(0.002)
    return float((folder / str(number)).read_text())


class Way:
    """A way that micro-batches take; `begin` starts a query and returns what waits for its end."""

    def __init__(self, root: Path) -> None:
        self.seen = root / "seen"
        self.seen.mkdir(parents=True)

    def clear(self):
        for each in self.seen.iterdir():
            each.unlink()


class InTheDriver(Way):
    """``foreachBatch`` with a function that has the rows in pandas, or none of them."""

    def __init__(self, root, whole):
        super().__init__(root)
        self.whole = whole

    def begin(self, stream, location, trigger):
        import collections

        seen = collections.Counter()

        def take(rows, _):
            if not self.whole:
                rows.write.format("noop").mode("overwrite").save()
                note(self.seen, seen, [rows.first().file] * ROWS)
                return
            columns = rows.toPandas()
            x, files = columns[NUMBERS].to_numpy(), columns["file"].to_numpy()
            for at in range(0, len(x), BATCH):
                note(self.seen, seen, files[at : at + BATCH])

        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", location)
        query = (writer.trigger(**trigger) if trigger else writer).start()
        return query.awaitTermination if trigger else query.stop


class IntoAJob(Way):
    """`Cluster.feed` of a job of one worker."""

    def __init__(self, root, spark):
        from gridflow import SparkLauncher, TensorflowDistributor

        super().__init__(root)
        distributor = TensorflowDistributor(
            1, "none", launcher=SparkLauncher(spark), logs="none", progress=False
        )
        self.job = distributor.start(drain, str(self.seen))

    def begin(self, stream, location, trigger):
        options = {"checkpoint_location": location, **({"trigger": trigger} if trigger else {})}
        feeding = threading.Thread(target=self.job.feed, args=(stream,), kwargs=options)
        feeding.start()
        if trigger:
            return feeding.join

        def stop():
            self.job.stop()
            feeding.join()

        return stop


def rate(way, files, root):
    """Return rows per second of all files."""
    way.clear()
    incoming = root / f"rate-{time.monotonic_ns()}"
    stream = files.stream(incoming)
    for number in range(files.count):
        files.bring(incoming, number)
    began = time.time()
    end = way.begin(stream, str(root / f"noted-{incoming.name}"), {"availableNow": True})
    last = max(seen_at(way.seen, number) for number in range(files.count))
    end()
    return files.count * ROWS / (last - began)


def delays(way, files, root):
    """Return the seconds that each file took."""
    way.clear()
    incoming = root / f"delay-{time.monotonic_ns()}"
    end = way.begin(files.stream(incoming), str(root / f"noted-{incoming.name}"), None)
    found = []
    for number in range(files.count):
        began = files.bring(incoming, number)
        found.append(seen_at(way.seen, number) - began)
        time.sleep(0.5)
    end()
    return found


def main(count: int) -> None:
    """Print a line for each way."""
    spark = session("gridflow streams", cores=2)
    root = Path(tempfile.mkdtemp(prefix="gridflow-bench-"))
    files = Files(spark, root, count)
    print(f"\nmicro-batches of {ROWS:,} rows of 11 numbers, {count} of them")
    print(f"{'':<34}{'rows/s':>12}{'delay in seconds':>20}")
    ways = {
        "foreachBatch, noop": InTheDriver(root / "noop", whole=False),
        "foreachBatch, toPandas": InTheDriver(root / "pandas", whole=True),
        "cluster.feed": IntoAJob(root / "job", spark),
    }
    for name, way in ways.items():
        place = root / name.replace(" ", "")
        place.mkdir()
        rate(way, files, place)  # Java compiles what it runs often
        fast = statistics.median(rate(way, files, place) for _ in range(3))
        slow = statistics.median(delays(way, files, place))
        print(f"{name:<34}{fast:>12,.0f}{slow:>20.2f}", flush=True)
    way.job.result()
    spark.stop()
    shutil.rmtree(root)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
