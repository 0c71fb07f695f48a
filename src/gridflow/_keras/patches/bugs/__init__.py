"""The one door to the private parts of Keras, and of TensorFlow and JAX below it.

What is broken has a patch each, with its probe (`gridflow._keras.patches.registry`); what only has
no public name is in `parts`. What gridflow adds, bug or not, is in `gridflow._keras.patches.hooks`.
Nothing outside of these two folders touches such parts, which a test watches over: a new version of
Keras is a matter of these folders.
"""
