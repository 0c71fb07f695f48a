"""Ray Train, on a Ray cluster of this machine, with rows by Ray Data."""

import tempfile
import time
from pathlib import Path

import numpy as np
import ray
import ray.data
import ray.train
from common import CASES, WORKERS, arguments, make_model, report
from ray.train.tensorflow import TensorflowTrainer


def train(config):
    import tensorflow as tf
    import tf_keras

    case = config["case"]
    batch_size, epochs, _ = CASES[case]
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = make_model(tf_keras, case)
    shard = ray.train.get_dataset_shard("train")
    for _ in range(epochs):
        rows = shard.to_tf("x", "y", batch_size=batch_size, drop_last=True)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        model.fit(rows.with_options(options), verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "weights.npz"), *model.get_weights())
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))


case, folder = arguments()
began = time.monotonic()
# Two logical processors more than workers: Ray Data reads in processes of its own.
ray.init(num_cpus=2 * WORKERS, include_dashboard=False, log_to_driver=False)
rows = ray.data.read_parquet(str(folder / "train.parquet"))
rows = rows.map_batches(lambda batch: {"x": np.stack(batch["x"]), "y": batch["y"]})
trainer = TensorflowTrainer(
    train,
    train_loop_config={"case": case},
    scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
    datasets={"train": rows},
)
with trainer.fit().checkpoint.as_directory() as saved:
    weights = list(np.load(Path(saved, "weights.npz")).values())
report(case, folder, weights, began)
ray.shutdown()
