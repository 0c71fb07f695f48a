"""Predictions of a model's own process beside each executor: ``gridflow.predict``.

`frames` is the driver's half, `process` the model's process. What lies between them is Java:
``io.gridflow.inference``.
"""
