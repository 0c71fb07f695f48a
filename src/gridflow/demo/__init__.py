"""A Keras model of 336,776 flights on a Spark cluster of this machine: ``python -m gridflow.demo``.

It needs ``pip install 'gridflow[spark,tensorflow-cpu,demo]'`` and Java. Beside `__main__`, which
tells the story, are the rows (`flights`), the model and its training function (`training`), and the
page of results (`page`).
"""
