#!/bin/sh
set -eu
cd "$(dirname "$0")"
grep -qxF secrets .dockerignore || { echo '.dockerignore needs the line secrets to keep them out of the image' >&2; exit 1; }
docker build --tag registry.example/acme/flights:1.0 --file Dockerfile .
docker network inspect flights >/dev/null 2>&1 || docker network create flights
docker run \
  --detach \
  --init \
  --name=flights-worker-0 \
  --hostname=flights-worker-0 \
  --network=flights \
  --cpus=2 \
  --memory=4294967296 \
  --mount=type=volume,source=flights-data,target=/data \
  --shm-size=1073741824 \
  --env=GRIDFLOW_ROLE=worker \
  --env=GRIDFLOW_INDEX=0 \
  '--env=GRIDFLOW_CLUSTER={"worker":["flights-worker-0:2222","flights-worker-1:2222"]}' \
  '--env=GRIDFLOW_GIVE_UP={"worker":["flights-worker-0:2223","flights-worker-1:2223"]}' \
  --entrypoint=gridflow registry.example/acme/flights:1.0 launch \
  --restart-policy=on-failure \
  --restart-limit=3 \
  --deadline=21600 \
  -- python /app/train.py \
  --data=/data/flights \
  --model=/data/models/flights/1 \
  --logs=/data/logs \
  --epochs=5
docker run \
  --detach \
  --init \
  --name=flights-worker-1 \
  --hostname=flights-worker-1 \
  --network=flights \
  --cpus=2 \
  --memory=4294967296 \
  --mount=type=volume,source=flights-data,target=/data \
  --shm-size=1073741824 \
  --env=GRIDFLOW_ROLE=worker \
  --env=GRIDFLOW_INDEX=1 \
  '--env=GRIDFLOW_CLUSTER={"worker":["flights-worker-0:2222","flights-worker-1:2222"]}' \
  '--env=GRIDFLOW_GIVE_UP={"worker":["flights-worker-0:2223","flights-worker-1:2223"]}' \
  --entrypoint=gridflow registry.example/acme/flights:1.0 launch \
  --restart-policy=on-failure \
  --restart-limit=3 \
  --deadline=21600 \
  -- python /app/train.py \
  --data=/data/flights \
  --model=/data/models/flights/1 \
  --logs=/data/logs \
  --epochs=5
docker run \
  --detach \
  --name=flights-tensorboard \
  --network=flights \
  --publish=6006:6006 \
  --mount=type=volume,source=flights-data,target=/data \
  --shm-size=1073741824 \
  --entrypoint=tensorboard tensorflow/tensorflow:2.21.0 \
  --logdir=/data/logs \
  --port=6006 \
  --bind_all \
  --load_fast=false
status=0
code="$(docker wait flights-worker-0)"; [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
code="$(docker wait flights-worker-1)"; [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
exit "$status"
