"""What gridflow adds to Keras and to TensorFlow, whether these have bugs or not.

A hook has no bug to look for: it keeps the position of a fit, lets rows count once, averages over
ranks. What is broken has a patch, in `gridflow._keras.patches.bugs`.
"""
