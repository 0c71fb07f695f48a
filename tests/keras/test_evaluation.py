"""What the evaluator does with checkpoints that come and go."""

from __future__ import annotations

from gridflow._keras.evaluation import follow
from gridflow._spec.place import Place
from gridflow._wire.child import NewCheckpoint
from gridflow._wire.commands import EndEvaluation


class Told:
    """An inbox to which this was told."""

    def __init__(self, *messages):
        self._messages = {type(message): message for message in messages}

    def wait_for_one_of(self, kinds):
        assert set(kinds).intersection(self._messages)

    def take(self, kind):
        return self._messages.pop(kind, None)


def test_a_checkpoint_that_a_newer_one_replaced_is_passed_over(tmp_path):
    replaced = NewCheckpoint(str(tmp_path / "checkpoint-1.npz"), Place(0, 1, 0))
    inbox = Told(replaced, EndEvaluation())
    found = follow(None, None, steps=None, inbox=inbox, tensorboard_dir=None, report=None)
    assert found == []
