"""Preprocessing layers that learn from a DataFrame: ``gridflow.ml.adapt``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gridflow._feed.ingest.dataframes import is_dataframe
from gridflow.errors import InvalidArgument, did_you_mean
from gridflow.ml import layers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from gridflow.ml.layers import Learner
    from gridflow.ml.statistics import Want


def adapt(target: Any, df: DataFrame) -> None:
    """Adapt Keras's preprocessing layers to a DataFrame, with Spark's aggregates.

    ``layer.adapt`` needs all rows in the driver's memory. Here Spark computes the same state
    where the rows are: means and variances, vocabularies, document frequencies, quantiles. The
    layers end in the same state as after Keras's own ``adapt``, and are saved with their model.

    Parameters
    ----------
    target
        What to adapt:

        * a dict of layers, or lists of them, by column: ``{"age": normalization, "city":
          lookup}``. A tuple combines columns of numbers for a Normalization:
          ``{("width", "height"): normalization}``;
        * one layer, for a DataFrame with one column, or named like its column;
        * a list of layers named like their columns;
        * a functional or Sequential model: layers that take one of its inputs adapt to the
          column with the input's name; layers that were created with their state aren't
          changed;
        * a ``keras.utils.FeatureSpace``: each feature adapts to the column with its name.

        Layers: Normalization, StringLookup, IntegerLookup, TextVectorization, Discretization and
        CategoryEncoding, whose ``num_tokens`` becomes the greatest number plus one.
    df : DataFrame
        Columns that no layer needs aren't read. Each layer ignores the nulls of its column.
        Arrays of one shape and Spark ML vectors are rows of that shape.

    Raises
    ------
    InvalidArgument
        Layers that can't be adapted, or missing columns.
    SchemaError
        Columns of a type that the layer doesn't accept.
    DataError
        Nothing to adapt to: no rows, or only nulls.

    Notes
    -----
    One pass over the DataFrame, whatever the layers are: Spark's Python workers aggregate each
    partition, and Spark combines the parts. The boundaries of a Discretization are values of the
    column, whose ranks are off by at most a tenth of the layer's ``epsilon`` of all rows (by
    default 0.1 %); Keras's own are interpolated, and off by up to ``epsilon``. If the pass fails,
    no layer is changed.

    Examples
    --------
    >>> city = keras.layers.StringLookup(max_tokens=1000)  # doctest: +SKIP
    >>> gridflow.ml.adapt({"city": city, "age": keras.layers.Normalization()}, df)  # doctest: +SKIP
    """
    if not is_dataframe(df) or df.isStreaming:
        what = "a streaming DataFrame" if is_dataframe(df) else type(df).__name__
        raise InvalidArgument(
            f"adapt needs a DataFrame of Spark's that ends; got {what}. To data in the driver, "
            "layers adapt by themselves: layer.adapt(data)."
        )
    learners = list(_learners(target, df.columns))
    if not learners:
        raise InvalidArgument(
            "there is no layer to adapt: all layers were given their state when they were created."
        )
    limits: dict[Want, int | None] = {}
    for learner in learners:
        want, limit = learner.want(), learner.limit()
        before = limits.get(want, 0)
        limits[want] = None if limit is None or before is None else max(before, limit)
    from gridflow.ml import aggregates

    found = aggregates.find(df, limits)
    for learner in learners:
        learner.learn(found[learner.want()])
    if _is_feature_space(target):
        _finish(target)


def _learners(target: Any, there: list[str]) -> Iterable[Learner]:
    keras = sys.modules.get("keras")
    if isinstance(target, Mapping):
        for key, value in target.items():
            columns = list(key) if isinstance(key, tuple) else [key]
            for layer in value if isinstance(value, list | tuple) else [value]:
                yield _learner(layer, columns, there)
    elif isinstance(target, list | tuple):
        for layer in target:
            yield _learner(layer, [_name(layer)], there)
    elif _is_feature_space(target):
        for name, layer in target.preprocessors.items():
            if layers.learner_class(layer) is not None and not _knows(layer):
                yield _learner(layer, [name], there)
    elif keras is not None and isinstance(target, keras.Model):
        yield from _of_model(target, there)
    elif len(there) == 1:
        yield _learner(target, there, there)
    else:
        yield _learner(target, [_name(target)], there)


def _name(layer: Any) -> str:
    layers.learner(layer, [""])  # rejects objects that aren't layers
    return str(layer.name)


def _knows(layer: Any) -> bool:
    """Return whether a layer already has its state; category sizes always exist."""
    keras = sys.modules["keras"]
    found = layers.learner_class(layer)
    return isinstance(layer, keras.layers.CategoryEncoding) or (
        found is not None and found(layer, [""]).is_given
    )


def _learner(layer: Any, columns: list[Any], there: list[str]) -> Learner:
    for name in columns:
        if name not in there:
            listed = ", ".join(map(repr, there))
            raise InvalidArgument(
                f"the DataFrame has no column {name!r} for {getattr(layer, 'name', layer)!r}; it "
                f"has {listed}.{did_you_mean(str(name), there)} Say which layer adapts to which "
                "column: adapt({'column': layer}, df)."
            )
    return layers.learner(layer, columns)


def _of_model(model: Any, there: list[str]) -> Iterable[Learner]:
    """Yield the layers that take an input of a model itself."""
    from gridflow._keras import results

    inputs = results.declared(model, "input")
    if not inputs:
        raise InvalidArgument(
            f"the model {model.name!r} declares no inputs: begin a Sequential with keras.Input, or "
            "say which layer adapts to which column, adapt({'column': layer}, df)."
        )
    for layer in model.layers:
        if layers.learner_class(layer) is None or _knows(layer):
            continue
        taken = _taken(layer)
        names = [name for name, tensor in inputs.items() if tensor is taken]
        if not names:
            raise InvalidArgument(
                f"the layer {layer.name!r} takes the output of other layers, not an input of the "
                f"model. Say which column holds its input: adapt({{'column': layer}}, "
                "df)."
            )
        is_only = len(there) == len(inputs) == 1
        yield _learner(layer, there if is_only else names, there)


def _taken(layer: Any) -> Any:
    try:
        return layer.input
    except (AttributeError, ValueError):  # called several times, or never
        return None


def _is_feature_space(target: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(target, keras.utils.FeatureSpace)


def _finish(space: Any) -> None:
    """Make a FeatureSpace create the layers after the adapted ones."""
    space.build_from_config({})  # as Keras does when it loads one with adapted layers
    space.get_inputs()
    space.built = True
