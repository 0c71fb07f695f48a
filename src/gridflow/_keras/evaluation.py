"""The evaluator, which evaluates each new checkpoint of a running training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow._keras.neutral import numbers
from gridflow._keras.results import flavour_of
from gridflow._keras.resume import state
from gridflow._keras.resume.checkpoint_file import Checkpoint
from gridflow._wire.child import NewCheckpoint
from gridflow._wire.commands import EndEvaluation
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._training.inbox import Inbox


def follow(
    model: Any,
    data: Any,
    *,
    steps: int | None,
    inbox: Inbox,
    tensorboard_dir: Path | None,
    report: Callable[..., object],
) -> list[dict[str, float]]:
    """Evaluate checkpoints until no more will come; see `TrainingContext.evaluate_checkpoints`."""
    flavour = flavour_of(model) or "keras"
    found: list[dict[str, float]] = []
    writer = _writer(tensorboard_dir)
    trained = 0
    while True:
        inbox.wait_for_one_of((NewCheckpoint, EndEvaluation))
        message = inbox.take(
            NewCheckpoint
        )  # checked before the end: the last one is evaluated, too
        if message is None:
            break
        try:
            checkpoint = Checkpoint.read(Path(message.path))
        except FileNotFoundError:  # a newer one has come in the meantime
            continue
        if checkpoint.flavour != flavour:
            raise GridflowError(
                f"the training saves {checkpoint.flavour} models, but the evaluator got a "
                f"{flavour} model."
            )
        state.restore(model, flavour, checkpoint, ["model"])
        logs = numbers(model.evaluate(data, steps=steps, verbose=0, return_dict=True))
        place = message.place
        trained = checkpoint.batches
        found.append({**place.to_dict(), **logs})
        report(place, logs)
        if writer is not None:
            _write(writer, logs, trained)
    if writer is not None:
        writer.close()
    return found


def _writer(folder: Path | None) -> Any:
    if folder is None:
        return None
    import tensorflow as tf

    return tf.summary.create_file_writer(str(folder / "evaluation"))


def _write(writer: Any, logs: dict[str, float], step: int) -> None:
    import tensorflow as tf

    with writer.as_default(step=step):
        for name, value in logs.items():
            tf.summary.scalar(f"evaluation_{name}", value)
    writer.flush()
