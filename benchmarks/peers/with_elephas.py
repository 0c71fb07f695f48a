"""elephas: averages the weights of workers that train alone, after each epoch."""

import time

from common import CASES, WORKERS, arguments, make_model, report, session
from elephas.spark_model import SparkModel

import keras

case, folder = arguments()
batch_size, epochs, _ = CASES[case]
began = time.monotonic()
spark = session("elephas")
rows = spark.read.parquet(str(folder / "train.parquet"))
rdd = rows.rdd.map(lambda row: (row.x, row.y)).repartition(WORKERS)
model = SparkModel(
    make_model(keras, case), frequency="epoch", mode="synchronous", num_workers=WORKERS
)
model.fit(rdd, epochs=epochs, batch_size=batch_size, verbose=0, validation_split=0.0)
report(case, folder, model.master_network.get_weights(), began)
spark.stop()
