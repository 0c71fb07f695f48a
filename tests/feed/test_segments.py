"""Rows that Spark's tasks write to files: the same spool as by Spark's socket, and nothing left."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gridflow._feed.ingest.dataframes import stage_frame
from gridflow._feed.ingest.jvm_files import Segments, os_error, written
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.store import Segment, SpoolReader, SpoolWriter
from gridflow._launch.spark.bodies import taking
from gridflow._launch.spark.session import run_this_python_where_it_can
from gridflow.errors import DataError
from suite.waiting import patience, wait_for

#: pyspark leaves the sockets of collect() to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

EPOCH = np.datetime64(0, "us").item()
#: How to draw a value of each type; a column has one of them, or arrays, or arrays of arrays.
VALUES = {
    "boolean": lambda rng: bool(rng.integers(2)),
    "tinyint": lambda rng: int(rng.integers(-128, 128)),
    "smallint": lambda rng: int(rng.integers(-(2**15), 2**15)),
    "int": lambda rng: int(rng.integers(-(2**31), 2**31)),
    "bigint": lambda rng: int(rng.integers(-(2**63), 2**63 - 1)),
    "float": lambda rng: float(np.float32(rng.choice([rng.normal(), np.nan, -0.0, np.inf]))),
    "double": lambda rng: float(rng.choice([rng.normal(), np.nan, -0.0, 1e-310])),
    "string": lambda rng: "ä☃x"[: rng.integers(4)] * int(rng.integers(5)),
    "binary": lambda rng: bytearray(rng.bytes(int(rng.integers(9)))),
    "date": lambda rng: (EPOCH + dt.timedelta(days=int(rng.integers(-90_000, 90_000)))).date(),
    "timestamp_ntz": lambda rng: (
        EPOCH + dt.timedelta(microseconds=int(rng.integers(-(2**52), 2**52)))
    ),
    "decimal(12,3)": lambda rng: decimal.Decimal(int(rng.integers(-(10**9), 10**9))).scaleb(-3),
}


@pytest.fixture(autouse=True)
def this_python(spark):
    """Let the executors run it, as a launcher would."""
    run_this_python_where_it_can(spark)


@pytest.fixture
def spooled(spark, tmp_path, monkeypatch):
    """Run the last stage of a DataFrame, and give the spool of its one partition."""
    monkeypatch.setitem(spark.sparkContext.environment, "GRIDFLOW_TEST_OF", "segments")

    def run(datasets, options=None, *, by_files, is_final=True, ranks=1):
        frame, rows = stage_frame(datasets, ranks, kept=options.columns if options else ())
        folder = tmp_path / ("files" if by_files else "socket")
        if by_files:
            frame, rows = written(frame, rows, str(tmp_path), is_final=is_final)
            assert isinstance(rows, Segments)

        def agent(batches):
            from pyspark import TaskContext

            from gridflow._feed.store import SpoolWriter

            own = folder / str(TaskContext.get().partitionId())
            taken = 0
            with SpoolWriter(own, options) as writer:
                for dataset, each in rows.batches(batches):
                    there = [each.path.stat().st_ino] if isinstance(each, Segment) else []
                    writer.write(dataset, each)
                    taken += any(path.stat().st_ino in there for path in own.glob("*/*.arrow"))
                left = writer.left_out
            told = {"taken": pa.array([taken], pa.int32()), "left": [str(left)]}
            yield pa.RecordBatch.from_pydict(told)

        done = frame.mapInArrow(taking(rows, agent), "taken int, left string").collect()
        assert not list(tmp_path.glob("gridflow-rows-*"))
        readers = {
            name: [SpoolReader(folder / str(rank), name) for rank in range(ranks)]
            for name in datasets
            if (folder / "0" / name).exists()
        }
        return readers, sum(row.taken for row in done), done[0].left

    return run


def told(readers):
    """Say all that is known of the rows: NaN is no other NaN, and -0.0 no 0.0."""
    return [
        (str(reader.schema), reader.schema.metadata, reader.counts, repr(list(rows(reader))))
        for reader in readers
    ]


def rows(reader):
    for batch in reader.batches():
        yield from batch.to_pylist()


def drawn(rng, kind, null, length=None):
    """Draw a value of a type, now and then a null."""
    if rng.random() < null:
        return None
    if kind.startswith("array<"):
        items = int(rng.integers(4)) if length is None else length
        return [drawn(rng, kind[6:-1], null / 2, length) for _ in range(items)]
    return VALUES[kind](rng)


def random_frame(spark, seed):
    """Return a DataFrame of all types, with nulls in some of its columns."""
    rng = np.random.default_rng(seed)
    columns = []
    for kind in VALUES:
        deep = int(rng.choice([0, 0, 1, 1, 2]))
        null = float(rng.choice([0.0, 0.0, 0.2]))
        length = int(rng.integers(4)) if rng.random() < 0.7 else None
        columns.append((f"{'array<' * deep}{kind}{'>' * deep}", null, length))
    made = [
        tuple(drawn(rng, *column) for column in columns) for _ in range(int(rng.integers(1, 90)))
    ]
    names = [f"c{number}" for number in range(len(columns))]
    schema = ", ".join(f"{name} {kind}" for name, (kind, *_) in zip(names, columns, strict=True))
    return spark.createDataFrame(made, schema).coalesce(1)


@pytest.mark.parametrize("seed", range(4))
def test_the_spool_is_the_same_by_files_and_by_the_socket(spark, spooled, seed):
    frame = random_frame(spark, seed).cache()
    for options in (FeedOptions(nulls="drop"), FeedOptions()):
        by_socket, _, left = spooled({"train": frame}, options, by_files=False)
        by_files, _, also_left = spooled({"train": frame}, options, by_files=True)
        assert told(by_files["train"]) == told(by_socket["train"])
        assert also_left == left
    frame.unpersist()


def test_what_needs_nothing_is_taken_over_as_it_is(spark, spooled):
    frame = spark.range(0, 20_000, 1, 1).selectExpr(
        "id",
        "id % 2 = 0 AS flag",
        "date_add(DATE'2026-01-01', int(id % 9)) AS day",
        "TIMESTAMP'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, 0, 0, id) AS at",
        "transform(sequence(1, 3), i -> float(i * id)) AS x",
        "string(id) AS words",
    )
    readers, taken, _ = spooled({"train": frame}, by_files=True)
    by_socket, _, _ = spooled({"train": frame}, by_files=False)
    (reader,) = readers["train"]
    assert taken >= 1
    assert told([reader]) == told(by_socket["train"])
    assert reader.rows == 20_000
    assert reader.schema.field("x").type == pa.list_(pa.float32(), 3)


@pytest.mark.parametrize("source", ["cached", "parquet"])
def test_columns_that_spark_has_in_batches_are_the_same(spark, spooled, tmp_path, source):
    """Of a cache and of Parquet files they come so: with dictionaries, nulls, repeated arrays."""
    frame = spark.range(0, 30_000, 1, 1).selectExpr(
        "id",
        "int(id % 7) AS repeated",
        "float(id) / 7 AS number",
        "tinyint(id % 100) AS tiny",
        "smallint(id) AS small",
        "double(id) AS wide",
        "id % 3 = 0 AS flag",
        "date_add(DATE'2026-01-01', int(id % 9)) AS day",
        "IF(id % 11 = 0, NULL, int(id)) AS holes",
        *(
            []
            if source == "cached"  # numbers alone come in batches there
            else [
                "string(id % 5) AS word",
                "array(float(id), float(id % 3)) AS pair",
                "IF(id % 2 = 0, array(int(id)), array()) AS uneven",
                "array(id, NULL) AS torn",
                "array(string(id)) AS words",
            ]
        ),
    )
    if source == "cached":
        frame = frame.cache()
        frame.count()
    else:
        frame.coalesce(1).write.parquet(str(tmp_path / "rows"))
        frame = spark.read.parquet(str(tmp_path / "rows"))
    options = FeedOptions(nulls={"holes": -1})
    by_files, _, left = spooled({"train": frame}, options, by_files=True)
    by_socket, _, also_left = spooled({"train": frame}, options, by_files=False)
    assert told(by_files["train"]) == told(by_socket["train"])
    of_a_batch = r"nulls in \d+ of \d+"  # the first ones have fewer rows in files
    assert re.sub(of_a_batch, "", left) == re.sub(of_a_batch, "", also_left)
    frame.unpersist()


@pytest.mark.parametrize("source", ["rows", "columns"])
def test_a_batch_has_no_more_bytes_than_one_row_too_many(spark, tmp_path, source):
    """However large the rows are: of 100 KB here, and in one place of 1 MB."""
    size = "IF(id = 150, 1000000, 100000)"
    frame = spark.range(0, 300, 1, 1).selectExpr(f"repeat('x', {size}) AS x", "id")
    if source == "columns":
        frame.write.parquet(str(tmp_path / "rows"))
        frame = spark.read.parquet(str(tmp_path / "rows")).coalesce(1)
    stage, rows = written(*stage_frame({"train": frame}, 1), str(tmp_path), is_final=True)

    def measure(batches):
        for _, segment in rows.batches(batches):
            sizes = [batch.nbytes for batch in segment.batches]
            segment.delete()
            yield pa.RecordBatch.from_pydict({"bytes": sizes})

    found = stage.mapInArrow(taking(rows, measure), "bytes long").collect()
    assert sum(row.bytes for row in found) > 300 * 100_000
    assert max(row.bytes for row in found) < (4 << 20) + 1_100_000


def test_rows_of_several_datasets_come_in_files_of_their_own(spark, spooled):
    data = {
        "train": spark.range(500).selectExpr("id", "float(id) AS `x.y`"),
        "test": spark.range(70).selectExpr("string(id) AS id", "array(float(id), 1F) AS z"),
    }
    by_files, _, _ = spooled(data, by_files=True, ranks=2)
    by_socket, _, _ = spooled(data, by_files=False, ranks=2)
    for name in data:
        found, expected = (
            sorted(repr(row) for reader in readers[name] for row in rows(reader))
            for readers in (by_files, by_socket)
        )
        assert found == expected


def test_files_of_several_datasets_are_open_at_the_same_time(spark, spooled):
    counts = {"train": 60_000, "validation": 45_000, "test": 30_000}
    data = {name: spark.range(0, rows, 1, 3) for name, rows in counts.items()}
    spools, _, _ = spooled(data, by_files=True)
    for name, rows in counts.items():
        found = [v for batch in spools[name][0].batches() for v in batch.column(0).to_pylist()]
        assert sorted(found) == list(range(rows))


def test_types_stay_sparks_where_rows_go_elsewhere(spark, spooled):
    frame = spark.sql("SELECT true AS flag, DATE'2026-01-02' AS day, array(1F, 2F) AS x")
    stage, rows = written(*stage_frame({"train": frame}, 1), None, is_final=False)

    def kinds(batches):
        for _, segment in rows.batches(batches):
            kinds = [str(kind) for kind in segment.batches[0].schema.types]
            segment.delete()
            yield pa.RecordBatch.from_pydict({"kinds": [kinds]})

    (found,) = stage.mapInArrow(taking(rows, kinds), "kinds array<string>").collect()
    assert found.kinds == ["bool", "date32[day]", "list<element: float>"]


def numbers(spark, rows=200_000):
    """Return rows of more than one file: 40 MB."""
    return spark.range(0, rows, 1, 1).selectExpr("id", "array_repeat(float(id), 50) AS x")


def leftovers(folder):
    return [path.name for path in Path(folder).glob("gridflow-rows-*")]


def test_who_ends_early_leaves_nothing_and_spark_ends_too(spark, tmp_path):
    stage, rows = written(*stage_frame({"train": numbers(spark)}, 1), str(tmp_path), is_final=True)

    def first(batches):
        for _, segment in rows.batches(batches):
            yield pa.RecordBatch.from_pydict({"rows": [segment.batches[0].num_rows]})
            return

    (found,) = stage.mapInArrow(taking(rows, first), "rows long").collect()
    assert found.rows > 0
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("how", ["raises", "is killed", "can't be loaded"])
def test_a_function_that_fails_is_heard(spark, tmp_path, how):
    """Also while Spark's side waits for files to be taken, or for somebody who takes any."""
    stage, rows = written(*stage_frame({"train": numbers(spark)}, 1), str(tmp_path), is_final=True)

    def missing():
        raise ModuleNotFoundError("No module named 'elsewhere'")

    class Unloadable:
        def __reduce__(self):
            return missing, ()

    unloadable = Unloadable() if how == "can't be loaded" else None

    def fail(batches):
        assert unloadable is None
        for _ in rows.batches(batches):
            if how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("not these rows")
        yield pa.RecordBatch.from_pydict({"rows": [0]})

    words = {
        "raises": "not these rows",
        "is killed": "Python worker exited unexpectedly",
        "can't be loaded": "No module named 'elsewhere'",
    }
    with pytest.raises(Exception, match=words[how]):
        stage.mapInArrow(taking(rows, fail), "rows long").collect()
    assert leftovers(tmp_path) == []


def test_a_file_that_comes_while_its_folder_is_deleted_is_not_waited_for(spark, tmp_path):
    """Spark's side writes on until it sees that nobody takes files: also into that folder."""
    stage, rows = written(*stage_frame({"train": numbers(spark)}, 1), str(tmp_path), is_final=True)

    def fail(batches):
        import shutil

        delete = shutil.rmtree

        def overtaken(folder, **options):
            if Path(folder).exists():
                shutil.rmtree = delete
                for each in Path(folder).iterdir():
                    each.unlink()
                Path(folder, "9-0.partial").touch()

        shutil.rmtree = overtaken
        wait_for(lambda: list(rows.folder().glob("*.arrow")), "a file of rows")
        raise ArithmeticError("not these rows")
        yield pa.RecordBatch.from_pydict({"rows": [0]})

    # A task that waits for ever doesn't let go of the test, either.
    limit = threading.Timer(patience(), spark.sparkContext.cancelAllJobs)
    limit.start()
    try:
        with pytest.raises(Exception, match="not these rows"):
            stage.mapInArrow(taking(rows, fail), "rows long").collect()
    finally:
        limit.cancel()
    assert leftovers(tmp_path) == []


def test_what_spark_cant_compute_is_its_own_error(spark, tmp_path):
    frame = numbers(spark).selectExpr("IF(id = 150000, raise_error('no such row'), id) AS id")
    stage, rows = written(*stage_frame({"train": frame}, 1), str(tmp_path), is_final=True)

    def drain(batches):
        for _, segment in rows.batches(batches):
            segment.delete()
        yield pa.RecordBatch.from_pydict({"rows": [0]})

    with pytest.raises(Exception, match="no such row"):
        stage.mapInArrow(taking(rows, drain), "rows long").collect()
    assert leftovers(tmp_path) == []


def test_a_file_that_cant_be_written_is_told(spark, tmp_path):
    stage, rows = written(*stage_frame({"train": numbers(spark)}, 1), str(tmp_path), is_final=True)

    def block(batches):
        words = ""
        (rows.folder() / "3-0.partial").mkdir()  # not begun before a file was taken
        try:
            for _, segment in rows.batches(batches):
                segment.delete()
        except OSError as error:
            words = str(error)
        yield pa.RecordBatch.from_pydict({"words": [words]})

    (found,) = stage.mapInArrow(taking(rows, block), "words string").collect()
    assert "Spark's task could not write its rows" in found.words
    assert "3-0.partial" in found.words


def test_a_full_disk_that_spark_tells_of_has_a_way_out(tmp_path):
    with pytest.raises(DataError) as caught:
        with SpoolWriter(tmp_path).explaining():
            raise os_error("/local/0.partial: No space left on device")
    assert "No space left on device" in str(caught.value)
    assert "Spool(dir=" in str(caught.value)


def test_where_nobody_takes_files_rows_come_by_the_socket(spark, tmp_path):
    """After some seconds. The function is sent without the word that files are wanted."""
    stage, _ = written(
        *stage_frame({"train": numbers(spark, 1000)}, 1), str(tmp_path), is_final=True
    )

    def count(batches):
        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})

    assert sum(row.rows for row in stage.mapInArrow(count, "rows long").collect()) == 1000
