"""Cases of the conformance table that customise the step: optimizers, losses, step counts."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from conformance.cases import BATCH, EPOCHS, STEPS, CaseResult, dataset, natural_rows, trained
from gridflow._spec.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conformance.cases import Lab

#: Values of ``steps_per_epoch``: fewer batches than the data have, and more.
FEWER, MORE = 3, 6

#: The cases; each uses the first model.
STEP_CASES: Final = (
    "global_clipnorm",
    "clipvalue",
    "gradient accumulation",
    "moving averages",
    "own train_step",
    "own compute_loss",
    "loss function",
    "steps_per_epoch",
)
#: Unsupported cases; the signature of ``train_step`` depends on the backend.
_LACKS: Final = {
    "tf_keras": ("gradient accumulation",),
    **dict.fromkeys(BACKENDS[1:], ("own train_step",)),
}


def cases_of(flavour: str) -> tuple[str, ...]:
    """Return the `STEP_CASES` that a flavour of Keras, or Keras 3 on a backend, supports."""
    return tuple(case for case in STEP_CASES if case not in _LACKS.get(flavour, ()))


def plain_step_results(lab: Lab) -> dict[str, CaseResult]:
    """Compute the expected values in one process, from arrays."""
    data = natural_rows()
    x, y = data["x"], data["y"]

    def fit(model: Any) -> Any:
        return model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)

    def batches() -> Iterator[Any]:
        for step in itertools.count():
            rows = slice(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)
            yield x[rows], y[rows]

    return _results(lab, fit, batches)


def step_results(ctx: Any, lab: Lab) -> dict[str, CaseResult]:
    """Compute the cases on this rank."""

    def fit(model: Any) -> Any:
        return model.fit(dataset(ctx), epochs=EPOCHS, verbose=0)

    return _results(lab, fit, lambda: dataset(ctx))


def _results(
    lab: Lab, fit: Callable[[Any], Any], batches: Callable[[], Any]
) -> dict[str, CaseResult]:
    found = {}
    for case in cases_of(lab.flavour):
        if case == "steps_per_epoch":
            found[case] = _of_some_steps(lab, batches)
        else:
            with lab.strategy.scope():  # for the optimizers, too
                model = _model(lab, case)
            found[case] = trained(model, fit(model))
    return found


def _of_some_steps(lab: Lab, batches: Callable[[], Any]) -> CaseResult:
    model = lab.model("sgd momentum")
    fewer = model.fit(batches(), epochs=EPOCHS, steps_per_epoch=FEWER, verbose=0)
    first = trained(model, fewer)
    more = trained(model, model.fit(batches(), steps_per_epoch=MORE, verbose=0))
    return CaseResult([*first.values, *more.values], [*first.losses, *more.losses])


def _model(lab: Lab, case: str) -> Any:
    optimizers = lab.keras.optimizers
    rate = {"learning_rate": 0.05, "momentum": 0.9}
    match case:
        case "global_clipnorm":
            return lab.model("", optimizer=optimizers.SGD(**rate, global_clipnorm=0.3))
        case "clipvalue":
            return lab.model("", optimizer=optimizers.SGD(**rate, clipvalue=0.05))
        case "gradient accumulation":
            adam = optimizers.AdamW(
                0.01,
                gradient_accumulation_steps=3,
                clipnorm=0.3,
                use_ema=True,
                ema_momentum=0.8,
                ema_overwrite_frequency=2,
            )
            return lab.model("", optimizer=adam)
        case "moving averages":
            averaging = optimizers.SGD(
                **rate, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
            )
            return lab.model("", optimizer=averaging)
        case "own train_step":
            return lab.model("", subclass=_with_train_step(lab), metrics=None)
        case "own compute_loss":
            return lab.model("", subclass=_with_compute_loss(lab))
        case "loss function":
            mean = _mean_of(lab)
            return lab.model("", loss=lambda y, outputs: mean((y - outputs) ** 2))
    raise AssertionError(case)


def _mean_of(lab: Lab) -> Callable[[Any], Any]:
    if lab.flavour == "tf_keras":
        import tensorflow as tf

        return tf.reduce_mean  # type: ignore[no-any-return]
    return lab.keras.ops.mean  # type: ignore[no-any-return]


def _with_train_step(lab: Lab) -> type:
    import tensorflow as tf

    mean = _mean_of(lab)

    class OwnStep(lab.keras.Sequential):  # type: ignore[misc, name-defined]
        """Computes its own loss, as a user would for one process."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.seen = lab.keras.metrics.Mean(name="own")

        def train_step(self, data: Any) -> dict[str, Any]:
            """Run a step."""
            x, y = data
            with tf.GradientTape() as tape:
                loss = mean(tf.abs(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.seen.update_state(loss)
            return {"own": self.seen.result()}

    return OwnStep


def _with_compute_loss(lab: Lab) -> type:
    mean = _mean_of(lab)

    class OwnLoss(lab.keras.Sequential):  # type: ignore[misc, name-defined]
        """Adds its own loss to the compiled one."""

        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            **more: Any,
        ) -> Any:
            """Return the sum."""
            compiled = super().compute_loss(x, y, y_pred, sample_weight, **more)
            return compiled + 0.1 * mean(y_pred**2)

    return OwnLoss
