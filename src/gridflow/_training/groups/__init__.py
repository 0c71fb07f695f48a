"""Groups of processes under JAX and torch, a module each with the same functions.

``join(runtime, timeout)`` waits for all ranks. ``spread(num_workers)`` lets Keras train one model
on all of them, and returns how many devices share a global batch. ``gather(content)`` returns the
bytes of all ranks, ``equal_parts()`` into how many equal parts a rank's batch is cut (None: it
isn't, and ranks needn't have equal ones), and ``leave()`` ends the group in good order. `cpu` is
for TensorFlow, whose strategy is the group: it only exchanges values in another way.
"""
