"""spark-tensorflow-distributor, with rows that each worker reads from Parquet into tf.data."""

import time

from common import CASES, WORKERS, arguments, make_model, report, session
from spark_tensorflow_distributor import MirroredStrategyRunner


def train(case, path):
    import json
    import os

    import numpy as np
    import pandas as pd
    import tensorflow as tf
    import tf_keras
    from common import WORKERS

    batch_size, epochs, _ = CASES[case]
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    rows = pd.read_parquet(path)
    # Workers with unequal numbers of steps would wait for each other forever.
    rows = rows[: len(rows) // (WORKERS * batch_size) * WORKERS * batch_size][rank::WORKERS]
    strategy = tf.distribute.get_strategy()
    x, y = np.stack(rows["x"]), rows["y"].to_numpy()

    def pipeline(context):
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(batch_size).repeat()

    model = make_model(tf_keras, case)
    data = strategy.distribute_datasets_from_function(pipeline)
    steps = len(x) // batch_size
    model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0)
    return model.get_weights()


case, folder = arguments()
began = time.monotonic()
spark = session("by hand")
runner = MirroredStrategyRunner(num_slots=WORKERS, use_gpu=False)
weights = runner.run(train, case=case, path=str(folder / "train.parquet"))
report(case, folder, weights, began)
spark.stop()
