"""What gridflow changes in Keras and TensorFlow while a process trains.

``bugs`` mends what is broken, each patch with a probe that sees the bug; ``hooks`` adds what
gridflow always needs; ``registry`` puts both in.
"""
