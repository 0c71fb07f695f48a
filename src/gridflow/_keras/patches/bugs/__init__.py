"""Access to private parts of Keras, TensorFlow and JAX, and patches for their bugs.

Each bug has a patch with a probe (`gridflow._keras.patches.registry`). Private parts that are used
unchanged are in `parts`. What gridflow adds independently of bugs is in
`gridflow._keras.patches.hooks`. A test checks that no code outside these two folders uses private
parts, so a new version of Keras affects only them.
"""
