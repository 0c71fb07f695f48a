"""Runs a function in the training processes of a real job, and returns what every rank returned."""

from __future__ import annotations

from gridflow import LocalLauncher, TensorflowDistributor

#: Replicas of ``mirrored``: logical CPU devices of the one process.
REPLICAS = 2


def run_job(function, num_workers=1, strategy="none", *, arguments=(), data=None, **options):
    """Return the value of each rank, and the job's result.

    Parameters
    ----------
    function : callable
        Called with ``ctx`` and the arguments.
    **options
        Of the distributor.
    """
    options = {"logs": "none", "progress": False, **options}
    distributor = TensorflowDistributor(num_workers, strategy, launcher=LocalLauncher(), **options)
    if strategy == "mirrored":
        function, arguments = on_replicas, (function, arguments)
    result = distributor.run(function, *arguments, data=data)
    return list(result.values), result


def on_replicas(ctx, function, arguments):
    """Call a function in a process of several replicas."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)]
    tf.config.set_logical_device_configuration(cpu, devices)
    return function(ctx, *arguments)
