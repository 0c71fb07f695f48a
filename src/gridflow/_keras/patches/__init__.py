"""Changes to Keras and TensorFlow in training processes.

``bugs`` fixes bugs, each patch with a probe that detects the bug; ``hooks`` adds what gridflow
always needs; ``registry`` applies both.
"""
