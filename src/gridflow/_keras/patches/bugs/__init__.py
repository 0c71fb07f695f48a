"""Patches for bugs of Keras, TensorFlow and JAX.

Each bug has a patch with a probe (`gridflow._keras.patches.registry`). Private parts that are used
unchanged are in `gridflow._keras.patches.private_parts`. What gridflow adds independently of bugs
is in `gridflow._keras.patches.hooks`. A test checks that no other code uses private parts, so a new
version of Keras affects only these.
"""
