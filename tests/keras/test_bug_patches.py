"""Each patch: its bug is there without it, and gone with it."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from pathlib import Path

import pytest
from ranks import run_job

from gridflow import LaunchOptions
from gridflow.errors import EnvironmentMismatch
from suite.new_process import in_new_process, skip_without


@pytest.fixture(
    params=[
        ("keras", "tensorflow"),
        ("keras", "jax"),
        ("keras", "torch"),
        ("tf_keras", "tensorflow"),
    ],
    ids="-".join,
)
def place(request):
    """Give a flavour and the backend that it is to have."""
    skip_without(request.param[1 if request.param[0] == "keras" else 0])
    return request.param


@pytest.mark.slow
def test_upstream_still_has_each_bug_that_is_patched(place):
    # When this fails, Keras has patched something: the patch can be taken out.
    flavour, backend = place
    found = in_new_process(
        f"""
        from gridflow._keras.patches import registry
        for fix in registry.known({flavour!r}):
            if fix.concerns():
                print(fix.name, fix.seen())
        """,
        backend,
    )
    assert found.splitlines()
    assert [line for line in found.splitlines() if not line.endswith("True")] == []


@pytest.mark.slow
def test_each_probe_no_longer_sees_its_bug_once_it_is_patched(place):
    flavour, backend = place
    found = in_new_process(
        f"""
        from gridflow._keras.patches import registry
        for fix in registry.known({flavour!r}):
            if fix.concerns() and fix.seen():
                fix.apply()
                print(fix.name, fix.seen())
        """,
        backend,
    )
    assert [line for line in found.splitlines() if not line.endswith("False")] == []


@pytest.mark.slow
def test_a_model_learns_from_the_columns_that_it_names_and_says_which_it_ignores(place):
    flavour, backend = place
    found = in_new_process(
        f"""
        import logging, sys
        import numpy as np
        import {flavour} as keras
        import gridflow
        gridflow.patch_keras()
        logging.captureWarnings(True)  # of tf_keras
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        x = np.linspace(0, 1, 64, dtype="float32")[:, None]
        data = {{"aa": 9 - x, "x": x, "zz": x - 9}}
        given = keras.Input((1,), name="x")
        model = keras.Model({{"x": given}}, keras.layers.Dense(1, use_bias=False)(given))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(data, 2 * x, batch_size=16, epochs=50, verbose=0)
        loss = model.evaluate(data, 2 * x, verbose=0)
        there = model.predict(data, verbose=0)
        assert np.allclose(model.get_weights()[0], 2, atol=1e-2), model.get_weights()
        assert loss < 1e-3 and np.allclose(there, 2 * x, atol=1e-2), (loss, there)
        """,
        backend,
    )
    assert found.count("'aa', 'zz'") == 1


#: A TensorFlow without its own bugs, see below.
HEALTHY_TENSORFLOW = {
    "arrays that are written into": (
        "tensorflow.python.ops.script_ops:FuncRegistry",
        "__call__",
        "lambda self, token, device, args: self.get(token)(*args).copy()",
    ),
    "lookup tables in branches": (
        "tensorflow.python.distribute.ps_values:DistributedTable",
        "resource_handle",
        "property(lambda self: Handle(graph=tf.compat.v1.get_default_graph().outer_graph))",
    ),
}
#: A Keras without the bug, made by hand: what to put where. No probe may look for gridflow's patch.
HEALTHY = {
    "steps": ("trainer", "_make_function", "unrolled"),
    "lost counts": (
        "keras.src.backend:Variable",
        "assign_add",
        "lambda self, value: self._value.assign_add(value)",
    ),
    "sharded embeddings": (
        "keras.layers:Embedding",
        "call",
        "lambda self, inputs: tf.nn.embedding_lookup(self.embeddings, inputs)",
    ),
    "sharded arrays": (
        "keras.src.backend:Variable",
        "__array__",
        "lambda self, dtype=None: tf.concat(self.value.variables, 0).numpy()",
    ),
    "sharded checkpoints": (
        "keras.src.backend:Variable",
        "_serialize_to_tensors",
        "lambda self: {str(n): each for n, each in enumerate(self.value.variables)}",
    ),
    **HEALTHY_TENSORFLOW,
    "inputs by name": (
        "keras.src.models.functional:Functional",
        "compute_output_spec",
        "lambda self, inputs: inputs['x']",
    ),
    "weights by name": (
        "keras.src.trainers.compile_utils:CompileLoss",
        "call",
        "lambda self, y, y_pred, weights: self._flat_losses[0].loss(y, y_pred, weights)",
    ),
    "building draws no batch": (
        "trainer",
        None,
        "lambda self, iterator=None, data_batch=None: None",
    ),
    "optimizers are saved by the names that all backends know": (
        "keras.src.api_export",
        "get_name_from_symbol",
        "lambda cls: 'keras.optimizers.' + cls.__name__",
    ),
}


@pytest.mark.slow
def test_each_probe_sees_that_a_keras_is_healthy(place):
    # Else the test of upstream's bugs could never fail.
    flavour, backend = place
    table = HEALTHY if flavour == "keras" else HEALTHY_TENSORFLOW
    found = in_new_process(
        f"""
        import importlib
        from types import SimpleNamespace as Handle
        from unittest import mock
        from gridflow._keras.patches import registry
        from gridflow._keras.patches import private_parts as parts
        if {backend!r} == "tensorflow":
            import tensorflow as tf

        def unrolled(self, step_function):
            def function(iterator):
                for _ in range(self.steps_per_execution):
                    batch = iterator.get_next()
                    with tf.control_dependencies([batch]):
                        result = step_function(batch)
                return result
            return function

        for fix in registry.known({flavour!r}):
            if not fix.concerns():
                continue
            home, name, healthy = {table!r}[fix.name]
            if home == "trainer":
                owner, name = (parts.trainer(), name) if name else parts.building()
            else:
                module, _, attribute = home.partition(":")
                owner = importlib.import_module(module)
                owner = getattr(owner, attribute) if attribute else owner
            assert fix.seen(), fix.name
            with mock.patch.object(owner, name, eval(healthy)):
                print(fix.name, fix.seen())
            assert fix.seen(), fix.name
        """,
        backend,
    )
    assert found.splitlines()
    assert [line for line in found.splitlines() if not line.endswith("False")] == []


@pytest.mark.slow
def test_patches_are_applied_on_import_and_import_nothing_themselves():
    found = in_new_process(
        """
        import sys
        from gridflow._keras.patches import registry
        assert registry.apply() == []
        assert not {"keras", "tf_keras", "tensorflow"} & set(sys.modules)
        import keras
        once = registry.apply()
        assert once and {fix.flavour for fix in once} == {"keras"}
        assert registry.apply() == once, "applying twice changes nothing"
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer as trainer
        patched = trainer._maybe_symbolic_build
        registry.apply()
        assert trainer._maybe_symbolic_build is patched
        assert "tf_keras" not in sys.modules
        import tf_keras
        # The bugs that are patched there were TensorFlow's, and are gone; its fit is wrapped.
        assert registry.apply() == once
        assert hasattr(tf_keras.Model.fit, "_gridflow_wrappers")
        print("ok")
        """
    )
    assert found == "ok"


@pytest.mark.slow
def test_what_was_patched_on_trial_before_the_fork_is_not_probed_again():
    found = in_new_process(
        """
        import os, sys
        import keras
        from gridflow._keras.patches import registry
        reading, writing = os.pipe()
        if not os.fork():
            os.write(writing, ",".join(registry.patch_on_trial()).encode())
            os._exit(0)
        tried = os.read(reading, 1 << 16).decode().split(",")
        registry.remember(tried)
        probed, patches = [], registry.known("keras")
        for fix in patches:
            seen = fix.seen
            probe = lambda fix=fix, seen=seen: probed.append(fix.name) or seen()
            object.__setattr__(fix, "seen", probe)
        applied = [fix.name for fix in registry.apply()]
        assert set(tried) <= set(applied), (tried, applied)
        assert not set(tried) & set(probed), probed
        still = [fix.name for fix in patches if fix.name in tried and fix.seen()]
        print(len(tried) > 5, still)
        """
    )
    assert found == "True []"


@pytest.mark.slow
def test_probes_leave_tensorflow_unstarted():
    # Devices can be configured, and a multi-worker strategy made, only before the context starts.
    found = in_new_process(
        """
        from gridflow._keras.patches import registry
        registry.apply()
        import keras, tf_keras
        from tensorflow.python.eager import context
        print(context.context()._context_handle)
        """
    )
    assert found == "None"


def raising(error):
    def probe():
        raise error

    return probe


@pytest.fixture
def bug():
    """Give what makes a bug that doesn't exist, of a Keras that need not be imported."""
    from gridflow._keras.patches import registry

    def make(seen, patch=lambda: None, **options):
        return registry.Patch("a bug", "tf_keras", "gradients are wrong", seen, patch, **options)

    return make


def test_a_probe_that_fails_is_an_error_that_names_the_version_and_the_patch(bug, monkeypatch):
    from gridflow._keras.patches import registry

    tf_keras = types.ModuleType("tf_keras")
    tf_keras.__version__ = "2.99.1"
    monkeypatch.setitem(sys.modules, "tf_keras", tf_keras)
    with pytest.raises(EnvironmentMismatch) as caught:
        registry.put_in(bug(raising(AttributeError("internals have moved"))))
    said = str(caught.value)
    for part in ("tf_keras 2.99.1", "'a bug'", "internals have moved", "gradients are wrong"):
        assert part in said
    assert "gridflow[tf-keras]" in said
    assert "GRIDFLOW_UNSAFE_KERAS=1" in said
    assert "\n" not in said


def test_a_patch_that_cannot_be_applied_or_changes_nothing_is_an_error(bug):
    from gridflow._keras.patches import registry

    with pytest.raises(EnvironmentMismatch, match="'a bug' can't be applied.*_private is gone"):
        registry.put_in(bug(lambda: True, raising(AttributeError("_private is gone"))))
    with pytest.raises(EnvironmentMismatch, match="'a bug' has no effect"):
        registry.put_in(bug(lambda: True))


def test_what_does_not_concern_a_process_is_not_probed(bug):
    from gridflow._keras.patches import registry

    assert not registry.put_in(bug(raising(AssertionError), concerns=lambda: False))
    assert not registry.put_in(bug(lambda: False, raising(AssertionError)))


def test_no_import_gets_a_flavour_that_was_refused():
    # Some of its patches may be in place: a second import must not go on with these.
    found = in_new_process(
        """
        import sys, types
        from gridflow.errors import EnvironmentMismatch
        from gridflow._keras.patches import registry
        registry.FLAVOURS["tf_keras"]["tensorflow"] = "missing"
        registry.apply()
        for _ in range(2):
            try:
                registry._CuringLoader(types.SimpleNamespace(exec_module=lambda _: None), "tf_keras"
                    ).exec_module(types.ModuleType("tf_keras"))
            except EnvironmentMismatch as error:
                print("can't be loaded" in str(error))
        """
    )
    assert found == "True\nTrue"


#: Python runs it first: a Keras that lacks what a patch has to do with.
LACKING = """
import importlib.abc, importlib.machinery, sys

class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "keras.src.backend.tensorflow.trainer":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module
        def execute_and_forget(module):
            execute(module)
            del module.reduce_per_replica
        spec.loader.exec_module = execute_and_forget
        return spec

sys.meta_path.insert(0, Lacking())
"""


def names_of_patches(ctx):
    import keras
    from gridflow._keras.patches import registry

    return keras.__version__, [fix.name for fix in registry.apply()]


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_a_keras_that_cannot_be_patched_ends_a_job_for_good_unless_it_may(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    given = {"env": {"PYTHONPATH": str(tmp_path)}, "launch_options": LaunchOptions(warm_seconds=0)}
    with pytest.raises(EnvironmentMismatch) as caught:
        run_job(names_of_patches, 2, max_restarts=3, **given)
    (first, *_), said = caught.value.failures, str(caught.value)
    assert (first.kind, first.generation) == ("environment", 0)
    assert first.summary.startswith("keras 3.")
    assert "reduce_per_replica" in first.summary
    assert "GRIDFLOW_UNSAFE_KERAS" in said

    given["env"]["GRIDFLOW_UNSAFE_KERAS"] = "1"
    ((_, patched),), result = run_job(names_of_patches, **given)
    assert "steps" in patched, "the patches are in force"
    (line,) = [line for line in result.logs(0).splitlines() if "reduce_per_replica" in line]
    assert "may be wrong" in line


def test_the_patches_are_made_for_the_versions_that_the_extras_allow():
    from gridflow._keras.patches import registry

    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    requirements = [each for extra in extras.values() for each in extra]
    for flavour, package in (("keras", "keras"), ("tf_keras", "tf-keras")):
        pinned = {each for each in requirements if re.match(rf"{package}[<>=]", each)}
        assert pinned
        major, minor = map(int, registry.MADE_FOR[flavour].split("."))
        for each in pinned:
            assert f">={major}.{minor}" in each
            assert f"<{major}.{minor + 1}" in each


@pytest.mark.parametrize(("version", "warns"), [("3.15.2", False), ("3.16.0", True), ("3.1", True)])
def test_a_version_that_no_patch_was_made_for_is_warned_of(version, warns, monkeypatch, caplog):
    from gridflow._keras.patches import registry

    keras = types.ModuleType("keras")
    keras.__version__ = version
    monkeypatch.setitem(sys.modules, "keras", keras)
    registry._warn_of_other_versions("keras")
    assert (f"this gridflow doesn't support keras {version} " in caplog.text) == warns
