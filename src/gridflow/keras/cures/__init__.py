"""The one door to the private parts of Keras, and of TensorFlow and JAX below it.

What is broken has a cure each, with its probe (`gridflow.keras.fixes`); what only has no public
name is in `gridflow.keras.cures.parts`. What gridflow adds, bug or not, is in
`gridflow.keras.hooks`. Nothing outside of these two folders touches such parts, which a test
watches over: a new version of Keras is a matter of these folders.
"""
