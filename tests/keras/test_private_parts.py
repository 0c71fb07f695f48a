"""Each private part that is used as it is: there in what is installed, named where it isn't."""

from __future__ import annotations

import sys

import pytest

from gridflow._keras.patches import private_parts
from gridflow._keras.patches.private_parts import MissingPart
from gridflow.errors import MissingDependency
from suite.new_process import in_new_process, skip_without


@pytest.mark.slow
def test_each_part_of_keras_3_is_there():
    found = in_new_process(
        """
        import numpy as np
        import keras
        from gridflow._keras.patches import private_parts as parts

        assert parts.global_seeds() == []
        parts.set_random_seed(1)
        inputs = {"a": keras.Input((4,), name="a")}
        model = keras.Model(inputs, {"b": keras.layers.BatchNormalization()(inputs["a"])})
        model.compile(keras.optimizers.SGD(), "mse", metrics=["mae"])
        assert list(parts.structure(model, "input")) == ["a"]
        assert list(parts.structure(model, "output")) == ["b"]
        assert parts.layer_of(model.outputs[0]) is model.layers[1]
        itself, _, normalization = parts.layers(model)
        assert itself is model
        names = [each.name for each in parts.own_statistics(normalization)]
        assert names == ["moving_mean", "moving_variance"], names
        assert not parts.is_optimizer_built(model.optimizer)
        symbol = keras.KerasTensor((2, 4))
        parts.build(model, ({"a": symbol}, {"b": symbol}))
        assert parts.is_optimizer_built(model.optimizer)
        plain = keras.Sequential([keras.layers.Dense(1)])
        parts.compute_output_spec(plain, symbol)
        assert plain.built
        assert parts.structure(plain, "input") is None
        x, y = {"a": np.ones((2, 4))}, {"b": np.zeros((2, 4))}
        loss = model.compute_loss(x, y, model(x), None, training=True)
        parts.count_loss(model, loss, 2)
        assert float(model.get_metrics_result()["loss"]) == float(loss) > 0
        assert parts.shards(model.weights[0]) is None
        callback = keras.callbacks.Callback()
        callback.set_model(model)
        assert parts.model_of(callback) is model
        keras.random.normal((1,))
        assert len(parts.global_seeds()) == 1
        print(parts.is_started())
        """
    )
    assert found == "TensorFlow's context already exists"


@pytest.mark.slow
def test_each_part_of_tf_keras_is_there():
    pytest.importorskip("tf_keras")
    in_new_process(
        """
        import tf_keras as keras
        from gridflow._keras.patches import private_parts as parts
        from gridflow._keras.neutral import NeutralCallback

        dense = keras.layers.Dense(1, input_shape=(4,))
        model = keras.Sequential([dense, keras.layers.Dropout(0.5)])
        model.compile("sgd", "mse")
        assert len(parts.layers(model)) >= 2
        assert parts.structure(model, "input") is not None
        assert int(parts.train_counter(model)) == 0
        assert parts.random_states(model) == []
        keras.backend.experimental.enable_tf_random_generator()
        model.add(keras.layers.Dropout(0.5))
        assert len(parts.random_states(model)) == 1
        old = keras.optimizers.legacy.Adam()
        assert parts.is_optimizer_built(old)
        parts.make_slots(old, model.trainable_variables)
        assert len(old.get_weights()) == 5
        asked = {each for each in vars(parts.Answers) if each[0] == "_" != each[1]}
        assert len(asked) == 5, asked
        assert not asked - set(dir(keras.callbacks.Callback())), asked
        """
    )


@pytest.mark.slow
def test_a_variable_in_shards_is_known_by_them():
    in_new_process(
        """
        from types import SimpleNamespace
        import tensorflow as tf
        from gridflow._keras.patches import private_parts as parts
        from tensorflow.python.distribute.sharded_variable import ShardedVariable

        two = [tf.Variable([[1.0]]), tf.Variable([[2.0]])]
        found = parts.shards(SimpleNamespace(_value=ShardedVariable(two)))
        assert [each.numpy().item() for each in found] == [1, 2]
        """
    )


@pytest.mark.slow
def test_each_part_of_jax_is_there():
    skip_without("jax")
    found = in_new_process(
        """
        import jax
        from gridflow._keras.patches import private_parts as parts
        assert parts.is_started() is None
        parts.leave_jax_without_waiting()
        parts.listen_as("127.0.0.1")
        jax.devices()
        print(parts.is_started())
        """,
        "jax",
    )
    assert found == "JAX's devices are already initialised"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_fit_can_be_hooked_under_each_backend(backend):
    skip_without(backend)
    found = in_new_process(
        """
        import numpy as np
        import keras
        from gridflow._keras.patches.hooks import position
        position.install_imported()
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

        class Later(keras.callbacks.Callback):
            steps = []
            def on_train_begin(self, logs=None):
                assert position.batch_size(model) == 2
                position.begin_at(model, "keras", position.FitStart(0, 3))
            def on_epoch_begin(self, epoch, logs=None):
                position.forget(model, "keras")
            def on_train_batch_begin(self, batch, logs=None):
                self.steps.append(batch)

        x = np.zeros((10, 1))
        model.fit(x, x, batch_size=2, verbose=0, callbacks=[Later()])
        print(Later.steps)
        """,
        backend,
    )
    assert found == "[3, 4]"


class Trainer:
    """Stands for a class of Keras, in a version that has changed."""

    __module__ = "keras.src.trainers.trainer"
    _kept = 1


class OfAUser(Trainer):
    """Inherits from it, elsewhere."""


@pytest.fixture
def _new_keras(monkeypatch):
    keras = type(sys)("keras")
    keras.__version__ = "3.99.0"
    monkeypatch.setitem(sys.modules, "keras", keras)


@pytest.mark.usefixtures("_new_keras")
@pytest.mark.parametrize("owner", [Trainer, Trainer(), OfAUser()])
def test_a_part_that_is_gone_is_named_with_the_version(owner):
    assert private_parts.part(owner, "_kept") == 1
    with pytest.raises(
        MissingPart, match=r"keras 3\.99\.0 has no .*trainer\.Trainer\._gone"
    ) as caught:
        private_parts.part(owner, "_gone")
    assert "pip install 'gridflow[tensorflow]'" in str(caught.value)
    assert isinstance(caught.value, MissingDependency)


@pytest.mark.usefixtures("_new_keras")
def test_a_module_that_is_gone_is_named_and_a_package_that_is_not_installed_is_as_ever():
    with pytest.raises(MissingPart, match=r"keras 3\.99\.0 has no keras\.gone"):
        private_parts.module("keras.gone")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        private_parts.module("no_such_package.part")


@pytest.mark.slow
def test_iterators_on_devices_tune_nothing():
    tuned = in_new_process(
        """
        import tensorflow as tf
        from tensorflow.python.data.ops import multi_device_iterator_ops as home
        from gridflow._keras.patches.hooks import untuned

        cpu = tf.config.list_physical_devices("CPU")[0]
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, halves)
        made = []

        def iterate():
            create = home._create_device_dataset
            def watched(*args, **kwargs):
                made.append(create(*args, **kwargs))
                return made[-1]
            home._create_device_dataset = watched
            strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
            rows = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2))
            assert len(list(rows)) == 4
            home._create_device_dataset = create
            return {each.options().autotune.enabled for each in made}

        before = iterate()
        made.clear()
        untuned.install()
        print(before, iterate())
        """
    )
    assert tuned == "{None} {False}"
