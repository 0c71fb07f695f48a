"""TFRecord in Spark beside Parquet of the same rows and the Hadoop format with protobuf.

``make bench-tfrecord`` runs everything; ``--scale 0.2`` makes smaller data. Each number is the
median of several runs after some to warm up, in MB of TFRecord per second of CPU that the JVM used
(all its threads: garbage collection and the compiler, too) and of wall time. The reader's rows go
to Spark's ``noop`` sink. Results: ``benchmarks/tfrecord/results.json`` and a plot in ``docs/``.
"""

# ruff: noqa: SLF001 -- the JVM behind a session is only reached so
from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROTOBUF = [
    "org.tensorflow:tensorflow-hadoop:1.15.0",
    "org.tensorflow:proto:1.15.0",
    "com.google.protobuf:protobuf-java:3.25.5",
]
#: Runs before those that count: for so long the JVM compiles its hot code.
WARM_UP = 8
#: So often the rows are written in one run: Spark's own work for any job takes 0.2 s of CPU.
COPIES = 2
#: JVMs on one core and on two, in turn: two JVMs that do the same differ by a tenth.
PAIRS = 3
ROWS = {"floats": 240_000, "mixed": 2_400_000, "images": 8_000}
PRUNED = {"floats": "label", "mixed": "integer0", "images": "label"}
MIXED = [
    *(f"cast(rand({i}) * pow(2, {6 * i + 1}) as bigint) integer{i}" for i in range(5)),
    *(f"cast(rand({10 + i}) as float) number{i}" for i in range(5)),
    *(f"concat('value-', cast(rand({20 + i}) * 100000 as int)) text{i}" for i in range(3)),
    "transform(sequence(0, 7), i -> cast(hash(id, i) % 15000 + 15000 as bigint)) tokens",
    "transform(sequence(0, 7), i -> cast(hash(i, id) as float)) vector",
]
SELECT = {
    "floats": [
        "transform(sequence(0, 783), i -> cast(hash(id, i) / 2e9 as float)) x",
        "id % 10 label",
    ],
    "mixed": MIXED,
    # 32 bytes a hash: nothing that compresses.
    "images": [
        "unhex(concat_ws('', transform(sequence(0, 1562), i -> sha2(concat(id, i), 512)))) image",
        "id % 1000 label",
    ],
}


def session(cores, jars, catalog=True):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]")
    for key, value in {
        # By itself a JVM takes this one on two cores and the serial collector on one.
        "spark.driver.extraJavaOptions": "-XX:+UseG1GC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(jars),
    }.items():
        builder = builder.config(key, value)
    if catalog:
        builder = builder.config(
            "spark.sql.catalog.gridflow", "io.gridflow.tfrecord.spark.GridflowFunctions"
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(spark, action, repeat):
    """Return CPU and wall seconds, each the median of several runs."""
    return tuple(map(statistics.median, zip(*measured(spark, action, repeat), strict=True)))


def measured(spark, action, repeat):
    """Return CPU and wall seconds of several runs, each after some that don't count."""
    (jvm,) = [p for p in psutil.Process().children(recursive=True) if p.name() == "java"]

    def cpu_seconds():
        used = jvm.cpu_times()
        return used.user + used.system

    for _ in range(WARM_UP):
        action()
    runs = []
    for _ in range(repeat):
        spark._jvm.java.lang.System.gc()
        wall, cpu = time.perf_counter(), cpu_seconds()
        action()
        runs.append((cpu_seconds() - cpu, time.perf_counter() - wall))
    return runs


def measure_writing(spark, write, frame, folder, repeat):
    """Return what `measure` does of writing the rows once, found by writing copies of them."""
    copies = functools.reduce(type(frame).union, [frame] * COPIES)

    def action():
        shutil.rmtree(folder, ignore_errors=True)  # not by Spark, so that it costs all the same
        write(copies, folder)

    return tuple(seconds / COPIES for seconds in measure(spark, action, repeat))


def noop(frame):
    frame.write.format("noop").mode("overwrite").save()


def bytes_in(folder):
    return sum(p.stat().st_size for p in Path(folder).glob("part-*")) / 1e6


def ours(folder, repeat, scale):
    """Make the data and measure this project's source and Parquet."""
    from gridflow import tfrecord

    spark = session(2, [tfrecord.jar()])
    results = {"spark": spark.version}

    def write(rows, out):
        rows.write.format("tfrecord").save(out)

    for name, expressions in SELECT.items():
        tfr, parquet = f"{folder}/{name}.tfr", f"{folder}/{name}.parquet"
        frame = spark.range(int(ROWS[name] * scale)).selectExpr(*expressions).repartition(2)
        frame.write.parquet(parquet)
        rows = spark.read.parquet(parquet)
        rows.write.format("tfrecord").save(tfr)
        size = bytes_in(tfr)
        reader = spark.read.format("tfrecord").schema(rows.schema)
        memory = rows.cache()
        memory.count()

        def infer(tfr=tfr):
            spark.read.format("tfrecord").load(tfr)

        actions = {
            "read": lambda reader=reader, tfr=tfr: noop(reader.load(tfr)),
            "pruned": lambda r=reader, t=tfr, n=name: noop(r.load(t).select(PRUNED[n])),
            "inference": infer,
        }
        found = {key: measure(spark, action, repeat) for key, action in actions.items()}
        found["write"] = measure_writing(spark, write, memory, f"{folder}/out", repeat)
        memory.unpersist(True)
        # Uncached, as the cache would answer for the file.
        found["parquet read"] = measure(
            spark, lambda p=parquet: noop(spark.read.parquet(p)), repeat
        )
        results[name] = {
            "MB": size,
            "schema": json.loads(rows.schema.json()),
            **{k: {"cpu": size / c, "wall": size / w} for k, (c, w) in found.items()},
        }
        rates = {what: round(results[name][what]["cpu"]) for what in found}
        print(name, rates, flush=True)
    spark.stop()
    return results


def before(folder, repeat):
    """Measure the Hadoop format of tensorflow-hadoop with protobuf objects in an RDD."""
    libraries = protobuf_jars()
    classes = Path(folder, "classes")
    import pyspark

    spark_jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    classpath = os.pathsep.join([*libraries, spark_jars])
    source = str(HERE / "HadoopRows.java")
    subprocess.run(
        ["javac", "-proc:none", "-cp", classpath, "-d", str(classes), source], check=True
    )
    own = f"{folder}/hadoop-rows.jar"
    subprocess.run(["jar", "cf", own, "-C", str(classes), "."], check=True)
    spark = session(2, [own, *libraries], catalog=False)
    spark.sparkContext._jsc.hadoopConfiguration().set(
        "mapreduce.fileoutputcommitter.algorithm.version", "2"
    )
    results = {}
    java = spark._jvm.HadoopRows

    def write(rows, out):
        java.write(rows._jdf, out)

    for name in ROWS:
        tfr = f"{folder}/{name}.tfr"
        size = bytes_in(tfr)
        memory = spark.read.parquet(f"{folder}/{name}.parquet").cache()
        memory.count()
        schema = spark._jsparkSession.parseDataType(memory.schema.json())

        def read(tfr=tfr, schema=schema):
            frame = java.read(spark._jsparkSession, tfr, schema)
            frame.write().format("noop").mode("overwrite").save()

        found = {
            "read": measure(spark, read, repeat),
            "write": measure_writing(spark, write, memory, f"{folder}/out-hadoop", repeat),
        }
        memory.unpersist(True)
        results[name] = {k: {"cpu": size / c, "wall": size / w} for k, (c, w) in found.items()}
        print(name, "before", {k: round(v["cpu"]) for k, v in results[name].items()}, flush=True)
    spark.stop()
    return results


def protobuf_jars():
    target = ROOT / ".cache" / "tensorflow-hadoop"
    for coordinates in PROTOBUF:
        _, artifact, version = coordinates.split(":")
        if not (target / f"{artifact}-{version}.jar").exists():
            copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
            command = ["mvn", "-B", "-q", copy, f"-Dartifact={coordinates}"]
            subprocess.run([*command, f"-DoutputDirectory={target}"], check=True)
    return [str(path) for path in sorted(target.glob("*.jar"))]


def parser_alone(folder):
    """Measure the parser without Spark, by JMH, in MB per second of one thread."""
    out = Path(folder, "jmh.json")
    arguments = ["-rf", "json", "-rff", str(out), "-foe", "true"]
    subprocess.run([HERE / "jmh.sh", *arguments, "ParserBenchmark.rows"], check=True)
    passes = {run["params"]["data"]: run["primaryMetric"] for run in json.loads(out.read_text())}
    return {name: metric["score"] * (32 << 20) / 1e6 for name, metric in passes.items()}


def big(folder, cores, repeat):
    """Read one big uncompressed file, by default 4.6 GB, and return MB per second of each run."""
    # Else the compiler and the garbage collector of a JVM "on one core" run on the other one.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    from gridflow import tfrecord

    spark = session(cores, [tfrecord.jar()])
    reader = spark.read.format("tfrecord").schema("x array<float>, label bigint")
    path = f"{folder}/big.tfrecord"
    megabytes = Path(path).stat().st_size / 1e6
    runs = measured(spark, lambda: noop(reader.load(path)), repeat)
    spark.stop()
    return [megabytes / wall for _, wall in runs]


def spin(rounds):
    """Keep a core busy."""
    total = 0
    for i in range(rounds):
        total += i * i
    return total


def machine_scaling(repeat):
    """Return how much more two processes get done than one, on this machine: at most 2."""

    def seconds(processes):
        began = time.perf_counter()
        started = [
            multiprocessing.Process(target=spin, args=(20_000_000,)) for _ in range(processes)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        return time.perf_counter() - began

    ratios = [2 * seconds(1) / seconds(2) for _ in range(repeat)]
    return statistics.median(ratios)


def stage(name, folder, arguments):
    """Run one part in a process, and so a JVM, of its own."""
    out = Path(folder, f"{name}.json")
    command = [sys.executable, __file__, "--stage", name, "--folder", folder, "--out", str(out)]
    command += ["--repeat", str(arguments.repeat), "--scale", str(arguments.scale)]
    subprocess.run(command, check=True)
    return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--stage")
    parser.add_argument("--folder")
    parser.add_argument("--out")
    parser.add_argument("--no-plot", action="store_true")
    arguments = parser.parse_args()
    if arguments.stage:
        folder, repeat = arguments.folder, arguments.repeat
        stages = {
            "ours": lambda: ours(folder, repeat, arguments.scale),
            "before": lambda: before(folder, repeat),
            "parser": lambda: parser_alone(folder),
            "one": lambda: big(folder, 1, repeat),
            "two": lambda: big(folder, 2, repeat),
        }
        Path(arguments.out).write_text(json.dumps(stages[arguments.stage]()))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = stage("ours", folder, arguments)
        results["before"] = stage("before", folder, arguments)
        results["parser"] = stage("parser", folder, arguments)
        with Path(folder, "big.tfrecord").open("wb") as out:
            out.writelines(
                part.read_bytes() for part in sorted(Path(folder, "floats.tfr").glob("part-*")) * 6
            )
        one, two = [], []
        for _ in range(PAIRS):
            one.append(stage("one", folder, arguments))
            two.append(stage("two", folder, arguments))
        results["one file"] = {
            "1 core": statistics.median(itertools.chain(*one)),
            "2 cores": statistics.median(itertools.chain(*two)),
            "pairs": [
                statistics.median(b) / statistics.median(a) for a, b in zip(one, two, strict=True)
            ],
            "two processes of this machine": machine_scaling(arguments.repeat),
        }
    report(results)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if not arguments.no_plot:
        subprocess.run([sys.executable, HERE / "plot.py"], check=True)


def report(results):
    print("\nMB of TFRecord per CPU-second (and per second)\n")
    for name in ROWS:
        found, old = results[name], results["before"][name]
        print(f"{name:8} {'parser alone':14} {results['parser'][name]:7.0f}")
        for what in ("read", "pruned", "inference", "write", "parquet read"):
            print(f"{name:8} {what:14} {found[what]['cpu']:7.0f} {found[what]['wall']:7.0f}")
        for what in ("read", "write"):
            print(
                f"{name:8} {'protobuf ' + what:14} {old[what]['cpu']:7.0f} {old[what]['wall']:7.0f}"
            )
        ratios = {
            "read / parser alone": found["read"]["cpu"] / results["parser"][name],
            "read / Parquet": found["read"]["cpu"] / found["parquet read"]["cpu"],
            "read / protobuf": found["read"]["cpu"] / old["read"]["cpu"],
            "write / protobuf": found["write"]["cpu"] / old["write"]["cpu"],
            "inference cost / read cost": found["read"]["cpu"] / found["inference"]["cpu"],
        }
        print(f"{name:8} ", ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()), "\n")
    one, two = results["one file"]["1 core"], results["one file"]["2 cores"]
    print(f"one file: 1 core {one:.0f} MB/s, 2 cores {two:.0f} MB/s, ratio {two / one:.2f}")
    print("  by pairs of JVMs:", " ".join(f"{r:.2f}" for r in results["one file"]["pairs"]))
    machine = results["one file"]["two processes of this machine"]
    print(f"(two processes that share nothing get {machine:.2f} times as much done as one here)")


if __name__ == "__main__":
    main()
