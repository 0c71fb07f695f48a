"""Hadoop's formats: from Spark's RDDs, under old names and new, and a MapReduce job."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path

import judge
import pytest

from gridflow import tfrecord

BYTES = "org.apache.hadoop.io.BytesWritable"
NULL = "org.apache.hadoop.io.NullWritable"
EXAMPLES = Path(__file__).parents[3] / "examples" / "tfrecord"


@pytest.fixture(
    params=[
        ("io.gridflow.tfrecord.hadoop.TFRecordInputFormat", "TFRecordOutputFormat"),
        ("org.tensorflow.hadoop.io.TFRecordFileInputFormat", "TFRecordFileOutputFormat"),
    ]
)
def formats(request):
    reader, writer = request.param
    return reader, reader.rpartition(".")[0] + "." + writer


@pytest.mark.parametrize(
    ("codec", "tensorflow"), [(None, ""), ("Gzip", "GZIP"), ("Default", "ZLIB")]
)
def test_records_come_back_through_rdds(spark, folder, formats, codec, tensorflow):
    context = spark.sparkContext
    records = [judge.example(id=("i", [i])) for i in range(50)]
    conf = {}
    if codec:
        conf = {
            "mapreduce.output.fileoutputformat.compress": "true",
            "mapreduce.output.fileoutputformat.compress.codec": (
                f"org.apache.hadoop.io.compress.{codec}Codec"
            ),
        }
    pairs = context.parallelize([(bytearray(r), None) for r in records], 2)
    pairs.saveAsNewAPIHadoopFile(folder, formats[1], BYTES, NULL, conf=conf)
    assert sorted(judge.records(folder, tensorflow)) == sorted(records)
    small = {"mapreduce.input.fileinputformat.split.maxsize": "100"}
    back = context.newAPIHadoopFile(folder, formats[0], BYTES, NULL, conf=small)
    assert sorted(bytes(key) for key, _ in back.collect()) == sorted(records)
    assert back.getNumPartitions() > 4 if codec is None else back.getNumPartitions() == 2


def test_keys_of_the_old_name_are_exactly_as_long_as_the_record(spark, folder):
    judge.write(folder, [b"long record", b"s"])
    jvm = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    name = "org.tensorflow.hadoop.io.TFRecordFileInputFormat"
    input_format = loader.loadClass(name).newInstance()
    hadoop = jvm.org.apache.hadoop
    job = hadoop.mapreduce.Job.getInstance(spark.sparkContext._jsc.hadoopConfiguration())
    hadoop.mapreduce.lib.input.FileInputFormat.addInputPaths(job, folder)
    attempt = hadoop.mapreduce.task.TaskAttemptContextImpl(
        job.getConfiguration(), hadoop.mapreduce.TaskAttemptID()
    )
    (split,) = input_format.getSplits(job)
    reader = input_format.createRecordReader(split, attempt)
    reader.initialize(split, attempt)
    keys = []
    while reader.nextKeyValue():
        keys.append(reader.getCurrentKey())
    reader.close()
    # Kept beyond the next record, and used without their length, as old jobs do.
    assert [bytes(key.getBytes()) for key in keys] == [b"long record", b"s"]


@pytest.mark.interface
def test_the_older_interface_reads_and_writes(spark, folder):
    context = spark.sparkContext
    records = [judge.example(id=("i", [i])) for i in range(20)]
    pairs = context.parallelize([(bytearray(r), None) for r in records], 1)
    pairs.saveAsHadoopFile(
        folder, "org.tensorflow.hadoop.io.TFRecordFileOutputFormatV1", BYTES, NULL
    )
    assert judge.records(folder) == records
    back = context.hadoopFile(
        folder, "io.gridflow.tfrecord.hadoop.mapred.TFRecordInputFormat", BYTES, NULL
    )
    assert [bytes(key) for key, _ in back.collect()] == records


def test_damage_and_the_key_that_ignores_it(spark, folder):
    judge.write(folder, [b"abc"])
    data = bytearray(Path(folder).read_bytes())
    data[-1] ^= 1
    Path(folder).write_bytes(data)
    reader = "org.tensorflow.hadoop.io.TFRecordFileInputFormat"
    rdd = spark.sparkContext.newAPIHadoopFile
    with pytest.raises(Exception, match="checksum"):
        rdd(folder, reader, BYTES, NULL)
    keep = rdd(folder, reader, BYTES, NULL, conf={"tensorflow.read.crc32check": "false"})
    assert [bytes(key) for key, _ in keep.collect()] == [b"abc"]


@pytest.mark.interface
def test_the_example_with_rdds_runs(spark, folder, capsys):
    judge.write(folder, [judge.example(label=("i", [i % 3])) for i in range(30)])
    example = runpy.run_path(str(EXAMPLES / "hadoop_rdd.py"))
    assert example["count_labels"](spark, folder) == {0: 10, 1: 10, 2: 10}


def test_the_mapreduce_example_runs_on_the_local_runner(spark, folder, tmp_path):
    import pyspark

    for i in range(2):
        judge.write(
            Path(folder) / f"{i}.tfrecord", [judge.example(label=("i", [k % 3])) for k in range(30)]
        )
    jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    classpath = os.pathsep.join([tfrecord.jar(), jars, str(tmp_path / "classes")])
    source = str(EXAMPLES / "LabelCount.java")
    subprocess.run(
        ["javac", "-proc:none", "-cp", classpath, "-d", str(tmp_path / "classes"), source],
        check=True,
    )
    out = tmp_path / "out"
    ran = subprocess.run(
        ["java", "-cp", classpath, "LabelCount", folder, str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    counts = [judge.parsed(record) for record in judge.records(out)]
    assert sorted((c["label"][1][0], c["count"][1][0]) for c in counts) == [
        (0, 20),
        (1, 20),
        (2, 20),
    ]
