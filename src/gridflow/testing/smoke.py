"""A short look at whether gridflow works here: ``python -m gridflow.testing.smoke``.

Two workers on this machine train one Keras model together, without Spark. Where pyspark and Java
are installed, Spark's JVM also writes and reads a TFRecord file with gridflow's jar.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow.tfrecord import jar

if TYPE_CHECKING:
    from gridflow import TrainingContext

__all__ = ["smoke"]

_ROWS: Final = 1024
_SLOPE: Final = 2.0
#: What the model may be off after its epochs; it begins more than 1 away.
_CLOSE: Final = 0.05
_PACKAGES: Final = ("gridflow", "tensorflow", "tensorflow-cpu", "keras", "pyspark", "pyarrow")


def smoke() -> list[str]:
    """Train a small model on two workers of this machine, and write a TFRecord file with Spark.

    Takes some ten seconds.

    Returns
    -------
    list of str
        What was tried, one line each.

    Raises
    ------
    RuntimeError
        If something ran, but its result is wrong.
    GridflowError
        If something doesn't run.
    """
    return [_versions(), _train(), _tfrecords()]


def _versions() -> str:
    installed = []
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed.append(f"{name} {importlib.metadata.version(name)}")
    return f"Python {platform.python_version()}, {', '.join(installed)}"


def _learn(ctx: TrainingContext) -> float:
    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.3), "mse")
    rows = ctx.dataset("rows", batch_size=64, features="x", label="y")
    model.fit(rows, epochs=4, verbose=0)
    return float(model.get_weights()[0][0, 0])


def _train() -> str:
    import numpy as np

    x = np.linspace(-1, 1, _ROWS, dtype="float32")[:, None]
    distributor = TensorflowDistributor(2, launcher=LocalLauncher(), logs="none", progress=False)
    slopes = distributor.run(_learn, data={"rows": {"x": x, "y": _SLOPE * x}}).values
    if len(set(slopes)) != 1 or abs(slopes[0] - _SLOPE) > _CLOSE:
        raise RuntimeError(f"two workers learnt the slopes {list(slopes)}, not {_SLOPE} both")
    return f"two workers learnt the slope {slopes[0]:.3f} of {_SLOPE}"


def _tfrecords() -> str:
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        return "no TFRecord file: pyspark and Java aren't both installed"
    from pyspark.sql import SparkSession

    spark: Any = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", str(jar()))
        .getOrCreate()
    )
    try:
        with tempfile.TemporaryDirectory(prefix="gridflow-smoke-") as folder:
            path = str(Path(folder, "rows"))
            spark.range(_ROWS).write.format("tfrecord").save(path)
            found = spark.read.format("tfrecord").load(path).count()
    finally:
        spark.stop()
    if found != _ROWS:
        raise RuntimeError(f"of {_ROWS} rows in a TFRecord file, Spark read {found}")
    return f"Spark wrote {_ROWS} rows to a TFRecord file and read them"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in smoke())
