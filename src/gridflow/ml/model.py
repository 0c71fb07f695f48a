"""A trained model in the driver: to load, to save, to apply to DataFrames.

The driver itself doesn't import TensorFlow for it; who loads the model does.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument, did_you_mean
from gridflow.spec.options import whole_number
from gridflow.spec.program import dump_by_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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

    def load(
        self, *, custom_objects: Mapping[str, Any] | None = None, safe_mode: bool = True
    ) -> Any:
        """Return the model itself; imports TensorFlow into this process.

        Parameters
        ----------
        custom_objects : mapping of str to class or function, optional
            Layers, losses … of one's own that aren't registered with Keras.
        safe_mode : bool, default True
            Refuse a model that brings Python code of its own, such as that of a Lambda layer.

        Raises
        ------
        GridflowError
            The model can't be read here; the message says what it lacks.
        """
        from gridflow.keras import results

        options = {"custom_objects": dict(custom_objects or {}), "safe_mode": safe_mode}
        return results.unpack(self._header, self._folder, options)

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

    def predict_udf(
        self,
        *,
        output: str | None = None,
        batch_size: int = 1024,
        custom_objects: Mapping[str, Any] | None = None,
        safe_mode: bool = True,
    ) -> Any:
        """Return a function of columns that predicts.

        Parameters
        ----------
        output : str, optional
            Which one, for a model with several outputs.
        batch_size : int, default 1024
            Rows that the model is given at once.
        custom_objects, safe_mode
            As for `load`. Custom objects are sent to the executors.

        Returns
        -------
        function
            Takes one column per input of the model, by the inputs' names, or in the order of
            ``model.inputs``; a model with a single flat input also takes several numeric columns,
            which are stacked into it. Array columns become the rows of the input. Gives a float
            column where the model has one number per row, else an array of floats (flattened).

        Raises
        ------
        InvalidArgument
            Here, or by the function where the columns don't fit the model's inputs.

        Examples
        --------
        >>> predict = result.model.predict_udf()  # doctest: +SKIP
        >>> df.withColumn("p", predict("x"))  # doctest: +SKIP
        >>> df.withColumn("p", predict(age="age", city=df.home_town))  # doctest: +SKIP
        """
        from pyspark.sql.pandas import functions

        from gridflow.launch.spark.session import run_this_python_where_it_can

        run_this_python_where_it_can()
        whole_number("batch_size", batch_size, 1)
        width = _output_width(self._header, output)
        options = dump_by_value(
            {"custom_objects": dict(custom_objects or {}), "safe_mode": safe_mode, "compile": False}
        )
        predict = _predictor(
            self.path.read_bytes(), options, self._header, output, width, batch_size
        )
        pandas_udf: Any = functions.pandas_udf  # its stubs don't know iterators of tuples
        made = pandas_udf(predict, "float" if width == 1 else "array<float>")
        return _checked(made, self.inputs)

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


def _checked(made: Any, inputs: Mapping[str, Sequence[int | None]]) -> Any:
    """Return Spark's function, which from now on looks at the columns it is given at the call."""

    @functools.wraps(made)  # with its attributes: spark.udf.register() takes it, too
    def predict(*columns: Any, **by_input: Any) -> Any:
        return made(*_arranged(columns, by_input, inputs))

    return predict


def _arranged(
    columns: Sequence[Any],
    by_input: Mapping[str, Any],
    inputs: Mapping[str, Sequence[int | None]],
) -> Sequence[Any]:
    """Return the columns in the order of the inputs."""
    names = ", ".join(repr(name) for name in inputs)
    if columns and by_input:
        raise InvalidArgument(
            f"give the model's columns in the order of its inputs ({names}) or all by name; got "
            f"{len(columns)} in order and {', '.join(map(repr, by_input))} by name."
        )
    if by_input:
        for name in by_input:
            if name not in inputs:
                raise InvalidArgument(
                    f"the model has no input {name!r}; it has {names}.{did_you_mean(name, inputs)}"
                )
        missing = ", ".join(repr(name) for name in inputs if name not in by_input)
        if missing:
            raise InvalidArgument(f"the model's inputs {missing} got no column.")
        return [by_input[name] for name in inputs]
    (shape, *others) = inputs.values()
    is_flat = not others and len(shape) == 2  # noqa: PLR2004
    if len(columns) == len(inputs) or (is_flat and columns and shape[1] in (None, len(columns))):
        return columns
    stacked = f", or {shape[1]} columns of numbers" if is_flat and shape[1] != 1 else ""
    raise InvalidArgument(
        f"the model takes one column for each of its inputs ({names}){stacked}; got {len(columns)}."
    )


def _predictor(
    model: bytes,
    options: bytes,
    header: Mapping[str, Any],
    output: str | None,
    width: int | None,
    batch_size: int,
) -> Callable[..., Any]:
    """Return what runs in Spark's Python workers; each loads the model once."""
    import pandas as pd

    names, shapes = list(header["inputs"]), [header["inputs"][n] for n in header["inputs"]]
    outputs = list(header["outputs"])
    chosen = outputs[0] if output is None else output
    key, header = f"{hash(model):x}-{hash(options):x}", dict(header)

    def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        from gridflow.ml import serving

        loaded = serving.load(key, model, options, header)
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
