"""TensorBoard's event files in stores, as the driver has them; and when a store refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridflow import InvalidArgument, TensorBoard
from gridflow._coordinator.event_files import EventFiles
from gridflow._coordinator.observing import Observed
from gridflow._files.systems import where
from suite.waiting import patience, wait_for


def train(ctx):
    import numpy as np

    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.arange(8, dtype="float32")[:, None]
    model.fit(x, x, epochs=2, verbose=0, callbacks=ctx.callbacks())


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["s3", "hdfs"], indirect=True)
def test_event_files_lie_in_the_store_at_the_end(stored, distribute):
    job = distribute(1, tensorboard=TensorBoard(serve=False, copy_to=f"{stored}/logs"))
    result = job.run(train)
    here = {
        path.relative_to(result.tensorboard_dir).as_posix(): path.read_bytes()
        for path in result.tensorboard_dir.rglob("*")
        if path.is_file()
    }
    assert any("tfevents" in name for name in here)
    place = where(f"{stored}/logs")
    for name, content in here.items():
        with place.system.open_input_stream(f"{place.path}/{name}") as file:
            assert file.read() == content
    with pytest.raises(InvalidArgument, match="nowhere"):
        distribute(1, tensorboard=TensorBoard(serve=False, copy_to="nowhere://bucket/logs")).run(
            train
        )


def test_a_store_that_refuses_is_said_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("gridflow._coordinator.event_files._PAUSE_SECONDS", 0.01)
    here, there, said = tmp_path / "here", tmp_path / "there", []
    here.mkdir()
    (here / "a").write_text("a")
    there.write_text("a file where the folder belongs")
    copies = EventFiles(here, where(str(there)), said.append, patience())
    observed = Observed([copies], said.append)
    observed.tell("state", "training")
    wait_for(lambda: said, "a word on the store")
    there.unlink()

    def is_there():
        observed.tell("state", "training")
        return (there / "a").exists()

    wait_for(is_there, "the first file")
    (here / "below").mkdir()
    (here / "below" / "b").write_text("b")
    (here / "a").write_text("ab")
    observed.tell("end", None)
    observed.close()
    assert [path.read_text() for path in (there / "a", there / "below" / "b")] == ["ab", "b"]
    assert len(said) == 1
    assert "will retry" in said[0]
    assert Path(there).is_dir()
