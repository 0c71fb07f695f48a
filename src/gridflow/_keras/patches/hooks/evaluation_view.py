"""Data of ``ctx.dataset`` in ``fit``, ``evaluate`` and ``predict``, on all backends.

Rows count once outside training: Keras evaluates and predicts on a dataset's `EvaluationView`. And
with ``steps_per_epoch`` the rows start over when they end.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.dataset.evaluation_view import is_attached, view_of
from gridflow._keras.patches.hooks.position import first_dimension, keep_pass, spec_of
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import inputs_of
from gridflow._keras.patches.registry import Hook
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_METHODS: Final = ("fit", "evaluate", "predict")
_TO_FIT: Final = (
    "tail='spread' spreads uneven rows over batches of two sizes: use ctx.dataset(tail='repeat') "
    "or tail='drop', with the model's batch_size."
)
_TO_TEST: Final = (
    "Outside training each row counts once, so batches are full only if the number of rows of "
    "each rank is a multiple of that. Feed as many, or evaluate and predict with a model with the "
    "same weights whose Input has no batch_size."
)


def hook(
    cls: Any,
    signatures: Any,
    evaluating: Callable[[Any, Any], AbstractContextManager[None]],
    predicting: Callable[[Any, Any], AbstractContextManager[Callable[[Any], Any]]],
) -> Hook:
    """Return the hook that makes ``fit`` (in validation), ``evaluate``, ``predict`` use a row once.

    `cls`: Of models.
    `signatures`: The class in which these methods have all their parameters by name.
    `evaluating`, `predicting`: Context managers around the original call; they get the model and
        the `EvaluationView`, to predict also None, for other data. What ``predicting`` yields is
        applied to the predictions.
    """
    known = {name: inspect.signature(getattr(signatures, name)) for name in _METHODS}

    def exchanged(name: str, parameter: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Return the `EvaluationView` that was passed, and the arguments with its view."""
        given = known[name].bind(None, *args, **kwargs)
        data = given.arguments.get(parameter)
        once = view_of(data)
        if once is None:
            _refuse_derived(data, name)
        else:
            given.arguments[parameter] = once.view
        return once, given.args[1:], given.kwargs

    def fit_once(fit: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        once, args, kwargs = exchanged("fit", "validation_data", args, kwargs)
        given = known["fit"].bind(self, *args, **kwargs)
        data = given.arguments.get("x")
        if is_attached(data):
            _check_rows(self, data, _TO_FIT)
        if once is not None:
            _check_rows(self, once.view, _TO_TEST)
        given.arguments["x"] = _going_on(self, data, given.arguments.get("steps_per_epoch"))
        return fit(*given.args, **given.kwargs)

    def evaluate_once(evaluate: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        once, args, kwargs = exchanged("evaluate", "x", args, kwargs)
        if once is None:
            return evaluate(self, *args, **kwargs)
        _check_rows(self, once.view, _TO_TEST)
        with evaluating(self, once):
            return evaluate(self, *args, **kwargs)

    def predict_once(predict: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        once, args, kwargs = exchanged("predict", "x", args, kwargs)
        if once is not None:
            _check_rows(self, once.view, _TO_TEST)
        with predicting(self, once) as arranged:
            found = predict(self, *args, **kwargs)
        return arranged(found)

    def install() -> None:
        for name, once in zip(_METHODS, (fit_once, evaluate_once, predict_once), strict=True):
            wrap(cls, name, once, Layer.ROWS)

    return Hook("rows count once in evaluate, validation and predict", install)


def _going_on(model: Any, data: Any, steps: int | None) -> Any:
    """Return the data of a fit: with ``steps_per_epoch``, those that start over when they end.

    Keras would end the training there. A user's own data keep their end, as in one process.
    """
    known = _length(data) if steps and hasattr(data, "repeat") else None
    goes_on = known not in {None, steps} and view_of(data) is not None
    keep_pass(model, known if goes_on else None)
    return data.repeat() if goes_on else data


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:  # unknown, or endless
        return None


def _refuse_derived(data: Any, name: str) -> None:
    """Reject what is made of a dataset whose ranks have different numbers of rows.

    Raises `InvalidArgument`: It isn't known which rows count.
    """
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is None or not isinstance(data, tensorflow.data.Dataset):
        return
    for each in inputs_of(data):
        view = view_of(each)
        if view is not None and not view.is_even:
            raise InvalidArgument(
                f"model.{name}() counts each row once, but the ranks have different numbers of "
                "rows, and this dataset is no longer the one of ctx.dataset(). Only map() and "
                "take() keep track of the rows: use ctx.dataset(…).map(…), and pass batch_size=, "
                "shuffle= and prefetch= to ctx.dataset()."
            )


def _check_rows(model: Any, data: Any, way_out: str) -> None:
    """Reject batches of several sizes for a model with a fixed batch size.

    Raises `InvalidArgument`: The message says what to do.
    """
    wanted = {each.shape[0] for each in getattr(model, "inputs", None) or ()} - {None}
    if not wanted or not hasattr(data, "element_spec"):  # arrays, of other backends
        return
    rows = first_dimension(spec_of(data))
    if {rows} != wanted:
        given = "batches of several sizes" if rows is None else f"batches of {rows} rows"
        raise InvalidArgument(
            f"the model takes batches of exactly {', '.join(map(str, wanted))} rows on each "
            "replica (an Input with batch_size=, as stateful layers need), but this dataset has "
            f"{given}. {way_out}"
        )


def known_function(once: Any, model: Any, kind: str) -> Any:
    """Return the function that `keep_function` kept, unless the model was recompiled."""
    compiled, function = once.functions.get(model, {}).get(kind, ([], None))
    now = _compiled(model)
    is_same = len(compiled) == len(now) and all(
        one is other for one, other in zip(compiled, now, strict=True)
    )
    return function if is_same else None


def keep_function(once: Any, model: Any, kind: str) -> None:
    """Keep the model's current ``test_function`` or ``predict_function``."""
    function = getattr(model, f"{kind}_function")
    once.functions.setdefault(model, {})[kind] = _compiled(model), function


def _compiled(model: Any) -> list[Any]:
    """Return objects that ``compile`` replaces, as it does with the functions."""
    names = ("_compile_metrics", "_compile_loss", "compiled_metrics", "compiled_loss")
    return [vars(model).get(name) for name in names]
