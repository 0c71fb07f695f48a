"""gridflow."""

import time

from common import CASES, WORKERS, arguments, make_model, report, session

from gridflow import TensorflowDistributor


def train(ctx, case):
    import keras

    batch_size, epochs, _ = CASES[case]
    with ctx.strategy.scope():
        model = make_model(keras, case)
    rows = ctx.dataset(batch_size=batch_size, features="x", label="y")
    model.fit(rows, epochs=epochs, verbose=0)
    return model.get_weights()


case, folder = arguments()
began = time.monotonic()
spark = session("gridflow")
rows = spark.read.parquet(str(folder / "train.parquet"))
distributor = TensorflowDistributor(WORKERS, logs="none", progress=False)
weights = distributor.run(train, case, data=rows).value
report(case, folder, weights, began)
spark.stop()
