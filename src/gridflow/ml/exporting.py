"""Exports a trained model to serving formats, and compares the result with the original."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._agent.folder import temporary_folder
from gridflow._files import transfer
from gridflow._spec import backends
from gridflow._spec.option_checks import choose
from gridflow.errors import DataError, GridflowError, InvalidArgument, MissingDependency
from gridflow.ml import columns
from gridflow.ml.columns import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from gridflow._files.systems import Where

    #: Takes the model's inputs by name, returns the outputs in order.
    Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]

#: Rows compared at a time.
_ROWS: Final = 256


@dataclass(frozen=True)
class _Format:
    """An export format.

    `suffix`: The suffix of its file; empty for a folder.
    `checks_with`: The package for checking it; None: the backend itself.
    `run`: Takes the path and the model's inputs, returns a function that runs the model.
    """

    keras: str
    suffix: str
    checks_with: str | None
    run: Callable[[Path, Sequence[str]], Run]


def export(
    load: Callable[[], Any],
    flavour: str,
    path: str | Path,
    *,
    format: str = "saved_model",  # noqa: A002 (as Keras calls it)
    check: Any = None,
    tolerance: float = 1e-4,
    **options: Any,
) -> Path | str:
    """Export a trained model, for ``result.export`` and `TrainedModel.export`.

    `load`: Returns the Keras model.
    `flavour`: The model's Keras flavour.
    `path`, `format`, `check`, `tolerance`, `**options`: As in `TrainedModel.export`.
    """
    kind = "saved_model" if format == "tf_saved_model" else format
    choose("format", kind, tuple(_FORMATS))
    chosen, place = _FORMATS[kind], transfer.destination(path)
    target = place if isinstance(place, Path) else Path(place.path)
    if not tolerance >= 0:
        raise InvalidArgument(f"tolerance must be a number of at least 0; got {tolerance!r}.")
    if chosen.suffix and target.suffix != chosen.suffix:
        raise InvalidArgument(
            f"a file of the format {kind!r} must end in {chosen.suffix}; got {str(path)!r}."
        )
    _refuse_what_is_there(place, target)
    rows = None if check is None else _rows(check)
    keras_model = load()
    _check_packages(kind, flavour, is_checked=rows is not None)
    inputs = {} if rows is None else _inputs(keras_model, rows)
    beside = None
    if isinstance(place, Path):
        beside = target.parent
        beside.mkdir(parents=True, exist_ok=True)
    # Written completely, or not at all.
    with temporary_folder("gridflow-export-", beside) as folder:
        written = folder / target.name
        _write(keras_model, written, chosen, flavour, options)
        if inputs:
            run = chosen.run(written, list(inputs))
            _compare(keras_model, run, inputs, kind, tolerance)
            del run
        # Some formats have a second file; the main file comes last.
        parts = sorted(folder.iterdir(), key=lambda part: part.name == target.name)
        for part in parts:
            _refuse_what_is_there(place, target.with_name(part.name))
        for part in parts:
            if isinstance(place, Path):
                part.rename(target.with_name(part.name))
            else:
                transfer.put(part, place.at(str(target.with_name(part.name))))
    return target if isinstance(place, Path) else str(path)


def _refuse_what_is_there(place: Path | Where, target: Path) -> None:
    if not isinstance(place, Path):
        transfer.refuse_what_is_there(place.at(str(target)))
    elif target.exists():
        raise InvalidArgument(f"{target} already exists. Delete it, or choose another path.")


def _check_packages(kind: str, flavour: str, *, is_checked: bool) -> None:
    """Reject a format that can't be written or checked with the installed packages.

    Raises `InvalidArgument`: The model's Keras or backend doesn't support the format.
    Raises `MissingDependency`: Names the packages.
    """
    needed: tuple[str, ...] = ()
    if flavour == "keras":
        backend = sys.modules["keras"].config.backend()
        by_format = backends.of(backend).export_packages
        if kind not in by_format:
            raise InvalidArgument(
                f"Keras on {backend} can't export the format {kind!r}; it supports "
                f"{', '.join(map(repr, by_format))}."
            )
        needed = by_format[kind]
    elif _FORMATS[kind].checks_with is not None:
        raise InvalidArgument(f"tf_keras can only export 'saved_model'; got {kind!r}.")
    runs = _FORMATS[kind].checks_with
    wanted = dict.fromkeys([*needed, *([runs] if is_checked and runs else [])])
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        what = "to export" if any(name in needed for name in missing) else "check= needs, to run"
        raise MissingDependency(f"{what} the format {kind!r}: pip install {' '.join(missing)}.")


def _write(
    model: Any, path: Path, chosen: _Format, flavour: str, options: Mapping[str, Any]
) -> None:
    given: dict[str, Any] = {"format": chosen.keras, "verbose": False, **options}
    if flavour != "keras":
        given = dict(options)  # tf_keras has only one format
    try:
        model.export(str(path), **given)
    except Exception as error:
        raise GridflowError(f"Keras can't export the model to {chosen.keras}: {error}") from error


def _rows(check: Any) -> pa.Table:
    """Return the rows of a Spark or pandas DataFrame, a table, or a dict of arrays."""
    import pyarrow as pa

    to_arrow = getattr(check, "toArrow", None)
    if to_arrow is not None:
        table = to_arrow()
    else:
        from gridflow._feed.ingest.arrays import to_table

        table = check if isinstance(check, pa.Table) else to_table(check, "check")
    if not table.num_rows:
        raise DataError("check= has no rows, so there is nothing to compare.")
    return table.combine_chunks()


def _inputs(loaded: Any, rows: pa.Table) -> dict[str, np.ndarray]:
    """Return the rows' values for the model's inputs, by name."""
    from gridflow._keras import results

    about = results.described(loaded)
    slots = {
        name: Slot.of_batch(shape, dtype)
        for (name, shape), dtype in zip(
            about["inputs"].items(), about["dtypes"]["inputs"], strict=True
        )
    }
    if not slots:
        raise InvalidArgument(
            f"{type(loaded).__name__} doesn't declare its inputs, as functional and Sequential "
            "models do, so check= can't feed it. Leave check= out."
        )
    if len(slots) == 1 and list(slots)[0] not in rows.column_names:  # noqa: RUF015 (as text)
        ((name, slot),) = slots.items()
        arrays = [_one(rows[column]) for column in rows.column_names]
        if len(arrays) == 1:
            return {name: columns.to_input(arrays[0], slot, name)}
        return {name: columns.stacked(arrays, slot, name)}
    missing = [name for name in slots if name not in rows.column_names]
    if missing:
        raise InvalidArgument(
            f"check= needs a column for each of the model's inputs, but lacks "
            f"{', '.join(map(repr, missing))}; it has {', '.join(map(repr, rows.column_names))}."
        )
    return {name: columns.to_input(_one(rows[name]), slot, name) for name, slot in slots.items()}


def _one(column: Any) -> Any:
    import pyarrow as pa

    return pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)


def _compare(
    model: Any, run: Run, inputs: Mapping[str, np.ndarray], kind: str, tolerance: float
) -> None:
    """Reject an exported model with different predictions.

    Raises `DataError`: Shows the row and both predictions.
    """
    count = len(next(iter(inputs.values())))
    for first in range(0, count, _ROWS):
        given = {name: array[first : first + _ROWS] for name, array in inputs.items()}
        x = given if len(given) > 1 else next(iter(given.values()))
        wanted = _flat(model.predict_on_batch(x))
        found = list(run(given))
        if len(found) != len(wanted):
            raise DataError(
                f"the exported {kind} model has {len(found)} outputs, but Keras's has "
                f"{len(wanted)}."
            )
        for place, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            _compare_output(np.asarray(ours), np.asarray(theirs), kind, tolerance, first, place)


def _compare_output(
    found: np.ndarray, wanted: np.ndarray, kind: str, tolerance: float, first: int, place: int
) -> None:
    if found.shape != wanted.shape:
        raise DataError(
            f"output {place} of the exported {kind} model has the shape {found.shape}, but Keras's "
            f"has {wanted.shape}."
        )
    if wanted.dtype.kind in "fiub":
        is_same = np.isclose(
            found.astype(np.float64),
            wanted.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
        )
    else:
        is_same = found == wanted
    rows = np.flatnonzero(~is_same.reshape(len(wanted), -1).all(axis=1))
    if len(rows):
        row = int(rows[0])
        raise DataError(
            f"the exported {kind} model differs from Keras's predictions by more than "
            f"tolerance={tolerance:g}: in row {first + row} of check=, output {place} is "
            f"{_short(found[row])}, and Keras's is {_short(wanted[row])}. Nothing was exported."
        )


def _short(values: np.ndarray) -> str:
    return np.array2string(np.ravel(values)[:8], precision=6)


def _flat(found: Any) -> list[Any]:
    if isinstance(found, dict):
        return [found[name] for name in sorted(found)]
    return list(found) if isinstance(found, list | tuple) else [found]


def _run_saved_model(path: Path, names: Sequence[str]) -> Run:
    import tensorflow as tf

    from gridflow._keras import safe_mode

    # Written just now, from a model that was loaded in safe mode unless its caller said otherwise.
    loaded = safe_mode.load_saved_model(str(path), is_safe=False)
    serve = loaded.signatures["serving_default"]
    taken = list(serve.structured_input_signature[1])

    def run(given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        _ = loaded
        # Keras names unnamed inputs.
        by_name = dict(zip(_matching(taken, names), given.values(), strict=True))
        specs = serve.structured_input_signature[1]
        found = serve(**{n: tf.constant(v, specs[n].dtype) for n, v in by_name.items()})
        return [value.numpy() for _, value in sorted(found.items())]

    return run


def _matching(taken: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return an exported model's names for inputs: the same names, or by order."""
    return list(names) if set(names) == set(taken) else list(taken)


def _run_onnx(path: Path, names: Sequence[str]) -> Run:
    import onnxruntime  # type: ignore[import-not-found, unused-ignore]

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = [each.name for each in session.get_inputs()]

    def run(given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        values = dict(zip(_matching(taken, names), given.values(), strict=True))
        return list(session.run(None, values))

    return run


def _run_litert(path: Path, names: Sequence[str]) -> Run:
    import tensorflow as tf

    with warnings.catch_warnings():  # moved to a separate package, but still works
        warnings.filterwarnings("ignore", ".*tf.lite.Interpreter is deprecated")
        interpreter = tf.lite.Interpreter(model_path=str(path))
    run_signature = interpreter.get_signature_runner()
    taken = list(run_signature.get_input_details())

    def run(given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        values = dict(zip(_matching(taken, names), given.values(), strict=True))
        return [value for _, value in sorted(run_signature(**values).items())]

    return run


def _run_openvino(path: Path, names: Sequence[str]) -> Run:
    import openvino  # type: ignore[import-not-found, unused-ignore]

    compiled = openvino.Core().compile_model(str(path), "CPU")
    _ = names

    def run(given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        found = compiled(list(given.values()))
        return [found[output] for output in compiled.outputs]

    return run


def _run_torch(path: Path, names: Sequence[str]) -> Run:
    import torch

    module = torch.export.load(str(path)).module()
    _ = names

    def run(given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        found = module(*(torch.from_numpy(np.ascontiguousarray(v)) for v in given.values()))
        return [value.detach().cpu().numpy() for value in _flat(found)]

    return run


_FORMATS: Final = {
    "saved_model": _Format("tf_saved_model", "", None, _run_saved_model),
    "onnx": _Format("onnx", ".onnx", "onnxruntime", _run_onnx),
    "openvino": _Format("openvino", ".xml", "openvino", _run_openvino),
    "litert": _Format("litert", ".tflite", "tensorflow", _run_litert),
    "torch": _Format("torch", ".pt2", "torch", _run_torch),
}
