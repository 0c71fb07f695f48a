"""What is said to TensorFlow about GPUs and communication."""

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
    """Return the options of TensorFlow's strategy, through which the group exchanges values."""
    options = ctx.strategy.extended.exchange._owner.extended._communication_options
    return options.implementation.value, options.timeout_seconds, options.bytes_per_pack


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
