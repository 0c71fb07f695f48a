"""Files, folders, splits, compression, damaged records, inference, SQL and streams."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import struct
import zlib
from pathlib import Path

import judge
import pytest
from pyspark.sql import functions as sf
from test_types import error_of, read

import gridflow
from gridflow import tfrecord

ROOT = Path(__file__).parents[3]
SCHEMA = "id bigint, x array<float>, s string"


@pytest.fixture
def rows(spark):
    return spark.range(200).selectExpr(
        "id", "array(cast(id as float), 0.5f) x", "repeat('ü', int(id % 7)) s"
    )


def ids(frame):
    return sorted(row.id for row in frame.select("id").collect())


def with_partition_bytes(spark, size, action):
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(size))
    try:
        return action()
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


@pytest.mark.parametrize("size", [1, 17, 64, 100, 333, 1000, 10_000])
def test_every_split_size_gives_every_row_once(spark, folder, size):
    judge.write(folder, [judge.example(id=("i", [i])) for i in range(30)])
    assert os.path.getsize(folder) > 900
    frame = read(spark, folder, "id bigint")
    assert with_partition_bytes(spark, size, lambda: ids(frame)) == list(range(30))
    frame = read(spark, folder, "id bigint")
    partitions = with_partition_bytes(spark, size, lambda: frame.rdd.getNumPartitions())
    assert partitions >= 900 // max(size, 17) // 2


@pytest.mark.interface
def test_a_file_is_not_split_when_told_not_to(spark, folder):
    judge.write(folder, [judge.example(id=("i", [i])) for i in range(60)])
    frame = read(spark, folder, "id bigint", splittable="false")
    assert with_partition_bytes(spark, 50, lambda: frame.rdd.getNumPartitions()) == 1


def test_tfrecord_bytes_inside_a_record_are_refused_or_read_right(spark, folder, tmp_path):
    inner = tmp_path / "inner"
    judge.write(inner, [judge.example(id=("i", [i])) for i in range(40)])
    outer = [judge.example(s=("b", [inner.read_bytes()]), id=("i", [i])) for i in range(4)]
    judge.write(folder, outer)
    outcomes = set()
    for size in (100, 300, 900, 1400, 2500, 4000, 100_000):
        frame = read(spark, folder, "id bigint")
        try:
            found = with_partition_bytes(spark, size, lambda f=frame: ids(f))
        except Exception as error:
            found = str(error)
        outcomes.add("refused" if "splittable" in found else found == [0, 1, 2, 3])
    assert outcomes == {True, "refused"}
    whole = read(spark, folder, "id bigint", splittable="false")
    assert with_partition_bytes(spark, 100, lambda: ids(whole)) == [0, 1, 2, 3]


@pytest.mark.interface
@pytest.mark.parametrize(
    ("option", "value", "tensorflow", "suffix"),
    [
        ("compression", "gzip", "GZIP", ".gz"),
        ("codec", "org.apache.hadoop.io.compress.GzipCodec", "GZIP", ".gz"),
        ("compression", "deflate", "ZLIB", ".deflate"),
        ("compression", "zlib", "ZLIB", ".deflate"),
        ("Compression", "none", "", ".tfrecord"),
        ("compression", "bzip2", None, ".bz2"),
        ("compression", "snappy", None, ".snappy"),
    ],
)
def test_compressed_files_come_back(spark, folder, rows, option, value, tensorflow, suffix):
    rows.write.format("tfrecord").option(option, value).save(folder)
    assert all(path.endswith(suffix) for path in judge.files(folder))
    if tensorflow is not None:
        assert len(judge.records(folder, tensorflow)) == 200
    assert ids(read(spark, folder, SCHEMA)) == list(range(200))


@pytest.mark.parametrize(("packed", "suffix"), [(gzip.compress, "gz"), (zlib.compress, "deflate")])
def test_a_damaged_second_stream_is_not_the_end_of_a_file(spark, tmp_path, packed, suffix):
    judge.write(tmp_path / "plain", [judge.example(id=("i", [i])) for i in range(50)])
    part = packed((tmp_path / "plain").read_bytes())
    hadoop = "io.gridflow.tfrecord.hadoop.TFRecordInputFormat"
    kinds = [f"org.apache.hadoop.io.{name}" for name in ("BytesWritable", "NullWritable")]
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(part + part)
    assert read(spark, str(path), "id bigint").count() == 100
    for damaged in (b"\0" + part[1:], part[:1], part[:5]):
        path.write_bytes(part + damaged)
        for action in (
            read(spark, str(path), "id bigint").count,
            lambda: read(spark, str(path)),
            spark.sparkContext.newAPIHadoopFile(str(path), hadoop, *kinds).count,
        ):
            assert re.search("gzip member|zlib stream", error_of(action))


@pytest.mark.parametrize(("tensorflow", "option"), [("GZIP", "gzip"), ("ZLIB", "deflate")])
def test_what_tensorflow_compressed_is_read(spark, folder, tensorflow, option):
    judge.write(folder, [judge.example(id=("i", [i])) for i in range(9)], tensorflow)
    assert ids(read(spark, folder, "id bigint", compression=option)) == list(range(9))
    assert ids(read(spark, folder, compression=option)) == list(range(9))
    assert f"compression '{option}'" in error_of(read(spark, folder, "id bigint").collect)


def test_empty_files_and_files_of_one_record(spark, tmp_path):
    judge.write(tmp_path / "d" / "empty", [])
    judge.write(tmp_path / "d" / "empty.gz", [], "GZIP")
    judge.write(tmp_path / "d" / "one", [judge.example(id=("i", [5]))])
    judge.write(tmp_path / "d" / "nothing", [b""])
    (tmp_path / "d" / "zero.gz").write_bytes(b"")
    frame = read(spark, str(tmp_path / "d"))
    assert frame.columns == ["id"]
    assert {row.id for row in frame.collect()} == {5, None}
    judge.write(tmp_path / "e" / "empty", [])
    assert read(spark, str(tmp_path / "e"), "id bigint").count() == 0
    assert "UNABLE_TO_INFER_SCHEMA" in error_of(lambda: read(spark, str(tmp_path / "e")))


def test_ten_thousand_small_files(spark, tmp_path):
    record = judge.example(id=("i", [1]))
    judge.write(tmp_path / "one", [record])
    data = (tmp_path / "one").read_bytes()
    (tmp_path / "many").mkdir()
    for i in range(10_000):
        (tmp_path / "many" / f"part-{i}").write_bytes(data if i % 10 else b"")
    frame = read(spark, str(tmp_path / "many"))
    assert frame.agg(sf.sum("id"), sf.count("*")).first()[:] == (9000, 9000)


def test_a_record_as_large_as_they_come(spark, folder):
    size = int(os.environ.get("GRIDFLOW_TFRECORD_MEBIBYTES", "512")) << 20
    # TensorFlow makes the first file and reads the second.
    text = b"abcdefgh" * (size // 8)
    judge.write(folder, [judge.example(s=("b", [text]))])
    # Of a string Spark would count the letters, which takes longer than all else.
    frame = read(spark, folder, "s binary")
    assert frame.selectExpr("length(s)", "substring(s, -3)").first()[:] == (size, b"fgh")
    frame.write.format("tfrecord").save(folder + "2")
    (record,) = judge.records(folder + "2")
    assert judge.parsed(record) == {"s": ("b", [text])}
    os.unlink(folder)
    shutil.rmtree(folder + "2")


@pytest.mark.interface
def test_partitions_modes_and_file_sizes(spark, folder, rows):
    frame = rows.withColumn("p", sf.col("id") % 3).withColumn("q", sf.lit("ä/="))
    writer = frame.write.format("tfrecord").partitionBy("p", "q").option("maxRecordsPerFile", 20)
    writer.save(folder)
    assert len(judge.files(folder)) >= 10
    back = read(spark, folder)
    assert back.columns == ["id", "s", "x", "p", "q"]
    assert ids(back) == list(range(200))
    assert back.where("p = 1").selectExpr("min(id % 3)", "max(id % 3)", "max(q)").first()[:] == (
        1,
        1,
        "ä/=",
    )
    assert "already exists" in error_of(lambda: writer.save(folder)).lower()
    writer.mode("ignore").save(folder)
    assert back.count() == 200
    writer.mode("append").save(folder)
    assert read(spark, folder).count() == 400
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    frame.where("p = 2").limit(1).write.format("tfrecord").partitionBy("p", "q").mode(
        "overwrite"
    ).save(folder)
    spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert read(spark, folder).where("p = 2").count() == 1
    writer.mode("overwrite").save(folder)
    assert read(spark, folder).count() == 200


@pytest.mark.interface
def test_partition_values_of_every_type_stand_beside_the_columns(spark, folder):
    values = {
        "pb": "true",
        "pi": "7",
        "pl": "123456789012",
        "pd": "1.5",
        "ps": "x",
        "pdate": "2026-01-02",
        "pts": "2026-01-02 03:04:05",
        "pn": "12.34",
        "pnull": "__HIVE_DEFAULT_PARTITION__",
    }
    path = Path(folder, *(f"{k}={v}" for k, v in values.items()), "part-0")
    judge.write(path, [judge.example(id=("i", [1]))])
    types = (
        "id bigint, pb boolean, pi int, pl bigint, pd double, ps string, pdate date,"
        " pts timestamp, pn decimal(6,2), pnull string"
    )
    row = read(spark, folder, types).selectExpr("*", "cast(pts as string) t").first()
    assert row.id == 1
    assert (row.pb, row.pi, row.pl, row.pd, row.ps) == (True, 7, 123456789012, 1.5, "x")
    assert (str(row.pdate), row.t, str(row.pn)) == ("2026-01-02", "2026-01-02 03:04:05", "12.34")
    assert row.pnull is None


@pytest.mark.interface
def test_only_the_columns_asked_for_are_parsed(spark, folder):
    # The other column would fail.
    judge.write(folder, [judge.example(id=("i", [3]), x=("f", [1.0]))] * 5)
    frame = read(spark, folder, "id bigint, x string")
    assert frame.selectExpr("sum(id)").first()[0] == 15
    assert frame.count() == 5
    assert "FloatList" in error_of(frame.collect)


def damaged(folder, good=6):
    """Write records of which one is no Example and one has a wrong checksum."""
    records = [judge.example(id=("i", [i]), x=("f", [0.5])) for i in range(good)]
    records[2] = b"\x0a\x05"
    judge.write(folder, records)
    data = bytearray(Path(folder).read_bytes())
    data[-5] ^= 1
    Path(folder).write_bytes(data)
    return records


@pytest.mark.interface
def test_damaged_records_are_an_error_dropped_or_kept_as_bytes(spark, folder):
    records = damaged(folder)
    frame = read(spark, folder, "id bigint")
    message = error_of(frame.collect)
    assert "beyond the end of its message" in message or "checksum" in message
    dropping = read(spark, folder, "id bigint, x float", mode="dropmalformed")
    assert ids(dropping) == [0, 1, 3, 4]
    assert dropping.count() == 4
    schema = "id bigint, x float, bad binary"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    kept = read(spark, folder, schema, **options).collect()
    assert [row.id for row in kept] == [0, 1, None, 3, 4, None]
    assert [row.bad is None for row in kept] == [True, True, False, True, True, False]
    assert bytes(kept[2].bad) == records[2]
    assert len(kept[5].bad) == len(records[5])
    inferred = read(spark, folder, **options)
    assert inferred.columns == ["id", "x", "bad"]
    assert inferred.where("bad is not null").count() == 2
    wrong = read(spark, folder, "id bigint, bad int", **options)
    assert "BINARY or STRING" in error_of(wrong.collect)


def test_the_verdict_on_a_record_does_not_depend_on_the_columns_asked_for(spark, folder):
    judge.write(folder, [judge.example(id=("i", [1]), x=v) for v in (("f", [1]), ("i", [1]))])
    frame = read(spark, folder, "id bigint, x float", mode="DROPMALFORMED")
    assert frame.select("id").count() == 1
    assert frame.count() == 1
    assert len(frame.select("id").collect()) == 1
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    kept = read(spark, folder, "id bigint, x float, bad string", **options)
    assert kept.select("bad").where("bad is not null").count() == 1


def test_a_damaged_length_or_a_cut_file_is_always_an_error(spark, folder):
    judge.write(folder, [judge.example(id=("i", [i])) for i in range(5)])
    data = Path(folder).read_bytes()
    second = 16 + int.from_bytes(data[:8], "little")
    wrong_length = data[:second] + b"\x7f" + data[second + 1 :]
    for bytes_ in (data[:-1], data[:-20], data + b"\0", wrong_length):
        Path(folder).write_bytes(bytes_)
        for mode in ("FAILFAST", "DROPMALFORMED", "PERMISSIVE"):
            frame = read(spark, folder, "id bigint", mode=mode)
            assert "record at byte" in error_of(frame.collect)
            assert "record at byte" in error_of(frame.count)
    ignoring = read(spark, folder, "id bigint", ignoreCorruptFiles="true")
    assert ids(ignoring) in ([0], [0, 1])


def test_checksums_can_be_left_out(spark, folder):
    judge.write(folder, [judge.example(id=("i", [1]))])
    data = bytearray(Path(folder).read_bytes())
    data[-1] ^= 1
    Path(folder).write_bytes(data)
    assert "checksum" in error_of(read(spark, folder, "id bigint").collect)
    assert ids(read(spark, folder, "id bigint", crcCheck="false")) == [1]


@pytest.mark.interface
def test_the_schema_is_inferred_over_all_files(spark, tmp_path):
    data = tmp_path / "d"
    judge.write(data / "a", [judge.example(z=("i", [1]), m=("i", [1]), b=("b", [b"x"]), n=None)])
    judge.write(data / "b", [judge.example(z=("i", [1, 2]), m=("f", [1.0]), e=("f", []))])
    judge.write(data / "c.gz", [judge.example(only=("b", [b"x", b"y"]))], "GZIP")
    types = dict(read(spark, str(data)).dtypes)
    assert list(types) == sorted(types)
    assert types == {
        "b": "string",
        "e": "float",
        "m": "float",
        "only": "array<string>",
        "z": "array<bigint>",
    }
    binary = read(spark, str(data), binaryAs="binary")
    assert dict(binary.dtypes)["only"] == "array<binary>"
    sampled = read(spark, str(data), samplingRatio="0.01")
    assert sampled.columns == ["b", "m", "z"]


@pytest.mark.interface
def test_the_schema_of_sequences_is_inferred(spark, folder):
    judge.write(
        folder,
        [
            judge.sequence({"a": ("i", [1])}, {"x": [("f", [1.0])], "t": [("b", [b"a"])]}),
            judge.sequence({}, {"x": [("f", [1.0, 2.0])], "t": []}),
        ],
    )
    assert read(spark, folder, recordType="SequenceExample").dtypes == [
        ("a", "bigint"),
        ("t", "array<array<string>>"),
        ("x", "array<array<float>>"),
    ]
    judge.write(folder + "2", [b"\xff\xff no example"])
    assert "is recordType right?" in error_of(lambda: read(spark, folder + "2"))


@pytest.mark.interface
def test_old_names_answer(spark, folder, rows):
    names = [
        "tfrecord",
        "tfrecords",
        "TFRecord",
        "org.tensorflow.spark.datasources.tfrecord",
        "org.tensorflow.spark.datasources.tfrecords",
        "com.linkedin.spark.datasources.tfrecord",
    ]
    for i, name in enumerate(names):
        rows.write.format(name).option("recordType", "Example").save(f"{folder}{i}")
        assert spark.read.format(name).load(f"{folder}{i}").count() == 200


@pytest.mark.interface
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("recordTyp", "Example", "Did you mean 'recordType'"),
        ("recordType", "Exampel", "must be Example"),
        ("compression", "gzipp", "compression must be"),
        ("mode", "LOUD", "must be one of FAILFAST"),
        ("samplingRatio", "2", "at most 1"),
        ("samplingRatio", "much", "must be a number"),
        ("crcCheck", "maybe", "crcCheck must be one of"),
        ("bufferSize", "1", "at least 16"),
        ("writeLocality", "here", "writeLocality must be"),
    ],
)
def test_wrong_options_are_refused_with_a_hint(spark, folder, option, value, words):
    judge.write(folder, [judge.example(id=("i", [1]))])
    assert words in error_of(lambda: read(spark, folder, **{option: value}))
    frame = read(spark, folder, "id bigint", **{option: value})
    assert words in error_of(frame.collect)
    writer = spark.range(1).write.format("tfrecord").option(option, value)
    assert words in error_of(lambda: writer.save(folder + "2"))


@pytest.mark.interface
def test_sql_knows_the_source(spark, folder, rows):
    rows.write.format("tfrecord").save(folder)
    assert spark.sql(f"select sum(id) from tfrecord.`{folder}`").first()[0] == 19900
    spark.sql(f"create table t1 (id bigint, s string) using tfrecord location '{folder}'")
    try:
        assert spark.table("t1").where("id = 6").first().s == "ü" * 6
        spark.sql("create table t2 using tfrecord options (compression 'gzip') as select * from t1")
        spark.sql("insert into t2 values (1000, 'new')")
        assert spark.table("t2").selectExpr("max(id)", "count(*)").first()[:] == (1000, 201)
    finally:
        spark.sql("drop table if exists t1")
        spark.sql("drop table if exists t2")


def sql_pages():
    """Return the documents' SQL, by page."""
    found = {
        page.name: re.findall(
            r"^```sql\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    }
    return {name: "".join(blocks) for name, blocks in found.items() if blocks}


@pytest.mark.interface
@pytest.mark.parametrize("page", sql_pages())
def test_the_sql_of_the_documents_runs(spark, folder, page):
    judge.write(folder, [judge.example(x=("f", [i, 0.5]), label=("i", [i])) for i in range(3)])
    code = sql_pages()[page].replace("/data/train", folder)
    try:
        *_, last = [spark.sql(each) for each in code.split(";") if each.strip()]
        assert sorted(last.collect()) == [([float(i), 0.5], i) for i in range(3)]
    finally:
        spark.sql("DROP VIEW IF EXISTS messages")
        spark.sql("DROP TABLE IF EXISTS examples")


@pytest.mark.interface
def test_metadata_columns_are_there(spark, folder, rows):
    rows.coalesce(1).write.format("tfrecord").save(folder)
    (path,) = judge.files(folder)
    row = read(spark, folder, SCHEMA).select("id", "_metadata.*").first()
    assert row.file_path.endswith(Path(path).name)
    assert row.file_size == os.path.getsize(path)


@pytest.mark.interface
def test_streams_read_and_write(spark, tmp_path, rows):
    rows.write.format("tfrecord").save(str(tmp_path / "in"))
    stream = spark.readStream.format("tfrecord").schema(SCHEMA).load(str(tmp_path / "in"))
    query = (
        stream.where("id % 2 = 0")
        .writeStream.format("tfrecord")
        .option("checkpointLocation", str(tmp_path / "check"))
        .option("path", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert ids(read(spark, str(tmp_path / "out"), SCHEMA)) == list(range(0, 200, 2))


@pytest.mark.interface
def test_functions_turn_rows_into_records_and_back(spark, rows):
    types = "struct<id: bigint, x: array<float>, s: string, none: int>"
    encoded = rows.selectExpr("gridflow.to_example(struct(*)) e")
    first = judge.parsed(bytes(encoded.first().e))
    assert first == {"id": ("i", [0]), "x": ("f", [0.0, 0.5]), "s": ("b", [b""])}
    back = encoded.selectExpr(f"gridflow.from_example(e, cast(null as {types})) r").select("r.*")
    assert back.drop("none").collect() == rows.collect()
    sequences = spark.sql("select array(array(1L), array(2L, 3L)) x")
    again = sequences.selectExpr("gridflow.to_sequence_example(struct(x)) e").selectExpr(
        "gridflow.from_sequence_example(e, cast(null as struct<x: array<array<bigint>>>)).x x"
    )
    assert again.first().x == [[1], [2, 3]]
    assert "'t'" in error_of(
        lambda: spark.sql("select gridflow.to_example(struct(now() as t))").collect()
    )
    broken = "select gridflow.from_example(x'0a05', cast(null as struct<a: int>))"
    assert "beyond the end" in error_of(lambda: spark.sql(broken).collect())


@pytest.mark.interface
def test_a_function_packs_arrays_of_numbers_for_python(spark):
    """What Python makes of them is in tests/feed/test_packing.py."""
    numbers = spark.sql("select gridflow.pack(array(1.5f, null, -2.0f)) x, gridflow.pack('a') y")
    ((values, nulls), same) = numbers.first()
    assert struct.unpack("=3f", values) == (1.5, 0.0, -2.0)
    assert bytes(nulls) == b"\0\1\0"
    assert same == "a"
    assert numbers.schema["x"].dataType.names == ["__gridflow_packed_float", "nulls"]
    kinds = ["smallint", "int", "bigint", "float", "double"]
    arrays = [f"gridflow.pack(cast(array(1, 2) as array<{kind}>)) {kind}" for kind in kinds]
    rows = spark.range(1).select("id").selectExpr(*arrays).first()
    sizes = [(len(row[0]), row.nulls) for row in rows]
    assert sizes == [(4, None), (8, None), (16, None), (8, None), (16, None)]
    nothing = spark.sql("select gridflow.pack(cast(null as array<int>)) x, gridflow.pack(1) y")
    assert nothing.first() == (None, 1)
    assert "pack(column)" in error_of(lambda: spark.sql("select gridflow.pack(1, 2)").collect())


def test_files_have_no_second_checksums_beside_them(spark, folder, rows):
    rows.write.format("tfrecord").save(str(folder))
    names = [path.name for path in Path(folder).iterdir() if "SUCCESS" not in path.name]
    assert names
    assert all(name.startswith("part-") for name in names)
    hadoop = spark._jvm.org.apache.hadoop.fs.Path(str(folder))
    files = hadoop.getFileSystem(spark._jsc.hadoopConfiguration())
    stream = files.open(spark._jvm.org.apache.hadoop.fs.Path(str(folder), names[0]))
    assert stream.read() >= 0  # Hadoop's own way finds nothing to complain of
    stream.close()


@pytest.mark.interface
def test_each_executor_can_write_on_its_own_disk(spark, folder, rows):
    writer = rows.withColumn("p", sf.col("id") % 2).repartition(3).write.format("tfrecord")
    writer.option("writeLocality", "local").partitionBy("p").mode("overwrite").save(folder)
    assert {Path(path).parent.name for path in judge.files(folder)} == {"p=0", "p=1"}
    assert ids(read(spark, folder)) == list(range(200))
    bad = spark.range(10).selectExpr("if(id = 9, array(cast(null as int)), array(1)) x")
    writer = bad.coalesce(1).write.format("tfrecord").option("writeLocality", "local")
    assert "null" in error_of(lambda: writer.save(folder + "2"))
    assert [p for p in Path(folder + "2").rglob("*") if "part" in p.name] == []


@pytest.mark.interface
def test_a_limit_reads_no_more_than_it_needs(spark, folder, rows):
    rows.coalesce(1).write.format("tfrecord").save(folder)
    assert len(with_partition_bytes(spark, 500, lambda: read(spark, folder).take(3))) == 3
    assert with_partition_bytes(spark, 500, lambda: read(spark, folder).limit(150).count()) == 150


def test_materialized_rows_lie_in_files_that_others_read(spark, folder):
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "cast(id as float) / 2 as half")
    rows = gridflow.materialize(frame, folder, format="tfrecord", files=3)
    assert (rows.rows, rows.is_new) == (100, True)
    assert len(rows.files) == 3
    assert sorted(row.half for row in rows.read(spark).collect()) == [n / 2 for n in range(100)]
    tables = [tfrecord.read_table(str(Path(rows, file["name"]))) for file in rows.files]
    assert sorted(n for table in tables for n in table["id"].to_pylist()) == [*range(100)]
    assert not gridflow.materialize(frame, folder, format="tfrecord", files=3).is_new
    assert gridflow.materialize(frame, folder, files=3).is_new  # as Parquet
