"""A trained model in the driver: to load, to save, to apply to DataFrames.

The driver itself doesn't import TensorFlow for it; who loads the model does.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument
from gridflow.options import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pandas as pd

#: Kinds of results (`gridflow.keras.results`) that are models.
MODEL_KINDS: Final = ("keras", "tf_keras")


class TrainedModel:
    """The Keras model that a training function returned.

    Parameters
    ----------
    header : mapping
        What `gridflow.keras.results.pack` returned for it.
    folder : Path
        Where its file lies.

    Attributes
    ----------
    path : Path
        The ``.keras`` file.
    """

    def __init__(self, header: Mapping[str, Any], folder: Path) -> None:
        self._header, self._folder = dict(header), folder
        self.path = folder / header["files"][0]

    @property
    def inputs(self) -> dict[str, list[int | None]]:
        """Shapes of the model's inputs by name, in the order in which `predict_udf` takes them."""
        return dict(self._header["inputs"])

    @property
    def outputs(self) -> dict[str, list[int | None]]:
        """Shapes of the model's outputs by name."""
        return dict(self._header["outputs"])

    def load(self) -> Any:
        """Return the model itself; imports TensorFlow into this process."""
        from gridflow.keras import results

        return results.unpack(self._header, self._folder)

    def save(self, path: str | Path) -> Path:
        """Copy the ``.keras`` file.

        Raises
        ------
        InvalidArgument
            The name doesn't end in ``.keras``.
        """
        target = Path(path)
        if target.suffix != ".keras":
            raise InvalidArgument(f"a Keras model's file ends in .keras; got {str(path)!r}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.path, target)
        return target

    def predict_udf(self, *, output: str | None = None, batch_size: int = 1024) -> Any:
        """Return a function of columns that predicts.

        Parameters
        ----------
        output : str, optional
            Which one, for a model with several outputs.
        batch_size : int, default 1024
            Rows that the model is given at once.

        Returns
        -------
        function
            Takes one column per input of the model, in the order of ``model.inputs``; a model with
            a single flat input also takes several numeric columns, which are stacked into it.
            Array columns become the rows of the input. Gives a float column where the model has
            one number per row, else an array of floats (flattened).

        Examples
        --------
        >>> predictions = df.withColumn("p", result.model.predict_udf()("x"))  # doctest: +SKIP
        """
        from pyspark.sql.pandas import functions

        from gridflow.launch.spark_session import run_this_python_where_it_can

        run_this_python_where_it_can()
        whole_number("batch_size", batch_size, 1)
        width = _output_width(self._header, output)
        predict = _predictor(self.path.read_bytes(), self._header, output, width, batch_size)
        pandas_udf: Any = functions.pandas_udf  # its stubs don't know iterators of tuples
        return pandas_udf(predict, "float" if width == 1 else "array<float>")

    def __repr__(self) -> str:
        return f"TrainedModel({str(self.path)!r})"


def _output_width(header: Mapping[str, Any], output: str | None) -> int | None:
    """Return how many numbers a row's prediction has, None if that isn't fixed."""
    shapes: dict[str, list[int | None]] = header["outputs"]
    if not shapes or not header["inputs"]:
        raise InvalidArgument(
            f"{header['class']} doesn't declare its inputs and outputs, as functional and "
            "Sequential models do; load() it and predict in a mapInPandas of your own."
        )
    if output is None and len(shapes) > 1:
        names = ", ".join(repr(name) for name in shapes)
        raise InvalidArgument(f"the model has several outputs; choose one with output=: {names}.")
    if output is not None and output not in shapes:
        names = ", ".join(repr(name) for name in shapes)
        raise InvalidArgument(f"the model has no output {output!r}; it has {names}.")
    shape = shapes[output] if output is not None else next(iter(shapes.values()))
    width = 1
    for size in shape[1:]:
        if size is None:
            return None
        width *= size
    return width


def _predictor(
    model: bytes, header: Mapping[str, Any], output: str | None, width: int | None, batch_size: int
) -> Callable[..., Any]:
    """Return what runs in Spark's Python workers; each loads the model once."""
    import pandas as pd

    names, shapes = list(header["inputs"]), [header["inputs"][n] for n in header["inputs"]]
    outputs = list(header["outputs"])
    chosen = outputs[0] if output is None else output
    key, header = f"{hash(model):x}", dict(header)

    def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        from gridflow.ml import serving

        loaded = serving.load(key, model, header)
        for columns in batches:
            columns = columns if isinstance(columns, tuple) else (columns,)  # noqa: PLW2901
            inputs = serving.inputs(columns, names, shapes)
            predicted = serving.predict(loaded, inputs, chosen, outputs, batch_size)
            flat = predicted.reshape(len(predicted), -1).astype("float32")
            yield pd.Series(flat[:, 0] if width == 1 else list(flat))

    predict.__annotations__ = {
        "batches": _iterator_of_columns(),
        "return": _iterator_of(pd.Series),
    }
    return predict


def _iterator_of_columns() -> Any:
    from collections.abc import Iterator as It

    import pandas as pd

    return It[tuple[pd.Series, ...]]


def _iterator_of(kind: type) -> Any:
    from collections.abc import Iterator as It

    return It[kind]  # type: ignore[valid-type]
