"""Ray Train, on a Ray cluster of this machine, with rows that each worker reads into tf.data."""

import tempfile
import time
from pathlib import Path

import numpy as np
import ray
import ray.train
from common import CASES, WORKERS, arguments, make_model, report
from ray.train.tensorflow import TensorflowTrainer


def train(config):
    import pandas as pd
    import tensorflow as tf
    import tf_keras

    case = config["case"]
    batch_size, epochs, _ = CASES[case]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = make_model(tf_keras, case)
    rows = pd.read_parquet(config["path"])
    # Workers with unequal numbers of steps would wait for each other forever.
    rows = rows[: len(rows) // (WORKERS * batch_size) * WORKERS * batch_size]
    rows = rows[ray.train.get_context().get_world_rank() :: WORKERS]
    x, y = np.stack(rows["x"]), rows["y"].to_numpy()

    def pipeline(context):
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(batch_size).repeat()

    data = strategy.distribute_datasets_from_function(pipeline)
    model.fit(data, epochs=epochs, steps_per_epoch=len(x) // batch_size, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "weights.npz"), *model.get_weights())
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))


case, folder = arguments()
began = time.monotonic()
ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
trainer = TensorflowTrainer(
    train,
    train_loop_config={"case": case, "path": str(folder / "train.parquet")},
    scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
)
with trainer.fit().checkpoint.as_directory() as saved:
    weights = list(np.load(Path(saved, "weights.npz")).values())
report(case, folder, weights, began)
ray.shutdown()
