"""A quick check that gridflow works on this machine: ``python -m gridflow.testing.smoke``.

Two local workers train one Keras model together, without Spark. If pyspark and Java are installed,
Spark also writes and reads a TFRecord file with gridflow's jar. With ``--spark``, each part of
gridflow that uses Spark is checked on two executors.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import platform
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow import LocalLauncher, SparkLauncher, TensorflowDistributor, predict_udf
from gridflow.tfrecord import jar, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow import Backend, TrainingContext

__all__ = ["smoke", "smoke_on_spark"]

_ROWS: Final = 1024
_SLOPE: Final = 2.0
#: Largest allowed error of the trained slope; before training it is more than 1.
_CLOSE: Final = 0.05
_QUIET: Final[dict[str, Any]] = {"logs": "none", "progress": False}
_PACKAGES: Final = (
    *("gridflow", "tensorflow", "tensorflow-cpu", "tf-nightly-cpu", "keras", "keras-nightly"),
    *("jax", "pyspark", "pyarrow", "pandas", "numpy"),
)


def smoke() -> list[str]:
    """Train a small model on two local workers, and write a TFRecord file with Spark.

    Takes about ten seconds.

    Returns
    -------
    list of str
        One line for each check.

    Raises
    ------
    RuntimeError
        If a check ran but its result is wrong.
    GridflowError
        If the training job fails.
    """
    return [_described(_versions()), _train_locally(), _tfrecords_if_possible()]


def smoke_on_spark() -> dict[str, str | Exception]:
    """Check each part that uses Spark, on two local executors (a ``local-cluster``).

    Runs a job on a pandas DataFrame, pushes rows into a running job, and checks the Spark ML
    estimator, a model as a column function, and TFRecord files. If JAX is installed, it also runs a
    job on JAX. Takes a minute or two. All parts run, even if some fail.

    Returns
    -------
    dict of str to (str or Exception)
        The result or the error of each part.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local-cluster[2,2,1024]")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    # Add the jar now: a jar that is added later may be missing in some of the session's threads.
    spark: Any = builder.config("spark.jars", str(jar())).getOrCreate()
    found: dict[str, str | Exception] = {}
    try:
        spark.sparkContext.setLogLevel("ERROR")
        for name, part in _PARTS.items():
            try:
                found[name] = part(spark)
            except Exception as error:  # noqa: BLE001 (reported as this part's result)
                found[name] = error
    finally:
        spark.stop()
    return found


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _described(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _model() -> Any:
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.3), "mse")
    return model


def _learn(ctx: TrainingContext) -> float:
    with ctx.strategy.scope():
        model = _model()
    rows = ctx.dataset(batch_size=64, features=[["x"]], label="y")
    model.fit(rows, epochs=4, verbose=0, callbacks=ctx.callbacks())
    return _slope(model)


def _learn_from_stream(ctx: TrainingContext) -> float:
    with ctx.strategy.scope():
        model = _model()
    model.fit(ctx.stream(64, features=[["x"]], label="y"), verbose=0, callbacks=ctx.callbacks())
    return _slope(model)


def _slope(model: Any) -> float:
    return float(model.get_weights()[0][0, 0])


def _checked(slopes: Sequence[float]) -> str:
    if len(set(slopes)) != 1 or abs(slopes[0] - _SLOPE) > _CLOSE:
        raise RuntimeError(f"two workers learned slopes {list(slopes)}, expected {_SLOPE} on both")
    return f"two workers learned slope {slopes[0]:.3f} (expected {_SLOPE})"


def _pandas() -> Any:
    import numpy as np
    import pandas as pd

    x = np.linspace(-1, 1, _ROWS, dtype="float32")
    return pd.DataFrame({"x": x, "y": _SLOPE * x, "name": [f"row {i}" for i in range(_ROWS)]})


def _frame(spark: Any) -> Any:
    half = _ROWS / 2
    x = f"float((id - {half}) / {half})"
    return spark.range(_ROWS).selectExpr(f"{x} AS x", f"{x} * float({_SLOPE}) AS y")


def _train_locally() -> str:
    distributor = TensorflowDistributor(2, launcher=LocalLauncher(), **_QUIET)
    return _checked(distributor.run(_learn, data=_pandas()).values)


def _train(spark: Any, backend: Backend = "tensorflow") -> str:
    distributor = TensorflowDistributor(2, launcher=SparkLauncher(spark), backend=backend, **_QUIET)
    return _checked(distributor.run(_learn, data=_pandas()).values)


def _train_on_jax(spark: Any) -> str:
    if importlib.util.find_spec("jax") is None:
        return "skipped: JAX isn't installed"
    return _train(spark, "jax")


def _feed(spark: Any) -> str:
    distributor = TensorflowDistributor(2, launcher=SparkLauncher(spark), **_QUIET)
    with distributor.start(_learn_from_stream) as cluster:
        cluster.feed(_frame(spark), epochs=4)
    return _checked(cluster.result().values)


def _estimate(spark: Any) -> str:
    from gridflow.ml import KerasEstimator

    options: dict[str, Any] = {"featuresCol": "x", "labelCol": "y", "numWorkers": 2, "seed": 1}
    fitted = KerasEstimator(model=_model, epochs=4, **options).fit(_frame(spark))
    return _close(fitted.transform(_frame(spark)))


def _predict(spark: Any) -> str:
    import numpy as np

    model = _model()
    model.set_weights([np.array([[_SLOPE]])])
    return _close(_frame(spark).withColumn("prediction", predict_udf(model)("x")))


def _close(predicted: Any) -> str:
    table = predicted.selectExpr("y", "float(prediction) AS prediction").toPandas()
    off = float((table["y"] - table["prediction"]).abs().max())
    if len(table) != _ROWS or off > _CLOSE:
        raise RuntimeError(f"Spark predicted {len(table)} of {_ROWS} rows, with errors up to {off}")
    return f"Spark predicted {_ROWS} rows, with errors up to {off:.3f}"


def _tfrecords(spark: Any) -> str:
    with tempfile.TemporaryDirectory(prefix="gridflow-smoke-") as folder:
        path = str(Path(folder, "rows"))
        spark.range(_ROWS).write.format("tfrecord").save(path)
        found = spark.read.format("tfrecord").load(path).count()
        again = sum(read_table(part).num_rows for part in Path(path).glob("part-*"))
    if {found, again} != {_ROWS}:
        raise RuntimeError(f"of {_ROWS} rows in TFRecord files, Spark read {found}, Python {again}")
    return f"Spark wrote {_ROWS} rows to a TFRecord file and read them"


def _tfrecords_if_possible() -> str:
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        return "TFRecord check skipped: it needs pyspark and Java"
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.jars", str(jar())).getOrCreate()
    try:
        return _tfrecords(spark)
    finally:
        spark.stop()


_PARTS: Final[dict[str, Callable[[Any], str]]] = {
    "job": _train,
    "feed": _feed,
    "estimator": _estimate,
    "predict_udf": _predict,
    "tfrecord": _tfrecords,
    "jax": _train_on_jax,
}


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gridflow.testing.smoke", description=__doc__)
    parser.add_argument("--spark", action="store_true", help="check each part on two executors")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --spark: write the results")
    given = parser.parse_args()
    if not given.spark:
        sys.stdout.writelines(f"{line}\n" for line in smoke())
        return 0
    print(_described(_versions()), flush=True)  # noqa: T201
    found = smoke_on_spark()
    failed = {name: said for name, said in found.items() if isinstance(said, Exception)}
    for name, said in found.items():
        print(f"{name}: {'FAILED' if name in failed else said}")  # noqa: T201
    for error in failed.values():
        traceback.print_exception(error)
    if given.json:
        texts = {name: f"{type(error).__name__}: {error}" for name, error in failed.items()}
        passed = {name: said for name, said in found.items() if name not in failed}
        results = {"versions": _versions(), "passed": passed, "failed": texts}
        given.json.write_text(json.dumps(results, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(_main())
