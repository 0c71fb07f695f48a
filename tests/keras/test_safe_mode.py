"""Models of others: what does more than compute isn't loaded in safe mode."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gridflow
from suite.new_process import in_new_process

PREPARED = """
import json, sys, zipfile
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras import layers

from gridflow._keras import results, safe_mode
from gridflow.errors import GridflowError, InvalidArgument
from gridflow.ml import servable

folder = Path({folder!r})
mark = folder / "mark"
wrong = []


def load(path, **options):
    header = {{"kind": "tf_keras", "files": [path.name]}}
    return results.unpack(header, path.parent, {{"compile": False, **options}})


def refused(what, call, words=""):
    try:
        call()
    except GridflowError as error:
        if words not in str(error):
            wrong.append(f"{{what}} says {{error}}")
    else:
        wrong.append(f"{{what}} was loaded")
"""

ORDINARY = """
numbers = tf_keras.Input((4,))
steps = tf_keras.Input((5, 2))
words = tf_keras.Input((), dtype="string")
images = tf_keras.Input((8, 8, 3))
ragged = tf_keras.Input((None,), ragged=True)


def of_operations():
    total = tf.reduce_sum(numbers * 2 + 1, axis=1, keepdims=True)
    parts = [
        *(total, numbers[:, :2], tf.nn.l2_normalize(numbers, 1), tf.math.log1p(tf.abs(numbers))),
        tf.cast(numbers > 0, "float32"),
        *(tf.clip_by_value(numbers, 0, 1), tf.where(numbers > 0, numbers, 0.0)),
        tf_keras.backend.mean(numbers, axis=1, keepdims=True),
    ]
    return tf_keras.Model(numbers, layers.Dense(1)(tf.concat(parts, axis=1)))


def compiled(optimizer, loss, *parts):
    model = tf_keras.Sequential([numbers, *parts, layers.Dense(1)])
    model.compile(optimizer, loss, metrics=["mae", tf_keras.metrics.AUC()])
    return model


schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
policy = tf_keras.mixed_precision.Policy("mixed_float16")
inner = tf_keras.Model(numbers, layers.Dense(2)(numbers))
MODELS = {
    "dense": tf_keras.Sequential(
        [
            numbers,
            layers.Dense(3, "relu", kernel_regularizer="l2", kernel_constraint="max_norm"),
            layers.BatchNormalization(),
            layers.Dense(1, activation=tf.nn.gelu, kernel_initializer=tf_keras.initializers.Ones()),
        ]
    ),
    "activations": tf_keras.Sequential(
        [numbers, layers.Activation("softplus"), layers.Dense(2, tf_keras.activations.swish)]
    ),
    "operations": of_operations(),
    "steps": tf_keras.Sequential(
        [steps, layers.Bidirectional(layers.LSTM(3, return_sequences=True)), layers.GRU(2)]
    ),
    "words": tf_keras.Sequential([words, layers.StringLookup(vocabulary=["a", "b"])]),
    "images": tf_keras.Sequential([images, layers.RandomFlip(), layers.Conv2D(2, 3)]),
    "attention": tf_keras.Model(steps, layers.MultiHeadAttention(2, 2)(steps, steps)),
    "ragged": tf_keras.Model(ragged, [tf.reduce_sum(ragged, axis=1), ragged.flat_values]),
    "nested": tf_keras.Model(numbers, layers.Add()([inner(numbers), inner(numbers)])),
    "schedule": compiled(tf_keras.optimizers.Adam(schedule), tf_keras.losses.Huber()),
    "mixed": compiled("sgd", "mse", layers.Dense(2, dtype=policy)),
    "legacy": compiled(tf_keras.optimizers.legacy.Adam(), tf_keras.losses.mean_squared_error),
}
for name, model in MODELS.items():
    path = folder / f"{name}.keras"
    model.save(path)
    try:
        load(path, compile=True)
    except GridflowError as error:
        wrong.append(f"{name}: {error}")


@tf_keras.saving.register_keras_serializable("mine")
class Registered(layers.Layer):
    pass


class Own(layers.Layer):
    pass


tf_keras.Sequential([numbers, Registered(), Own()]).save(folder / "own.keras")
load(folder / "own.keras", custom_objects={"Own": Own})
refused("own", lambda: load(folder / "own.keras"), "custom_objects=")
print(wrong)
"""

HOSTILE = """
import base64, marshal

tf_keras.Sequential([tf_keras.Input((1,)), layers.Lambda(lambda x: x, (1,))]).save(
    folder / "base.keras"
)
code = base64.b64encode(marshal.dumps((lambda x: mark.touch()).__code__)).decode()


def function(module, name):
    return {"class_name": "function", "config": name, "module": module, "registered_name": name}


def layer(kind, home, registered=None, **config):
    return {"class_name": kind, "config": config, "module": home, "registered_name": registered}


def changed(name, change):
    path = folder / f"{name.replace(' ', '-')}.keras"
    with zipfile.ZipFile(folder / "base.keras") as archive, zipfile.ZipFile(path, "w") as new:
        for each in archive.namelist():
            content = archive.read(each)
            if each == "config.json":
                config = json.loads(content)
                calling(function=function("keras.activations", "relu"))(config)
                change(config)
                content = json.dumps(config)
            new.writestr(each, content)
    return path


def calling(function_type="function", **config):
    def change(whole):
        (found,) = (each for each in whole["config"]["layers"] if each["class_name"] == "Lambda")
        found["config"].update(config, function_type=function_type, module=None)

    return change


def with_layer(added):
    return lambda whole: whole["config"]["layers"].append(added)


of_graph = "keras.src.layers.core.tf_op_layer"
write = {"op": "WriteFile", "name": "x", "input": ["a", "b"]}
shell = {"cmd": f"touch {mark}"}
ATTACKS = {
    "shell": calling(function=function("pydoc", "pipepager"), arguments=shell),
    "code": calling(function=[code, None, None], function_type="lambda"),
    "lambda": calling(function={"class_name": "__lambda__", "config": {"value": [code, 0, 0]}}),
    "download": calling(function=function("keras.utils", "get_file")),
    "imported": calling(function=function("keras.src.utils.data_utils", "urlretrieve")),
    "marshal": calling(function=function("keras.src.utils.generic_utils", "func_load")),
    "revival": calling(function=function("keras.losses", "deserialize")),
    "activation": with_layer(
        layer("Dense", "keras.layers", units=1, activation=function("os", "system"))
    ),
    "class": with_layer(layer("Popen", "subprocess", args="true")),
    "no module": with_layer({"class_name": "Popen", "config": {}}),
    "no name": with_layer({"class_name": ["Popen"], "config": {}}),
    "another name": with_layer(layer("Dense", of_graph, "TFOpLambda", function="io.write_file")),
    "operation": with_layer(layer("TFOpLambda", of_graph, function="numpy_function")),
    "method": with_layer(
        layer("ClassMethod", of_graph, cls_symbol="io.gfile.GFile", method_name="write")
    ),
    "node": with_layer(
        layer("TensorFlowOpLayer", "keras.src.engine.base_layer", name="x", node_def=write)
    ),
    "model": with_layer(layer("ReloadedLayer", "keras.src.export.export_lib", filepath="/x")),
    "vocabulary": with_layer(layer("StringLookup", "keras.layers", vocabulary="/etc/passwd")),
    "specification": with_layer(
        {"class_name": "__typespec__", "spec_name": "system", "module": "os", "config": []}
    ),
}
load(changed("ordinary", lambda whole: None))
for name, change in ATTACKS.items():
    path = changed(name, change)
    refused(name, lambda: load(path), "safe mode")
    refused(name, lambda: servable.of(str(path), None, True, None, None), "safe mode")
system = {"loss": function("os", "system")}
loss = changed("loss", lambda whole: whole.update(compile_config=system))
refused("loss", lambda: load(loss, compile=True), "safe mode")
load(loss)  # which isn't compiled

import h5py

with zipfile.ZipFile(folder / "ordinary.keras") as archive:
    files = {each: archive.read(each) for each in archive.namelist()}
for name in ("link", "external"):
    with h5py.File(folder / "weights", "w") as weights:
        if name == "link":
            weights["layers"] = h5py.ExternalLink("/elsewhere", "/layers")
        else:
            weights.create_dataset("x", (8,), "u1", external=[("/etc/passwd", 0, 8)])
    with zipfile.ZipFile(folder / "weights.keras", "w") as archive:
        for each, content in files.items():
            is_weights = each == "model.weights.h5"
            archive.writestr(each, (folder / "weights").read_bytes() if is_weights else content)
    refused(name, lambda: load(folder / "weights.keras"), "safe mode")
(folder / "old.keras").write_bytes(b"\\x89HDF\\r\\n\\x1a\\n" + bytes(99))
refused("an older format", lambda: load(folder / "old.keras"), "not a .keras file")
print(wrong + ["code ran"] * mark.exists())
"""

SAVED = """
from tensorflow.core.protobuf import saved_model_pb2


def saved(name, serve, **parts):
    module = tf.Module()
    for key, value in parts.items():
        setattr(module, key, value)
    module.serve = tf.function(serve, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, str(folder / name), signatures=module.serve)
    return folder / name


def table(path):
    lines, numbers = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    rows = tf.lookup.TextFileInitializer(path, tf.string, lines, tf.int64, numbers)
    return tf.lookup.StaticHashTable(rows, -1)


def of(path, is_safe=True):
    return servable.of(str(path), None, is_safe, None, None)


(folder / "words.txt").write_text("a\\nb\\n")
rows = table(str(folder / "words.txt"))
variable = tf.Variable(1.0)


def printing(x):
    tf.print(x)
    return {"y": rows.lookup(x), "z": variable + tf.random.normal([])}


ordinary = saved("ordinary", printing, rows=rows, variable=variable)
of(ordinary)
found = safe_mode.load_saved_model(str(ordinary), is_safe=True).signatures["serving_default"]
if found(x=tf.constant(["b"]))["y"].numpy().tolist() != [1]:
    wrong.append("the table of an asset is empty")
numbers, words = tf_keras.Input((4,)), tf_keras.Input((), dtype="string")
for name, parts in {
    "dense": [numbers, layers.Dense(2), layers.BatchNormalization(), layers.Dropout(0.5)],
    "words": [words, layers.StringLookup(vocabulary=["a"]), layers.Embedding(3, 2)],
    "steps": [tf_keras.Input((5, 2)), layers.Bidirectional(layers.LSTM(3))],
    "images": [tf_keras.Input((8, 8, 3)), layers.RandomFlip(), layers.Conv2D(2, 3)],
}.items():
    model = tf_keras.Sequential(parts)
    model.export(str(folder / f"{name}-exported"))
    model.save(folder / f"{name}-saved", save_format="tf")
    for kind in ("exported", "saved"):
        of(folder / f"{name}-{kind}")
        safe_mode.load_saved_model(str(folder / f"{name}-{kind}"), is_safe=True)
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x = tf.compat.v1.placeholder(tf.float32, [None, 1])
    y = tf.matmul(x, tf.compat.v1.get_variable("v", [1, 1]))
    session.run(tf.compat.v1.global_variables_initializer())
    tf.compat.v1.saved_model.simple_save(session, str(folder / "old"), {"x": x}, {"y": y})
    read = tf.io.read_file(tf.strings.as_string(x[0, 0]))
    tf.compat.v1.saved_model.simple_save(session, str(folder / "old-reads"), {"x": x}, {"y": read})
of(folder / "old")
safe_mode.load_saved_model(str(folder / "old"), is_safe=True)


def writes(x):
    tf.io.write_file(str(mark), "x")
    return {"y": x}


def writes_deep(x):
    return {"y": tf.cond(tf.size(x) > 0, lambda: writes(x)["y"], lambda: x)}


def prints(x):
    tf.print(x, output_stream="file://" + str(mark))
    return {"y": x}


def calls(x):
    return {"y": tf.numpy_function(lambda x: x, [x], tf.string)}


def reads(x):
    return {"y": tf.map_fn(tf.io.read_file, x)}


def lists(x):
    return {"y": x, "files": tf.io.matching_files("/etc/*")}


HOSTILE = {each.__name__: saved(each.__name__, each) for each in (
    writes, writes_deep, prints, calls, reads, lists
)}
HOSTILE["old-reads"] = folder / "old-reads"
for name, path in HOSTILE.items():
    refused(name, lambda: of(path), "runs the operation")
    refused(name, lambda: safe_mode.load_saved_model(str(path), is_safe=True), "safe_mode=False")
if mark.exists():
    wrong.append("a file was written")
of(HOSTILE["writes"], is_safe=False)
described = saved_model_pb2.SavedModel()
described.ParseFromString((ordinary / "saved_model.pb").read_bytes())
(asset,) = described.meta_graphs[0].asset_file_def
asset.filename = "../../../../../../../../etc/passwd"
(ordinary / "saved_model.pb").write_bytes(described.SerializeToString())
refused("an asset elsewhere", lambda: of(ordinary), "isn't in its folder")
print(wrong)
"""


def last_line(folder, source):
    """Return what went wrong; Keras prints before it."""
    printed = in_new_process(PREPARED.format(folder=str(folder)) + source)
    return printed.splitlines()[-1]


@pytest.mark.slow
def test_files_of_tf_keras_that_only_compute_are_loaded(tmp_path):
    pytest.importorskip("tf_keras")
    assert last_line(tmp_path, ORDINARY) == "[]"


@pytest.mark.slow
def test_files_of_tf_keras_that_do_more_are_refused(tmp_path):
    pytest.importorskip("tf_keras")
    assert last_line(tmp_path, HOSTILE) == "[]"


@pytest.mark.slow
def test_saved_models_that_do_more_than_compute_are_refused(tmp_path):
    pytest.importorskip("tf_keras")
    assert last_line(tmp_path, SAVED) == "[]"


def test_models_are_loaded_in_one_place_each():
    """Where safe mode is checked."""
    root = Path(gridflow.__file__).parent
    calls = re.compile(r"\b(?:models|saving)\.load_model\(|\bsaved_model\.load\(|TFSMLayer\(")
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "testing" not in path.parts and calls.search(path.read_text())
    }
    assert found == {"_keras/results.py", "_keras/safe_mode.py"}
