"""The examples' documents are what the renderers make today, and the examples run."""

from __future__ import annotations

import importlib.util
import json
import sys

import numpy as np
import pytest
from environments import on_this_host, processes
from jobs import LACKING, ROOT, SCHEMAS, flights, needs_schemas
from launching import launch

from gridflow.deploy import Role, get_target, validate
from suite.waiting import LONGEST

FOLDER = ROOT / "examples" / "manifests"
COLUMNS = ("dep_delay", "distance", "hour_sin", "hour_cos", "temp", "wind_speed", "visib")


def examples():
    spec = importlib.util.spec_from_file_location("render_examples", FOLDER / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {str(path): text for path, text in module.documents()}


def test_the_examples_are_up_to_date():
    stored = {
        str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8")
        for path in FOLDER.glob("*/*/*")
    }
    assert stored == examples(), "run python examples/manifests/render.py"


@needs_schemas
def test_the_stored_examples_are_valid():
    checked = 0
    for path in sorted(FOLDER.glob("*/*/*")):
        target = path.parent.name
        is_beside = path.suffix in {".txt", ".config"}
        if get_target(target).form != "script" and not is_beside and target not in LACKING:
            result = validate(target, path.read_text(), source=str(path), schemas=SCHEMAS)
            assert (result.problems, result.notes) == ((), ())
            checked += 1
    assert checked > 30


@pytest.fixture
def records(tmp_path):
    import tensorflow as tf

    rng = np.random.default_rng(3)
    folder = tmp_path / "flights"
    folder.mkdir()
    for number in range(2):
        with tf.io.TFRecordWriter(str(folder / f"part-{number}.tfrecord")) as writer:
            for row in rng.normal(size=(64, len(COLUMNS))):
                values = dict(zip(COLUMNS, row, strict=True)) | {"arr_delay": row.sum()}
                features = {
                    name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
                    for name, value in values.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return folder


def run(job, target):
    """Run a job's processes on this host; return their outputs, once all have succeeded."""
    found = on_this_host(processes(job, target))
    quiet = {"CUDA_VISIBLE_DEVICES": "-1"}
    running = [launch(*words[2:], env={**env, **quiet}) for _, _, env, words in found]
    try:
        outputs = [process.communicate(timeout=LONGEST)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * len(found), "\n".join(outputs)
    return outputs


@pytest.mark.slow
def test_the_flights_program_trains_on_two_workers_and_exports_a_model(records, tmp_path):
    model = tmp_path / "models" / "1"
    words = [f"--data={records}", f"--model={model}", "--batch-size=16", "--epochs=2"]
    command = [sys.executable, str(FOLDER / "train.py"), *words]
    run(flights(command=command, args=[], roles={"worker": Role(2)}), "kubernetes")
    assert (model / "saved_model.pb").exists()


@pytest.mark.slow
def test_the_parameter_server_program_trains_with_standard_servers(records, tmp_path):
    model = tmp_path / "models" / "2"
    words = [f"--data={records}", f"--model={model}", "--batch-size=16", "--steps=100"]
    command = [sys.executable, str(FOLDER / "train_ps.py"), *words]
    roles = {"chief": Role(), "worker": Role(2, command=[]), "ps": Role(1)}
    outputs = run(flights(command=command, args=[], roles=roles), "compose")
    assert "step 100: loss" in outputs[0]
    assert (model / "saved_model.pb").exists()


def test_the_job_of_the_examples_names_every_file_that_it_needs():
    text = json.dumps(sorted(examples()))
    for target in ("kubernetes", "tfjob", "marathon", "serving", "notebook", "sparkapplication"):
        assert f"flights/{target}/" in text
