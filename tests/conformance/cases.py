"""The cases of the conformance table, each for a rank of a group and for one plain process."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from suite.lives import DiedError, Life

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


ROWS: Final = 64
BATCH: Final = 16  # rows of a global batch
EPOCHS: Final = 2
STEPS: Final = ROWS // BATCH
#: Steps after which the resume case dies, in the middle of the second epoch.
DIES_AFTER: Final = STEPS + 2

#: Names of the small models. With several replicas, the last one can't match a single process.
MODELS: Final = ("sgd momentum", "synchronised batchnorm", "adam", "batchnorm and dropout")
#: Models and cases that need TensorFlow as Keras's backend.
TENSORFLOW_MODELS: Final = ("synchronised batchnorm",)
TENSORFLOW_CASES: Final = ("custom loop", "fit tf.data", "fit tf.data, validation")
#: Ways to pass data to ``fit``; each uses the first model.
DATA_CASES: Final = (
    "fit arrays",
    "fit tf.data",
    "fit tf.data, validation",
    "fit class_weight",
    "fit sample weights",
    "fit dicts",
)


@dataclasses.dataclass
class CaseResult:
    """What a case computed on one rank.

    Attributes
    ----------
    values : list of numpy array
        Weights or outputs, which must equal those of one process.
    losses : list of float
        Losses and metrics, which must do so too.
    """

    values: list[np.ndarray] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)


@functools.cache
def natural_rows() -> dict[str, np.ndarray]:
    """Return the columns, in the order in which one process trains on them."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    more = rng.normal(size=(ROWS, 2)).astype("float32")
    y = (np.sin(x @ np.array([1, -1, 2, 0.5], "float32")) + more[:, 0])[:, None]
    return {
        "x": x,
        "more": more,
        "y": y.astype("float32"),
        "z": (more[:, :1] * 2).astype("float32"),
        "kind": (y > 0).astype("int32"),
        "weight": rng.uniform(0.5, 2, ROWS).astype("float32"),
    }


def rows(num_workers: int = 1) -> dict[str, dict[str, np.ndarray]]:
    """Return the rows, ordered so that `num_workers` contiguous shares give the same batches."""
    places = np.arange(ROWS).reshape(STEPS, num_workers, -1).transpose(1, 0, 2).reshape(-1)
    return {"rows": {name: values[places] for name, values in natural_rows().items()}}


class Lab:
    """Makes models with one flavour of Keras under one strategy.

    Parameters
    ----------
    keras : module
        ``keras`` or ``tf_keras``.
    strategy : tf.distribute.Strategy
        On other backends, an object with the same ``scope`` and ``num_replicas_in_sync``.
    """

    def __init__(self, keras: Any, strategy: Any) -> None:
        self.keras = keras
        self.strategy = strategy

    @property
    def is_tensorflow(self) -> bool:
        """Whether TensorFlow trains the models."""
        return self.keras.__name__ == "tf_keras" or bool(
            self.keras.backend.backend() == "tensorflow"
        )

    @property
    def flavour(self) -> str:
        """``keras`` or ``tf_keras``; without TensorFlow, the backend's name."""
        return str(self.keras.__name__ if self.is_tensorflow else self.keras.backend.backend())

    @property
    def models(self) -> tuple[str, ...]:
        """The `MODELS` that the backend supports."""
        return tuple(m for m in MODELS if self.is_tensorflow or m not in TENSORFLOW_MODELS)

    @property
    def replicas(self) -> int:
        """The number of replicas that share a batch."""
        return int(self.strategy.num_replicas_in_sync)

    def model(self, name: str, subclass: Any = None, **compiled: Any) -> Any:
        """Make one of `MODELS`, identical in every process; `subclass` replaces ``Sequential``."""
        keras = self.keras
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            normalisation = {
                "synchronised batchnorm": {"synchronized": True, "momentum": 0.8},
                "batchnorm and dropout": {"momentum": 0.8},
            }.get(name)
            layers = [self._input(4), keras.layers.Dense(8, activation="tanh")]
            if normalisation is not None:
                layers.append(keras.layers.BatchNormalization(**normalisation))
            if "dropout" in name:
                layers.append(keras.layers.Dropout(0.2, seed=5))
            model = (subclass or keras.Sequential)([*layers, keras.layers.Dense(1)])
            options = {"optimizer": self.optimizer(name), "loss": "mse", "metrics": ["mae"]}
            model.compile(**{**options, **compiled})
        return model

    def optimizer(self, name: str) -> Any:
        """Make the optimizer for a model."""
        optimizers = self.keras.optimizers
        return optimizers.Adam(0.01) if name == "adam" else optimizers.SGD(0.05, momentum=0.9)

    def model_of_dicts(self) -> Any:
        """Make a model with two inputs and two outputs, both as dicts."""
        keras = self.keras
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            inputs = {"x": keras.layers.Input((4,), name="x")}
            inputs["more"] = keras.layers.Input((2,), name="more")
            both = keras.layers.Concatenate()([inputs["x"], inputs["more"]])
            hidden = keras.layers.Dense(8, activation="tanh")(both)
            outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("y", "z")}
            model = keras.Model(inputs, outputs)
            model.compile(
                self.optimizer(""),
                loss={"y": "mse", "z": "mae"},
                loss_weights={"y": 1.0, "z": 0.5},
            )
        return model

    def _input(self, size: int) -> Any:
        layers = self.keras.layers
        if self.keras.__name__ == "tf_keras":
            return layers.InputLayer(input_shape=(size,))
        return layers.Input((size,))


def weights_of(model: Any) -> list[np.ndarray]:
    """Return all weights and statistics; all ranks must call it."""
    return [np.array(weight) for weight in model.get_weights()]


def _outputs(model: Any) -> CaseResult:
    """Return a model's predictions and their mean squared error."""
    data = natural_rows()
    answers = model.predict(data["x"], batch_size=BATCH, verbose=0)
    return CaseResult([answers], [float(np.mean(np.square(answers - data["y"])))])


def trained(model: Any, history: Any) -> CaseResult:
    """Return a model's weights and the values of its History."""
    losses = [float(loss) for name in sorted(history.history) for loss in history.history[name]]
    return CaseResult(weights_of(model), losses)


# --- one plain process ------------------------------------------------------------------------


def plain_results(lab: Lab, name: str) -> dict[str, CaseResult]:
    """Compute the expected values for all cases of a model, from plain arrays."""
    data = natural_rows()
    x, y = data["x"], data["y"]
    model = lab.model(name)
    history = model.fit(
        x, y, validation_data=(x, y), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
    )
    fit = trained(model, history)
    outputs = _outputs(model)
    tested = CaseResult(losses=list(model.evaluate(x, y, batch_size=BATCH, verbose=0)))
    looped = CaseResult(fit.values, outputs.losses)
    return {
        "fit": fit,
        "evaluate": tested,
        "predict": outputs,
        "checkpoint and resume": fit,
        "save": outputs,
        "custom loop": looped,
    }


def plain_data_results(lab: Lab) -> dict[str, CaseResult]:
    """Compute the expected values for the data cases."""
    data = natural_rows()
    x, y = data["x"], data["y"]
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}

    def fit(model: Any, *args: Any, **more: Any) -> CaseResult:
        return trained(model, model.fit(*args, **options, **more))

    return {
        "fit arrays": fit(lab.model("sgd momentum"), x, y),
        "fit tf.data": fit(lab.model("sgd momentum"), x, y),
        "fit tf.data, validation": fit(
            lab.model("sgd momentum"), x, y, validation_data=(x[:32], y[:32])
        ),
        "fit class_weight": fit(
            lab.model("sgd momentum"), x, data["kind"], class_weight={0: 1.0, 1: 3.0}
        ),
        "fit sample weights": fit(lab.model("sgd momentum"), x, y, sample_weight=data["weight"]),
        "fit dicts": fit(
            lab.model_of_dicts(),
            {"x": x, "more": data["more"]},
            {"y": y, "z": data["z"]},
        ),
    }


# --- a rank of a group ------------------------------------------------------------------------


def results(ctx: Any, lab: Lab, name: str, shared: str | None) -> dict[str, CaseResult]:
    """Compute all cases of a model on this rank."""
    model, fit = _fit(ctx, lab, name)
    found = {"fit": fit}
    tested = model.evaluate(dataset(ctx), verbose=0)
    found["evaluate"] = CaseResult(losses=[float(value) for value in tested])
    found["predict"] = _outputs(model)
    if shared is not None:
        found["checkpoint and resume"] = _resumed(ctx, lab, name, Path(shared))
    path = ctx.work_dir / "saved.keras"
    model.save(path)  # on all ranks, each to its own path
    found["save"] = _outputs(lab.keras.models.load_model(path))
    if lab.is_tensorflow:
        found["custom loop"] = _custom_loop(ctx, lab, name)
    return found


def data_results(ctx: Any, lab: Lab) -> dict[str, CaseResult]:
    """Compute the data cases on this rank."""
    data = natural_rows()
    x, y = data["x"], data["y"]

    def batches(*columns: np.ndarray) -> Any:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(columns).batch(BATCH)

    def fit(model: Any, *args: Any, **options: Any) -> CaseResult:
        return trained(model, model.fit(*args, epochs=EPOCHS, verbose=0, **options))

    def sgd() -> Any:
        return lab.model("sgd momentum")

    found = {"fit arrays": fit(sgd(), x, y, batch_size=BATCH, shuffle=False)}
    if lab.is_tensorflow:
        found["fit tf.data"] = fit(sgd(), batches(x, y))
        found["fit tf.data, validation"] = fit(
            sgd(), batches(x, y), validation_data=batches(x[:32], y[:32])
        )
    return {
        **found,
        "fit class_weight": fit(sgd(), dataset(ctx, label="kind"), class_weight={0: 1.0, 1: 3.0}),
        "fit sample weights": fit(sgd(), dataset(ctx, sample_weight="weight")),
        "fit dicts": fit(
            lab.model_of_dicts(), dataset(ctx, features=["x", "more"], label=["y", "z"])
        ),
    }


def dataset(ctx: Any, features: Sequence[str] = ("x",), label: Any = "y", **options: Any) -> Any:
    """Return this rank's rows, in order."""
    size = BATCH // ctx.num_workers
    labels = [label] if isinstance(label, str) else label
    return ctx.dataset("rows", batch_size=size, features=list(features), label=labels, **options)


def _fit(ctx: Any, lab: Lab, name: str, callbacks: Sequence[Any] | None = None) -> Any:
    model = lab.model(name)
    history = model.fit(
        dataset(ctx),
        validation_data=dataset(ctx),
        epochs=EPOCHS,
        verbose=0,
        callbacks=ctx.callbacks(checkpoint=False) if callbacks is None else callbacks,
    )
    return model, trained(model, history)


def _resumed(ctx: Any, lab: Lab, name: str, shared: Path) -> CaseResult:
    """Train until the callback raises, then resume from the checkpoint."""
    from gridflow._keras import callbacks

    committed = shared / f"{name.replace(' ', '-')}.npz"
    first = Life(ctx, committed)

    class Dies(lab.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        steps = 0

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            del batch, logs
            self.steps += 1
            if self.steps == DIES_AFTER:
                raise DiedError

    try:
        _fit(ctx, lab, name, [*callbacks.build(first), Dies()])
    except DiedError:
        second = Life(ctx, committed, resume_from=committed)
        _, result = _fit(ctx, lab, name, callbacks.build(second))
        return CaseResult(result.values, result.losses)
    raise AssertionError("training was expected to die, but finished")


def _custom_loop(ctx: Any, lab: Lab, name: str) -> CaseResult:
    """Train with a custom loop around ``strategy.run``."""
    import tensorflow as tf

    from gridflow._keras import statistics

    model = lab.model(name)
    with lab.strategy.scope():
        optimizer = lab.optimizer(name)
        optimizer.build(model.trainable_variables)

    def step(batch: Any) -> None:
        x, y = batch
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(model(x, training=True) - y))
            loss = errors / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        # Both flavours sum the gradients over all replicas.
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    train_step: Callable[[Any], None] = tf.function(
        lambda batch: lab.strategy.run(step, args=(batch,))
    )
    batches = dataset(ctx)
    for _ in range(EPOCHS):
        for batch in _first(STEPS, batches):
            train_step(batch)
    statistics.synchronise(model)
    return CaseResult(weights_of(model), _outputs(model).losses)


def _first(count: int, dataset: Any) -> Iterator[Any]:
    iterator = iter(dataset)
    for _ in range(count):
        yield next(iterator)
