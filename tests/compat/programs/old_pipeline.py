"""A program as people wrote them for TensorFlowOnSpark 2.2 and Keras 2; it is left unchanged."""

import argparse

import numpy as np
import tensorflow as tf
from pyspark.context import SparkContext
from pyspark.sql import SparkSession
from tensorflow.keras import Sequential
from tensorflow.keras.layers import Dense
from tensorflowonspark import TFNode, compat
from tensorflowonspark.pipeline import TFEstimator


def main_fun(args, ctx):
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = Sequential()
        model.add(Dense(1, activation="linear", input_shape=[2]))
        model.compile(optimizer=tf.keras.optimizers.Adam(lr=0.2), loss="mse", metrics=["mse"])
    tf_feed = TFNode.DataFeed(ctx.mgr, input_mapping=args.input_mapping)

    def rdd_generator():
        while not tf_feed.should_stop():
            batch = tf_feed.next_batch(1)
            if len(batch["x"]) > 0:
                yield (batch["x"][0], batch["y_"][0])
            else:
                return

    shapes = (tf.TensorShape([2]), tf.TensorShape([1]))
    ds = tf.data.Dataset.from_generator(rdd_generator, (tf.float32, tf.float32), shapes)
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    ds = ds.with_options(options).batch(args.batch_size)
    # only 90% of the rows, to account for uneven partitions
    steps_per_epoch = args.rows * 0.9 // (args.batch_size * ctx.num_workers)
    tf.io.gfile.makedirs(args.model_dir)
    filepath = args.model_dir + "/weights-{epoch:04d}"
    callbacks = [tf.keras.callbacks.ModelCheckpoint(filepath=filepath, save_weights_only=True)]
    model.fit(
        ds, epochs=args.epochs, steps_per_epoch=steps_per_epoch, callbacks=callbacks, verbose=0
    )
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")
    tf_feed.terminate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--out")
    args = parser.parse_args()
    sc = SparkContext("local-cluster[2,1,1024]", "old pipeline")
    spark = SparkSession.builder.getOrCreate()
    features = np.random.RandomState(1).rand(args.rows, 2)
    labels = np.matmul(features, np.array([3.14, 1.618]))
    rows = [(features[i].tolist(), [labels[i].item()]) for i in range(args.rows)]
    df = sc.parallelize(rows, 2).toDF(["col1", "col2"])
    estimator = (
        TFEstimator(main_fun, args)
        .setInputMapping({"col1": "x", "col2": "y_"})
        .setModelDir(args.out + "/model")
        .setExportDir(args.out + "/export")
        .setClusterSize(2)
        .setMasterNode("chief")
        .setNumPS(0)
        .setBatchSize(1)
        .setEpochs(1)
    )
    model = estimator.fit(df)
    model.setTagSet("serve").setSignatureDefKey("serving_default")
    model.setInputMapping({"c1": "dense_input"}).setOutputMapping({"dense": "cout"})
    preds = model.transform(spark.createDataFrame([([1.0, 1.0], 0.0)], ["c1", "c2"])).head()
    print("prediction", preds.cout[0])
    spark.stop()
