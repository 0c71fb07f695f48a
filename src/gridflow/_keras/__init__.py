"""Keras on several workers: patches, callbacks, checkpoints, results.

Nothing here imports TensorFlow or Keras before a function is called.
"""
