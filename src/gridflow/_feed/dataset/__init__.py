"""From rows on disk to what a training loop draws: ``tf.data``, or arrays of numpy."""
