"""What gridflow adds to Keras and TensorFlow, independently of bugs.

Hooks keep the position of a fit, make rows count once, or average over ranks. Bugs are patched in
`gridflow._keras.patches.bugs`.
"""
