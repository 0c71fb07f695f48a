"""A driver that materializes a table of Delta's or Iceberg's as it changes, and tells what it saw.

The formats need classes and settings that Spark takes when it starts.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import gridflow
from gridflow import DataError, LocalLauncher, TensorflowDistributor, TrainingFailed
from gridflow._launch.spark import plans

FOLDER = Path(sys.argv[1])
ROWS = "cast(id as float) x, id y"


def session():
    """Return a session that knows both formats."""
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    settings = {
        "spark.jars": os.environ["JARS"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.warehouse.dir": str(FOLDER / "warehouse"),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(FOLDER / "lake"),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


def fit(ctx, rows, fail=False):
    """Train on materialized rows, with checkpoints."""
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if fail and batch == 2:
                raise RuntimeError("on purpose")

    dataset = ctx.parquet_dataset(rows, batch_size=8, features=[["x"]], label="y")
    model.fit(dataset, verbose=0, callbacks=[*ctx.callbacks(), Fail()])


def main():
    """Materialize, change the table, materialize again."""
    form = sys.argv[2]
    spark = session()
    table = "lines" if form == "delta" else "lake.db.lines"
    path, told = str(FOLDER / "written"), {}

    def take(label, rows):
        known = gridflow.materialize(rows, path, files=1)
        told[label] = {name: getattr(known, name) for name in ("is_new", "rows", "source", "key")}
        return known

    def train(rows, **options):
        distributor = TensorflowDistributor(
            1,
            "none",
            launcher=LocalLauncher(),
            checkpoint_dir=str(FOLDER / "checkpoints"),
            checkpoint_every=1,
            logs="none",
            progress=False,
        )
        try:
            distributor.run(fit, rows, **options)
        except (DataError, TrainingFailed) as error:
            return f"{type(error).__name__}: {error}"
        return "trained"

    # Deletions don't touch such a table's files of Delta: they are noted beside them.
    kept = "tblproperties ('delta.enableDeletionVectors' = 'true')" if form == "delta" else ""
    made = f"create table {table} using {form} {kept}"
    spark.sql(f"{made} as select {ROWS} from range(0, 40, 1, 1)")
    before = spark.table(table)
    first = take("first", before.where("y >= 0"))
    told["failed"] = train(first, fail=True)
    take("again", spark.table(table).where("y >= 0"))
    files = sorted(map(str, spark.table(table).inputFiles()))
    spark.sql(f"delete from {table} where y = 7")
    told["same files"] = files == sorted(map(str, spark.table(table).inputFiles()))
    new = take("deleted", spark.table(table).where("y >= 0"))
    told["old rows"], told["new rows"] = train(first), train(new)
    spark.sql(f"insert into {table} select {ROWS} from range(40, 50)")
    take("inserted", spark.table(table).where("y >= 0"))
    # Whether Spark reads what a table was when the DataFrame was made, or what it is: so do we.
    told["seen before"] = before.count()
    take("made before", before)
    if form == "delta":
        old, query = 0, f"select * from {table} version as of 0"
        option = spark.read.option("versionAsOf", 0).table(table)
    else:
        known = spark.sql(f"select snapshot_id from {table}.snapshots order by committed_at")
        old = known.first()[0]
        query = f"select * from {table} version as of {old}"
        # What was inserted since; the table's version is the newest all the same.
        option = spark.read.option("start-snapshot-id", old).table(table)
    told["old"] = str(old)
    take("travelled", spark.sql(query))
    take("travelled again", spark.sql(query))
    spark.sql(f"insert into {table} select {ROWS} from range(50, 60)")
    take("travelled after a change", spark.sql(query))
    told["keys"] = [plans.identify(rows, None).key for rows in (option, spark.table(table))]
    told["counts"] = [option.count(), spark.table(table).count()]
    # Another table of that name whose versions are counted anew.
    spark.sql(f"drop table {table} {'purge' if form == 'iceberg' else ''}")
    spark.sql(f"{made} as select {ROWS} from range(100, 140, 1, 1)")
    take("made anew", spark.table(table).where("y >= 0"))
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
