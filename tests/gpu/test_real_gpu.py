"""What only a real GPU can show. Skipped where there is none."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest

from gridflow import (
    CommunicationOptions,
    Distribution,
    LocalLauncher,
    TensorflowDistributor,
    errors,
)
from gridflow._gpu import devices
from suite.new_process import skip_without
from suite.waiting import patience, wait_for

#: Of the GPU for each task, so that tests can run at the same time.
PART, SHARES = 0.1, 10
#: A GPU computes in TensorFloat-32 otherwise, with three decimal digits.
EXACT = {"NVIDIA_TF32_OVERRIDE": "0", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}


def has_gpu():
    """Return whether nvidia-smi works, and finds something."""
    try:
        return bool(devices.find())
    except devices.NoAnswer:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_gpu(), reason="there is no GPU here"),
]


def distributor(num_workers=1, strategy="multi_worker_mirrored", **options):
    """Return a silent distributor of processes of this machine."""
    options = {"launcher": LocalLauncher(), "logs": "none", "progress": False, **options}
    return TensorflowDistributor(num_workers, strategy, **options)


def use_memory(ctx):
    """Compute on the GPU; return its address, what its limit is, and what can't be had."""
    import tensorflow as tf

    (gpu,) = tf.config.list_physical_devices("GPU")
    (part,) = tf.config.get_logical_device_configuration(gpu)
    with tf.device("GPU:0"):
        product = float(tf.reduce_sum(tf.ones((64, 64)) @ tf.ones((64, 64))))
    too_much = False
    try:
        tf.zeros((part.memory_limit + 64, 1 << 20), tf.int8)
    except tf.errors.ResourceExhaustedError:
        too_much = True
    return ctx.gpus, part.memory_limit, product, too_much


def test_a_part_of_a_gpu_has_a_part_of_its_memory():
    (address,), limit, product, too_much = distributor(gpus=PART).run(use_memory).value
    memory = {str(device.index): device.memory for device in devices.find()}[address]
    assert limit == devices.part_of(memory, SHARES)
    assert product == 64**3
    assert too_much


def see_with_jax(ctx):
    """Return JAX's device, and the bytes that it may take."""
    import jax

    (device,) = jax.devices()
    assert float(jax.numpy.ones((64, 64)).sum()) == 64**2
    return ctx.gpus, device.platform, device.memory_stats()["bytes_limit"]


def test_a_part_of_a_gpu_has_a_part_of_its_memory_on_jax():
    skip_without("jax")
    job = distributor(strategy="none", backend="jax", gpus=PART)
    (address,), platform, limit = job.run(see_with_jax).value
    memory = {str(device.index): device.memory for device in devices.find()}[address]
    assert platform == "gpu"
    # JAX's fraction is of what CUDA reports, which is a little less.
    assert 0.9 < limit / (devices.part_of(memory, SHARES) << 20) <= 1.01


def learn(ctx, epochs=3):
    """Train on the job's rows, in their order; return the weights of this rank."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    rng = np.random.default_rng(1)  # torch's own generators differ between devices
    model.set_weights([rng.normal(size=each.shape, scale=0.3) for each in model.get_weights()])
    batch = 64 // ctx.num_workers
    rows = ctx.dataset(batch_size=batch, features="x", label="y", shuffle=False)
    history = model.fit(rows, epochs=epochs, verbose=0).history
    weights = [np.asarray(each) for each in model.get_weights()]
    return list(ctx.gpus), weights, history["loss"]


def table(workers):
    """Return 1,024 rows, so that the ranks' shares make the same global batches."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1024, 8)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(8, 1))).astype("float32")[:, 0]
    order = np.arange(1024).reshape(-1, workers, 64 // workers).swapaxes(0, 1).reshape(-1)
    return {"train": {"x": x[order], "y": y[order]}}


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_a_gpu_learns_what_a_cpu_learns(backend):
    skip_without(backend)
    found = {}
    for gpus in (0, PART):
        job = distributor(strategy="none", backend=backend, gpus=gpus, env=EXACT)
        found[gpus] = job.run(learn, data=table(1)).value
    assert found[0][0] == []
    assert len(found[PART][0]) == 1
    for on_cpu, on_gpu in zip(found[0][1], found[PART][1], strict=True):
        np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-5)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_ranks_that_share_a_gpu_train_one_model(backend, workers):
    skip_without(backend)
    alone = distributor(strategy="none", backend=backend, gpus=PART, env=EXACT)
    expected = alone.run(learn, data=table(1)).value
    job = distributor(workers, backend=backend, gpus=PART, env=EXACT)
    values = job.run(learn, data=table(workers)).values
    assert len({tuple(gpus) for gpus, _, _ in values}) == 1
    for _, weights, losses in values:
        for mine, first, right in zip(weights, values[0][1], expected[1], strict=True):
            np.testing.assert_array_equal(mine, first)
            np.testing.assert_allclose(mine, right, atol=1e-5)
        np.testing.assert_allclose(losses, expected[2], rtol=1e-4)


def test_nccl_refuses_ranks_that_see_the_same_gpu():
    nccl = Distribution(communication=CommunicationOptions("nccl"))
    job = distributor(2, distribution=nccl, env={"CUDA_VISIBLE_DEVICES": "0"})
    with pytest.raises(errors.GridflowError, match="needs a GPU for each worker"):
        job.run(learn, data=table(2))


def test_the_ring_takes_ranks_that_share_a_gpu():
    ring = Distribution(communication=CommunicationOptions("ring"))
    values = (
        distributor(2, gpus=PART, distribution=ring, env=EXACT).run(learn, data=table(2)).values
    )
    for mine, first in zip(values[1][1], values[0][1], strict=True):
        np.testing.assert_allclose(mine, first, atol=1e-6)


def ask_for_too_much(ctx):
    """Ask for more memory than there is."""
    import tensorflow as tf

    return ctx.barrier(), tf.zeros((1 << 22, 1 << 20), tf.int8)


def test_memory_that_is_not_there_ends_in_an_error_that_says_so():
    with pytest.raises(errors.TrainingFailed, match="ResourceExhausted|OOM"):
        distributor(gpus=PART).run(ask_for_too_much)


HOLD = """
import sys, torch
held = torch.ones(1 << 20, device="cuda")
print("holds", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def somebody_computes():
    """Let another program compute on the first GPU."""
    skip_without("torch")
    words = [sys.executable, "-c", HOLD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"holds\n"
        try:
            yield
        finally:
            program.stdin.close()
            program.wait(patience())


def test_a_gpu_on_which_another_program_computes_is_not_free():
    if len(devices.find()) > 1:
        pytest.skip("there are other GPUs")
    with somebody_computes():
        assert devices.busy() == {device.uuid for device in devices.find()}
        with pytest.raises(errors.NotEnoughGpus, match="1"):
            distributor(gpus=1).run(learn, data=table(1))
    wait_for(lambda: not devices.busy(), "a GPU without programs", seen=devices.busy)


def test_names_are_those_of_the_driver():
    (first, *_) = devices.find()
    assert devices.names(None, len(devices.find())) == [each.uuid for each in devices.find()]
    assert devices.names(str(first.index), 1) == [first.uuid]
    assert json.dumps(devices.names(first.uuid, 1)) == json.dumps([first.uuid])
