"""Process groups of the other backends than TensorFlow, one module each with the same functions.

``join(runtime, timeout)`` waits for all ranks. ``spread(num_workers)`` makes Keras train one model
on all of them, and returns how many devices share a global batch. ``equal_parts()`` returns the
number of equal parts into which a rank's batch is split (None: it isn't split, and batches may
differ between ranks). ``leave()`` shuts the group down cleanly. `cpu` is gridflow's own group,
which the ranks of all backends join.
"""
