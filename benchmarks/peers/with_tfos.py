"""TensorFlowOnSpark, with rows that Spark feeds."""

import time

from common import CASES, WORKERS, arguments, make_model, report, session
from tensorflowonspark import TFCluster


def train(args, ctx):
    import pickle
    from pathlib import Path

    import numpy as np
    import tensorflow as tf
    import tf_keras
    from common import CASES

    batch_size, epochs, _ = CASES[args["case"]]
    feed = ctx.get_data_feed(train_mode=True)

    def rows():
        while not feed.should_stop():
            batch = feed.next_batch(1)
            if batch:
                yield np.array(batch[0][0], "float32"), batch[0][1]

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    width = 10 if args["case"] == "flights" else 64
    signature = (tf.TensorSpec((width,), tf.float32), tf.TensorSpec((), args["label"]))
    data = tf.data.Dataset.from_generator(rows, output_signature=signature)
    data = data.shuffle(10_000).batch(batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    with strategy.scope():
        model = make_model(tf_keras, args["case"])
    # Ranks get unequal numbers of rows: train on nine tenths, so that none ends early.
    steps = int(0.9 * args["rows"] / ctx.num_workers / batch_size)
    model.fit(data.with_options(options), epochs=epochs, steps_per_epoch=steps, verbose=0)
    feed.terminate()
    if ctx.task_index == 0:
        Path(args["weights"]).write_bytes(pickle.dumps(model.get_weights()))


def main():
    import pickle
    import tempfile
    from pathlib import Path

    case, folder = arguments()
    began = time.monotonic()
    spark = session("TensorFlowOnSpark")
    rows = spark.read.parquet(str(folder / "train.parquet"))
    weights = Path(tempfile.mkdtemp(), "weights")
    label = "float32" if case == "flights" else "int64"
    args = {"case": case, "label": label, "weights": str(weights), "rows": rows.count()}
    cluster = TFCluster.run(
        spark.sparkContext, train, args, WORKERS, 0, input_mode=TFCluster.InputMode.SPARK
    )
    rdd = rows.rdd.map(lambda row: (list(row.x), row.y)).repartition(WORKERS)
    cluster.train(rdd, num_epochs=CASES[case][1])
    cluster.shutdown(grace_secs=5, timeout=-1)
    report(case, folder, pickle.loads(weights.read_bytes()), began)
    spark.stop()


main()
