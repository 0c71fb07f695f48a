"""What is said to TensorFlow: on a real GPU where there is one, else to its settings."""

from __future__ import annotations

import pytest

from gridflow import (
    CommunicationOptions,
    Distribution,
    LocalLauncher,
    TensorflowDistributor,
    errors,
)
from gridflow._gpu import devices


def has_gpu():
    """Return whether nvidia-smi works, and finds something."""
    try:
        return bool(devices.find())
    except devices.NoAnswer:
        return False


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


@pytest.mark.slow
@pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
def test_a_part_of_a_real_gpu_has_a_part_of_its_memory():
    distributor = TensorflowDistributor(
        gpus=0.25, launcher=LocalLauncher(), logs="none", progress=False
    )
    (address,), limit, product, too_much = distributor.run(use_memory).value
    memory = {str(device.index): device.memory for device in devices.find()}[address]
    assert limit == devices.part_of(memory, 4)
    assert product == 64**3
    assert too_much


@pytest.mark.slow
def test_the_limit_is_set_on_every_gpu_of_the_process(monkeypatch):
    import tensorflow as tf

    asked = {}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind}:0", f"{kind}:1"])
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", asked.__setitem__)
    devices.limit_memory(None)
    assert asked == {}
    devices.limit_memory(2048)
    assert {gpu: part.memory_limit for gpu, (part,) in asked.items()} == {
        "GPU:0": 2048,
        "GPU:1": 2048,
    }


@pytest.mark.slow
def test_a_servers_settings_say_the_same():
    assert devices.server_config(None, 2) is None
    assert devices.server_config(2048, 0) is None
    options = devices.server_config(2048, 2).gpu_options.experimental
    assert [list(each.memory_limit_mb) for each in options.virtual_devices] == [[2048], [2048]]


def communicate(ctx):
    """Return the options that the strategy has."""
    options = ctx.strategy.extended._communication_options
    return options.implementation.value, options.timeout_seconds, options.bytes_per_pack


@pytest.mark.slow
@pytest.mark.slow
def test_communication_options_reach_tensorflow():
    options = CommunicationOptions("ring", timeout_seconds=90, bytes_per_pack=1 << 20)
    distributor = TensorflowDistributor(
        2,
        distribution=Distribution(communication=options),
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
    )
    assert distributor.run(communicate).value == ("RING", 90, 1 << 20)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CommunicationOptions("rings"), "Did you mean 'ring'"),
        (lambda: CommunicationOptions(timeout_seconds=0), "greater than 0, or None; got 0"),
        (lambda: CommunicationOptions(bytes_per_pack=-1), "bytes_per_pack must be a whole number"),
        (
            lambda: TensorflowDistributor(2, distribution=Distribution(communication="ring")),
            "got str",
        ),
        (
            lambda: TensorflowDistributor(
                2, "none", distribution=Distribution(communication=CommunicationOptions())
            ),
            "needs strategy='multi_worker_mirrored'",
        ),
    ],
)
def test_other_options_are_refused(make, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        make()
