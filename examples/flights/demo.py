"""Flight delays on a real Spark cluster: ``make demo``, or ``python examples/flights/demo.py``.

Starts a standalone cluster of two workers on this machine, prepares 336,776 flights with Spark SQL,
trains a Keras model on both workers, and compares it with two baselines on flights it never saw.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import flights
from training import train

from gridflow import TensorflowDistributor
from gridflow.testing.cluster import StandaloneCluster


def main():
    """Run the whole story."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo"), help="folder for results"
    )
    output = parser.parse_args().output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    step("Starting a Spark cluster: a master and two workers")
    with StandaloneCluster(workers=2, cores=1, memory="3g") as cluster:
        spark = cluster.session(
            spark_executor_memory="1500m",
            spark_sql_shuffle_partitions=4,
            spark_sql_session_timeZone="UTC",
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            results = tell(spark, output)
        finally:
            spark.stop()
    print(results)
    print(f"\nAll in all {time.monotonic() - began:.0f} seconds.")


def tell(spark, output):
    """Prepare, train, compare; return what is printed at the end."""
    step("Reading and joining the CSV files with Spark SQL")
    count = flights.load(spark, output / "data")
    train_rows, validation_rows, test_rows = flights.prepare(spark)
    sizes = [frame.count() for frame in (train_rows, validation_rows, test_rows)]
    print(
        f"{count:,} flights; {sizes[0]:,} to train on, {sizes[1]:,} to validate, {sizes[2]:,} held"
    )

    step("Training a Keras model on two workers (MultiWorkerMirroredStrategy)")
    distributor = TensorflowDistributor(
        num_workers=2, seed=1, logs="chief", job_dir=output / "jobs", tensorboard=True
    )
    result = distributor.run(
        train,
        *facts_about(train_rows),
        data={"train": train_rows, "validation": validation_rows},
    )
    wrong = result.ledger.check()
    print("\n".join(wrong) or "The ledger balances: every row is accounted for on every rank.")
    saved = result.model.save(output / "flights.keras")

    step("Predicting the flights held back, as a column of a DataFrame")
    predict = result.model.predict_udf()
    predictions = test_rows.withColumn("predicted", predict(*input_columns(result.model)))
    predictions = predictions.select("carrier", "origin", "dest", "arr_delay", "predicted").cache()
    predictions.show(5)

    step("Fitting the baselines: the mean, and Spark ML's linear regression")
    scores = {
        "the mean of all flights": score_of_mean(train_rows, test_rows),
        "linear regression (Spark ML)": score_of_linear(train_rows, test_rows),
        "Keras on two workers": score(predictions, "predicted"),
    }
    picture = draw(result.history, output / "learning-curve.png")
    best = min(scores, key=lambda name: scores[name][0])
    if best != "Keras on two workers":
        raise SystemExit(f"{table(scores)}\nThe model lost against {best}.")
    return "\n".join(
        [
            "",
            table(scores),
            "",
            f"Learning curve:  {picture}",
            f"Saved model:     {saved}",
            f"TensorBoard:     tensorboard --logdir {result.tensorboard_dir}",
            f"Logs:            {result.job_dir / 'logs'}",
        ]
    )


def facts_about(rows):
    """Return the names in each text column, and mean and deviation of each number."""
    from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

    numbers = [
        f(name).alias(f"{f.__name__}_{name}")
        for name in flights.NUMBERS
        for f in (F.mean, F.stddev)
    ]
    names = [F.collect_set(name).alias(name) for name in flights.TEXTS]
    facts = rows.agg(*numbers, *names).first()
    vocabularies = {name: sorted(facts[name]) for name in flights.TEXTS}
    statistics = {
        name: (facts[f"mean_{name}"], facts[f"stddev_{name}"]) for name in flights.NUMBERS
    }
    return vocabularies, statistics


def input_columns(model):
    """Return a column for each input of the model, in its order."""
    from pyspark.sql import functions as F  # noqa: N812

    return [F.array(*flights.NUMBERS) if name == "numbers" else name for name in model.inputs]


def score(predictions, column):
    """Return root mean square and mean absolute error, in minutes."""
    from pyspark.sql import functions as F  # noqa: N812

    error = F.col(column) - F.col("arr_delay")
    row = predictions.agg(F.sqrt(F.mean(error * error)), F.mean(F.abs(error))).first()
    return row[0], row[1]


def score_of_mean(train_rows, test_rows):
    """Predict the same for all."""
    from pyspark.sql import functions as F  # noqa: N812

    mean = train_rows.agg(F.mean("arr_delay")).first()[0]
    return score(test_rows.withColumn("p", F.lit(mean)), "p")


def score_of_linear(train_rows, test_rows):
    """Fit a linear model of the same columns, the names one-hot encoded."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import OneHotEncoder, StringIndexer, VectorAssembler
    from pyspark.ml.regression import LinearRegression

    indexed = [f"{name}_index" for name in flights.TEXTS]
    encoded = [f"{name}_code" for name in flights.TEXTS]
    stages = [
        StringIndexer(inputCols=flights.TEXTS, outputCols=indexed, handleInvalid="keep"),
        OneHotEncoder(inputCols=indexed, outputCols=encoded),
        VectorAssembler(inputCols=[*flights.NUMBERS, *encoded], outputCol="features"),
        LinearRegression(labelCol="arr_delay", predictionCol="p", regParam=1e-3),
    ]
    return score(Pipeline(stages=stages).fit(train_rows).transform(test_rows), "p")


def draw(history, path):
    """Draw the learning curve; return its path."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    epochs = range(1, len(history["mae"]) + 1)
    axes.plot(epochs, history["mae"], marker="o", label="training")
    axes.plot(epochs, history["val_mae"], marker="s", label="validation")
    axes.set(
        xlabel="epoch",
        ylabel="mean absolute error (minutes)",
        title="Arrival delays of flights from New York, two workers",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


def table(scores):
    """Return the scores as lines to print."""
    lines = [
        "                                root mean square error    mean absolute error",
        "-" * 79,
    ]
    lines += [
        f"{name:<32}{rmse:>14.2f} minutes{mae:>15.2f} minutes"
        for name, (rmse, mae) in scores.items()
    ]
    return "\n".join(lines)


def step(title):
    """Say what comes next."""
    print(f"\n== {title}", flush=True)


if __name__ == "__main__":
    main()
