"""KerasEstimator and KerasModel as files: loaded, and trusted no further than their caller says."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import cloudpickle
import pytest
from estimators import MARKS, estimator
from pyspark.ml import PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator

from gridflow import errors
from gridflow.ml import KerasEstimator, KerasModel

pytestmark = MARKS


def marking(mark):
    """Return a model with Python code of its own, which makes a file when it runs."""
    import keras

    layer = keras.layers.Lambda(lambda x: (__import__("pathlib").Path(mark).touch(), x)[1])
    model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def rewrite(folder, change):
    """Change the metadata of what was saved, as somebody might who hands it on."""
    (part,) = (folder / "metadata").glob("part-*")
    metadata = json.loads(part.read_text())
    change(metadata)
    part.write_text(json.dumps(metadata))
    (folder / "metadata" / f".{part.name}.crc").unlink(missing_ok=True)


class Marks:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def unsafe(rows, tmp_path):
    """Give a saved stage that wants to run code, and the file that its code makes."""
    from gridflow._keras import results
    from gridflow.ml.model import TrainedModel

    mark = tmp_path / "mark"
    folder = tmp_path / "made"
    header = results.pack(marking(str(mark)), folder, is_chief=True)
    stage = KerasModel(TrainedModel(header, folder)).setSafeMode(False)
    PipelineModel([stage]).save(str(tmp_path / "saved"))
    mark.unlink(missing_ok=True)
    (saved,) = (tmp_path / "saved" / "stages").iterdir()
    return saved, mark


@pytest.mark.parametrize("part", ["paramMap", "defaultParamMap"])
def test_what_is_loaded_lowers_no_safe_mode_but_the_caller_does(rows, unsafe, part):
    saved, mark = unsafe
    rewrite(saved, lambda metadata: metadata.update(paramMap={}))
    rewrite(saved, lambda metadata: metadata[part].update(safeMode=False))
    (stage,) = PipelineModel.load(str(saved.parents[1])).stages
    assert stage.getSafeMode()
    with pytest.raises(Exception, match=r"setSafeMode\(False\)"):
        stage.transform(rows).select("prediction").collect()
    assert not mark.exists()
    stage.setSafeMode(False)
    assert len(stage.transform(rows).select("prediction").collect()) == 240
    assert mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"header": {"kind": "function"}},
        {"header": {"kind": "pickle"}},
        {"header": {"files": ["../../mark"]}},
        {"files": ["model.keras", "../../../../mark"]},
    ],
)
def test_metadata_cannot_make_a_pickle_of_a_model(rows, unsafe, change):
    saved, mark = unsafe

    def lie(metadata):
        about = metadata["gridflow"]
        about["header"].update(change.get("header", {}))
        about["files"] = change.get("files", about["files"])

    rewrite(saved, lie)
    (saved / "model.keras").write_bytes(cloudpickle.dumps(Marks(mark)))
    (saved / ".model.keras.crc").unlink(missing_ok=True)
    with pytest.raises(errors.GridflowError, match="isn't a Keras model that gridflow saved"):
        KerasModel.load(str(saved))
    assert not mark.exists()


def test_a_loaded_estimator_reads_code_when_its_caller_says_so(rows, tmp_path):
    mark = tmp_path / "mark"
    est = estimator(model=marking(str(mark)), labelCol="y", safeMode=False)
    tuner = CrossValidator(
        estimator=est,
        estimatorParamMaps=[{est.safeMode: False, est.epochs: 1}],
        evaluator=RegressionEvaluator(labelCol="y"),
        numFolds=2,
    )
    tuner.save(str(tmp_path / "tuner"))
    mark.unlink(missing_ok=True)
    loaded = CrossValidator.load(str(tmp_path / "tuner"))
    with pytest.raises(errors.InvalidArgument, match=r"call setSafeMode\(False\)"):
        loaded.fit(rows)
    with pytest.raises(errors.GridflowError, match=r"setSafeMode\(False\)"):
        loaded.getEstimator().getModel()
    with pytest.raises(errors.TrainingFailed, match=r"setSafeMode\(False\)"):
        loaded.getEstimator().fit(rows)
    assert not mark.exists()
    loaded.getEstimator().save(str(tmp_path / "again"))
    again = KerasEstimator.load(str(tmp_path / "again")).setSafeMode(False)
    assert again.getModel().count_params() == 4
    assert again.fit(rows).transform(rows).count() == 240
    assert mark.exists()


def test_a_save_that_fails_leaves_the_good_one(rows, unsafe):
    saved, _ = unsafe
    stage = KerasModel.load(str(saved))
    before = sorted(path.name for path in saved.parent.rglob("*"))
    stage.setCustomObjects({"Mine": threading.Lock()})  # no pickle can be made of it
    with pytest.raises(errors.InvalidArgument, match="can't be saved"):
        stage.write().overwrite().save(str(saved))
    with pytest.raises(errors.InvalidArgument, match="can't be saved"):
        stage.save(f"{saved}-new")
    stage.clear(stage.customObjects)
    stage.trainedModel.path.unlink()
    with pytest.raises(FileNotFoundError):
        stage.write().overwrite().save(str(saved))
    assert sorted(path.name for path in saved.parent.rglob("*")) == before
    again = KerasModel.load(str(saved)).setThreshold(0.25)
    again.write().overwrite().save(str(saved))
    assert KerasModel.load(str(saved)).getThreshold() == 0.25
    assert list(saved.parent.iterdir()) == [saved]
