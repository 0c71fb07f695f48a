"""What users bring along from one process, on two ranks or devices: the same, or refused."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from ranks import run_job

ROWS, BATCH = 64, 16
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 4)).astype("float32")
DATA = {"rows": {"x": X, "y": X[:, :1]}}


def gan_of(keras, strategy):
    """Return a compiled model without ``call``, of two others, as in the guides of Keras."""
    import tensorflow as tf

    class Gan(keras.Model):
        def __init__(self, generator, critic):
            super().__init__()
            self.generator, self.critic = generator, critic
            self.seen = keras.metrics.Mean(name="critic_loss")

        def compile(self, optimizers, loss):
            super().compile()
            self.optimizers, self.loss_of = optimizers, loss

        @property
        def metrics(self):
            return [self.seen]

        def train_step(self, data):
            x = data[0]
            ones = tf.ones((tf.shape(x)[0], 1))
            for optimizer, model in zip(
                self.optimizers, (self.critic, self.generator), strict=True
            ):
                with tf.GradientTape() as tape:
                    made = self.critic(self.generator(x))
                    if model is self.critic:
                        loss = self.loss_of(ones, self.critic(x)) + self.loss_of(0 * ones, made)
                        self.seen.update_state(loss)
                    else:
                        loss = self.loss_of(ones, made)
                weights = model.trainable_weights
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"critic_loss": self.seen.result()}

    def part(size):
        taken = keras.layers.Input((4,))
        return keras.Model(taken, keras.layers.Dense(size)(taken))

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Gan(part(4), part(1))
        optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)]
        model.compile(optimizers, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def brought_along(ctx):
    """Return what comes of a GAN, and what is said of what can't be, for both flavours."""
    import tensorflow as tf

    found = {}
    alone = tf.distribute.get_strategy()
    # A batch of one process is the union of those of the ranks.
    one = X.reshape(2, -1, BATCH // 2, 4).transpose(1, 0, 2, 3).reshape(-1, 4)
    for flavour in ("keras", "tf_keras"):
        keras = importlib.import_module(flavour)
        for name, strategy, rows in [
            ("alone", alone, tf.data.Dataset.from_tensor_slices((one, one[:, :1])).batch(BATCH)),
            (
                "together",
                ctx.strategy,
                ctx.dataset("rows", batch_size=BATCH // 2, features=["x"], label=["y"]),
            ),
        ]:
            model = gan_of(keras, strategy)
            with ctx.alone():
                history = model.fit(rows, epochs=2, verbose=0).history["critic_loss"]
            found[flavour, name] = [*history, *np.ravel(model.generator.get_weights()[0])]
        with pytest.raises(ValueError, match=r".") as caught:
            compiled(keras, alone).fit(
                ctx.dataset("rows", batch_size=BATCH, features=["x"], label=["y"]), verbose=0
            )
        found[flavour, "outside"] = str(caught.value)
    return found


def compiled(keras, strategy, **options):
    taken = keras.layers.Input((4,))
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Model(taken, keras.layers.Dense(1)(taken))
        model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_a_gan_trains_as_in_one_process_and_what_cant_be_is_refused():
    for found in run_job(brought_along, 2, "multi_worker_mirrored", data=DATA)[0]:
        for flavour in ("keras", "tf_keras"):
            assert found[flavour, "together"] == pytest.approx(found[flavour, "alone"], abs=1e-5)
            assert "with ctx.strategy.scope()" in found[flavour, "outside"]


def on_several_devices(ctx):
    """Return what a loop and tf_keras learn there and alone, and what is said of the rest."""
    import tensorflow as tf
    import tf_keras

    import keras

    alone = tf.distribute.get_strategy()
    said, found = {}, {}
    model = compiled(keras, ctx.strategy)
    for name, given in {
        "fit": (X, X[:, :1]),
        "evaluate": (X, X[:, :1]),
        "train_on_batch": (X, X[:, :1]),
        "predict_on_batch": (X,),
    }.items():
        with pytest.raises(ValueError, match=r".") as caught:
            getattr(model, name)(*given)
        said[name] = str(caught.value)
    with pytest.raises(ValueError, match=r".") as caught:
        compiled(tf_keras, ctx.strategy, jit_compile=True)
    said["xla"] = str(caught.value)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            losses = (model(x) - y)[:, 0] ** 2
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    rows = ctx.dataset("rows", batch_size=BATCH, features="x", label="y", shuffle=False)
    train = tf.function(lambda batch: ctx.strategy.run(step, args=(batch,)))
    for batch in rows:
        train(batch)
    found["loop"] = model.get_weights()
    for name, strategy in {"several": ctx.strategy, "alone": alone}.items():
        other = compiled(tf_keras, strategy)
        with ctx.alone():
            other.fit(X, X[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
        found[name] = other.get_weights()
    one = compiled(keras, alone)
    with ctx.alone():
        one.fit(X, X[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
    found["one"] = one.get_weights()
    return said, found


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_several_devices_of_a_process_train_loops_and_tf_keras_and_refuse_keras_3():
    ((said, found),), _ = run_job(on_several_devices, 1, "mirrored", data=DATA)
    assert "Leave jit_compile out" in said.pop("xla")
    for name, words in said.items():
        assert f"model.{name}() of Keras 3" in words
        assert "num_workers=8, gpus=1" in words
    for mine, wanted in (("loop", "one"), ("several", "alone")):
        for have, want in zip(found[mine], found[wanted], strict=True):
            np.testing.assert_allclose(have, want, atol=1e-5, err_msg=mine)


def rows_of_ones_own(ctx):
    """Return what each rank predicts for other rows than its peers, alone in the end."""
    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    mine = X[ctx.rank * 7 : ctx.rank * 7 + 7 - ctx.rank]
    found = [model.predict_on_batch(mine)]
    with ctx.strategy.scope():
        model.compile("sgd", "mse")
    model.set_weights([2 * each for each in model.get_weights()])
    if ctx.is_chief:  # nobody else takes part
        found.append(model.predict_on_batch(mine) / 2)
    expected = mine @ model.get_weights()[0] / 2
    return [float(np.abs(each - expected).max()) for each in found]


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_each_rank_predicts_its_own_batch_by_itself():
    chief, other = run_job(rows_of_ones_own, 2, "multi_worker_mirrored")[0]
    assert (len(chief), len(other)) == (2, 1)
    assert max(chief + other) < 1e-6


def models_of_nobody(ctx, captured):
    """Return what is said of models that aren't the group's, and that others train."""
    import tensorflow as tf

    found = {}
    for flavour in ("keras", "tf_keras"):
        keras = importlib.import_module(flavour)

        def made(scope, layer=None, keras=keras):
            with scope.scope():
                taken = keras.layers.Input((4,))
                model = keras.Model(taken, (layer or keras.layers.Dense(1))(taken))
                model.compile("sgd", "mse")
            return model

        nobody = tf.distribute.get_strategy()
        one_device = tf.distribute.OneDeviceStrategy("/cpu:0")
        outside = made(nobody)
        attempts = {
            "outside": lambda outside=outside: outside.fit(X, X[:, :1], verbose=0),
            "on a batch": lambda outside=outside: outside.train_on_batch(X, X[:, :1]),
            "another's": lambda made=made, one=one_device: made(one).fit(X, X[:, :1], verbose=0),
        }
        if flavour == "keras":  # the other looks by itself
            layer = keras.layers.Dense(1)
            layer.build((None, 4))
            mixed = made(ctx.strategy, layer)
            attempts["a layer of it"] = lambda mixed=mixed: mixed.fit(X, X[:, :1], verbose=0)
            attempts["captured"] = lambda: captured.fit(X, X[:, :1], verbose=0)
            own, other = made(ctx.strategy), keras.optimizers.SGD()
            attempts["its optimizer"] = lambda own=own, other=other: own.compile(other, "mse")
        for name, attempt in attempts.items():
            with pytest.raises(ValueError, match=r"with ctx\.strategy\.scope") as caught:
                attempt()
            found[flavour, name] = str(caught.value)
        with ctx.alone():
            outside.fit(X, X[:, :1], verbose=0)
        assert np.isfinite(outside.evaluate(X, X[:, :1], verbose=0))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_a_model_of_another_strategy_is_not_trained_as_many_models():
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    said, _ = run_job(models_of_nobody, 2, "multi_worker_mirrored", arguments=(model,))[0]
    assert len(said) == 9
    assert "the optimizer was created outside" in said["keras", "its optimizer"]
    assert "a separate model" in said["keras", "outside"]
    assert "with ctx.alone()" in said["keras", "captured"]


def own_strategy(ctx):
    """Return the losses of a program that makes its strategy by itself."""
    import tensorflow as tf

    import keras

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    rows = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(BATCH)
    return model.fit(rows, epochs=2, verbose=0).history["loss"]


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_a_program_may_make_its_strategy_by_itself():
    (one, other), _ = run_job(own_strategy, 2, "multi_worker_mirrored")
    assert one == pytest.approx(other)
    assert one[1] < one[0]


def own_data(ctx, folder):
    """Return by flavour what is predicted of rows in files, and statistics."""
    import tensorflow as tf

    numbers = np.arange(ROWS, dtype="float32")[:, None]
    files = tf.data.TextLineDataset([str(path) for path in sorted(folder.glob("*.txt"))])
    lines = files.map(lambda line: tf.reshape(tf.strings.to_number(line), (1,)))
    found = {}
    for flavour in ("keras", "tf_keras"):
        keras = importlib.import_module(flavour)
        with ctx.strategy.scope():
            taken = keras.layers.Input((1,))
            model = keras.Model(taken, keras.layers.Dense(1, kernel_initializer="ones")(taken))
            normalised = keras.Model(taken, keras.layers.BatchNormalization()(taken))
            normalised.compile("sgd", "mse")
        normalised.fit(numbers[:17], numbers[:17], batch_size=16, verbose=0)
        statistics = np.concatenate(normalised.get_weights())
        predicted = model.predict(lines.batch(6), verbose=0).ravel().tolist()
        found[flavour] = predicted, statistics
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_two_workers_predict_files_in_order_and_keep_statistics(tmp_path):
    # There is a file for each worker, which could read it alone.
    for number, rows in enumerate((range(7), range(7, 11))):
        (tmp_path / f"{number}.txt").write_text("".join(f"{row}\n" for row in rows))
    for found in run_job(own_data, 2, "multi_worker_mirrored", arguments=(tmp_path,))[0]:
        for predicted, statistics in found.values():
            assert predicted == list(range(11))
            assert np.isfinite(statistics).all(), "one of them has no row in the last step"


def helper(losses):
    import tensorflow as tf

    return tf.nn.compute_average_loss(losses)


class StandsForKeras:
    """A model of Keras, as far as its methods are concerned."""

    __module__ = "keras.src.models.model"

    def train_step(self, data):
        """Make a step."""

    def test_step(self, data):
        """Make another."""

    def compute_loss(self, losses):
        """Return a loss."""


class Plain(StandsForKeras):
    def call(self, x):
        return x


class Own(Plain):
    def train_step(self, data):
        return {}


class Scaled(Own):
    def compute_loss(self, losses):
        return helper(losses)


def test_a_class_that_scales_losses_by_itself_is_known_by_what_it_names():
    from gridflow._keras.group import own_steps

    class Divided(Own):
        def test_step(self, data):
            return data / self.strategy.num_replicas_in_sync

    assert [own_steps.has_own(each) for each in (Plain, Own, Scaled)] == [False, True, True]
    scaling = [own_steps.scales_itself(each) for each in (Plain, Own, Scaled, Divided)]
    assert scaling == [False, False, True, True]


def test_a_loss_that_cant_ask_other_replicas_says_so_once_and_divides_by_its_own(caplog):
    from gridflow._keras.patches.bugs import shares

    def add_up(numbers):
        return [2 * each for each in numbers]

    with shares.of(shares.ReplicaPart(3.0, add_up, is_reachable=lambda: False)):
        assert [shares.reachable("A loss of this test") for _ in range(2)] == [None, None]
        assert shares.current().times_a_sum() == 2
    (record,) = [each for each in caplog.records if "A loss of this test" in each.getMessage()]
    assert "Compute it in the step itself" in record.getMessage()
    assert shares.reachable("A loss of this test") is None, "outside of steps nobody is asked"
