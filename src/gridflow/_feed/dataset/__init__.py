"""From rows on disk to the batches of a training loop: ``tf.data``, or numpy arrays."""
