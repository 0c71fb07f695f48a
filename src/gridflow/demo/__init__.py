"""Trains a model of 336,776 flights on a local Spark cluster: ``python -m gridflow.demo``.

Needs ``pip install 'gridflow[spark,tensorflow-cpu,demo]'`` and Java. `__main__` runs the demo;
`flights` prepares the rows, `training` has the model and its training function, and `__main__` runs
it and makes the page of results.
"""
