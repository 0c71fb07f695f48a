"""Maps columns to the inputs and outputs of a model. Pure.

The values of ``featuresCol`` and ``labelCol`` are converted to the forms of
`gridflow._feed.selection` once the model's inputs and outputs are known, in the same way in the
workers, which train, and in the driver, which predicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridflow.errors import InvalidArgument, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

#: A column, or several stacked ones.
Place = str | list[str]
#: The name that `gridflow.predict_udf` gives to the single input of a subclassed model.
ONLY_INPUT = "input"


def checked_form(value: Any) -> Any:
    """Return the value of ``featuresCol`` or ``labelCol`` as plain lists and dicts.

    Raises `TypeError`: It has none of the allowed forms.
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Mapping) and value:
        return {_text(name): _place(columns) for name, columns in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        if len(value) == 1 and not isinstance(value[0], str):
            return [_place(value[0])]
        return [_text(column) for column in value]
    raise TypeError(
        "it must be a column's name, a list of names, a list that holds one list of columns to "
        f"combine, or a dict of input or output to column(s); got {value!r}."
    )


def arranged(form: Any, names: Sequence[str], what: str) -> dict[str, Place]:
    """Return the columns of each input or output.

    `form`: The result of `checked_form`.
    `names` (sequence of str): The model's inputs or outputs; at least one.
    Raises `InvalidArgument`: The form doesn't match them.
    """
    listed = ", ".join(map(repr, names))
    if isinstance(form, Mapping):
        for name in form:
            if name not in names:
                raise InvalidArgument(
                    f"the model has no {what} {name!r}; it has {listed}.{did_you_mean(name, names)}"
                )
        missing = [name for name in names if name not in form]
        if missing:
            raise InvalidArgument(
                f"the model's {what}s {', '.join(map(repr, missing))} got no column: "
                f"{dict(form)!r}."
            )
        return {name: form[name] for name in names}
    if isinstance(form, str) or not isinstance(form[0], str):
        columns = [form if isinstance(form, str) else form[0]]
    else:
        columns = list(form)
    if len(names) == 1:
        return {names[0]: columns[0] if len(columns) == 1 else columns}
    if set(columns) == set(names):
        return {name: name for name in names}
    if len(columns) == len(names):
        return dict(zip(names, columns, strict=True))
    raise InvalidArgument(
        f"the model has the {what}s {listed}; say which columns belong to each: "
        f"{{{', '.join(f'{name!r}: …' for name in names)}}}. Got {form!r}."
    )


def feeding_form(form: Any, names: Sequence[str] | None, what: str) -> Any:
    """Return the corresponding argument of ``ctx.dataset``.

    `form`, `what`: As for `arranged`.
    `names` (sequence of str): None or empty if the model doesn't declare them; then a list becomes
        a dict by column name.
    """
    if not names:
        return form
    by_name = arranged(form, names, what)
    if len(names) > 1:
        return by_name
    (place,) = by_name.values()
    return place if isinstance(place, str) else [place]


def undeclared(form: Any) -> dict[str, Place]:
    """Return the columns of each input of a model that doesn't declare them, as in training."""
    if isinstance(form, Mapping):
        return dict(form)
    if isinstance(form, str) or len(form) == 1:
        return {ONLY_INPUT: form if isinstance(form, str) else form[0]}
    return {column: column for column in form}


def check(available: Sequence[str], columns: Collection[str], param: str) -> None:
    """Reject columns that a DataFrame doesn't have, or has twice.

    Raises `SchemaError`: Lists the existing columns.
    """
    for column in columns:
        times = available.count(column)
        if not times:
            raise SchemaError(
                f"{param}: the DataFrame has no column {column!r}. It has: "
                f"{', '.join(available)}.{did_you_mean(column, available)}"
            )
        if times > 1:
            raise SchemaError(
                f"{param}: the DataFrame has {times} columns named {column!r}. Rename or drop all "
                "but one."
            )


def _place(columns: Any) -> Place:
    if isinstance(columns, str):
        return _text(columns)
    if isinstance(columns, Sequence) and not isinstance(columns, bytes) and columns:
        return [_text(column) for column in columns]
    raise TypeError(f"{columns!r} is not a column or a list of columns.")


def _text(value: Any) -> str:
    if isinstance(value, str) and value:
        return str(value)
    raise TypeError(f"{value!r} is not a name.")
