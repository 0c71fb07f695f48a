"""What the benchmarks of inference predict: models, and their rows in Spark and in numpy."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "feed"))

from measure import NUMBERS, cached_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

BATCH = 1024
WORDS = ["the", "of", "a", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "and", "runs"]


@dataclass(frozen=True)
class Case:
    """A model and its rows.

    Attributes
    ----------
    model : function
        Makes the model.
    rows : int
        Cached rows.
    times : int
        How often a query reads them: so many rows would not fit into the cache.
    array : function
        Makes so many rows for ``model.predict``.
    goals : dict of str to tuple
        The least ratio of ``gridflow.predict`` to another road, by CPU time and by the clock; None:
        no goal.
    expressions : list of str or None
        The columns, made of ``id``; None: those of the feed's benchmark.
    columns : list of str
        The columns that are the model's input.
    """

    model: Callable[[], Any]
    rows: int
    times: int
    array: Callable[[int], np.ndarray]
    goals: dict[str, tuple[float | None, float | None]]
    expressions: list[str] | None = None
    columns: tuple[str, ...] = ("x",)

    def frame(self, spark: Any, name: str, times: int | None = None) -> Any:
        """Return the rows: cached, each of them so many times."""
        if self.expressions is None:
            once = cached_frame(spark, name, self.rows)
        else:
            once = spark.range(0, self.rows, 1, 2).selectExpr(*self.expressions).cache()
            assert once.count() == self.rows
        return functools.reduce(type(once).union, [once] * (times or self.times))


def _floats() -> Any:
    import keras

    x = keras.Input((784,), name="x")
    y = keras.layers.Dense(10, "softmax")(keras.layers.Dense(128, "relu")(x))
    return keras.Model(x, y)


def _numbers() -> Any:
    import keras

    x = keras.Input((11,), name="x")
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Dense(32, "relu")(x)))


def _images() -> Any:
    import keras
    from keras import layers

    x = keras.Input((32, 32, 3), dtype="uint8", name="x")
    y = layers.Rescaling(1 / 255)(x)
    y = layers.MaxPooling2D()(layers.Conv2D(16, 3, activation="relu")(y))
    y = layers.MaxPooling2D()(layers.Conv2D(32, 3, activation="relu")(y))
    return keras.Model(x, layers.Dense(10, "softmax")(layers.Flatten()(y)))


def _texts() -> Any:
    import keras
    from keras import layers

    x = keras.Input((), dtype="string", name="x")
    y = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=16)(x)
    y = layers.GlobalAveragePooling1D()(layers.Embedding(32, 32)(y))
    return keras.Model(x, layers.Dense(1, "sigmoid")(y))


def _random(*shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(1).random(shape, np.float32)


def _sentences(rows: int) -> np.ndarray:
    import numpy as np

    words = len(WORDS)
    return np.array(
        [" ".join(WORDS[(row * 7 + k * k) % words] for k in range(8)) for row in range(rows)],
        object,
    )


_LIST = ", ".join(f"'{word}'" for word in WORDS)
_SENTENCE = (
    f"concat_ws(' ', transform(sequence(0, 7), "
    f"k -> array({_LIST})[cast((id * 7 + k * k) % {len(WORDS)} as int)]))"
)
_PIXELS = "transform(sequence(1, 3072), i -> cast((id * 31 + i * 17) % 256 as smallint))"

CASES = {
    "784 floats": Case(
        _floats,
        60_000,
        8,
        lambda rows: _random(rows, 784),
        {"numpy": (0.8, None), "gridflow": (None, 2.5), "predict_batch_udf": (5, None)},
    ),
    "11 numbers": Case(
        _numbers,
        500_000,
        6,
        lambda rows: _random(rows, 11),
        {"gridflow": (3, None)},
        None,
        tuple(NUMBERS),
    ),
    "images of 32 x 32": Case(
        _images,
        8_000,
        6,
        lambda rows: (_random(rows, 32, 32, 3) * 255).astype("uint8"),
        {"numpy": (0.9, None)},
        [f"{_PIXELS} as x", "id % 10 as y"],
    ),
    "texts": Case(
        _texts, 100_000, 6, _sentences, {"numpy": (0.8, None)}, [f"{_SENTENCE} as x", "id as y"]
    ),
}
