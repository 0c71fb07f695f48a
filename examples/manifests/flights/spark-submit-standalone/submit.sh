#!/bin/sh
set -eu
application="$(python -c 'import gridflow.deploy.inside.spark_main as m; print(m.__file__)')"
exec spark-submit \
  --master "${SPARK_MASTER:?set it to spark://HOST:7077}" \
  --name flights \
  --conf spark.executor.instances=2 \
  --conf spark.executor.cores=2 \
  --conf spark.task.cpus=2 \
  --conf spark.executor.memory=1024m \
  --conf spark.executor.memoryOverhead=3072m \
  --conf spark.driver.memory=2048m \
  --conf spark.driver.cores=1 \
  --conf spark.dynamicAllocation.enabled=false \
  --conf spark.speculation=false \
  --conf spark.cores.max=4 \
  "$application" \
  --name=flights \
  --roles=worker=2 \
  --restart-limit=3 \
  --deadline=21600 \
  -- \
  python \
  /app/train.py \
  --data=/data/flights \
  --model=/data/models/flights/1 \
  --logs=/data/logs \
  --epochs=5
