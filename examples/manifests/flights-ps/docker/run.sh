#!/bin/sh
set -eu
cd "$(dirname "$0")"
grep -qxF secrets .dockerignore || { echo '.dockerignore needs the line secrets to keep them out of the image' >&2; exit 1; }
docker build --tag registry.example/acme/flights:1.0 --file Dockerfile .
docker network inspect flights-ps >/dev/null 2>&1 || docker network create flights-ps
docker run \
  --detach \
  --init \
  --name=flights-ps-chief-0 \
  --hostname=flights-ps-chief-0 \
  --network=flights-ps \
  --cpus=1 \
  --memory=2147483648 \
  --mount=type=volume,source=flights-data,target=/data \
  --env=GRIDFLOW_ROLE=chief \
  --env=GRIDFLOW_INDEX=0 \
  '--env=GRIDFLOW_CLUSTER={"chief":["flights-ps-chief-0:2222"],"worker":["flights-ps-worker-0:2222","flights-ps-worker-1:2222","flights-ps-worker-2:2222"],"ps":["flights-ps-ps-0:2222","flights-ps-ps-1:2222"]}' \
  '--env=GRIDFLOW_FINISH={"worker":["flights-ps-worker-0:2223","flights-ps-worker-1:2223","flights-ps-worker-2:2223"],"ps":["flights-ps-ps-0:2223","flights-ps-ps-1:2223"]}' \
  '--env=GRIDFLOW_GIVE_UP={"chief":["flights-ps-chief-0:2223"]}' \
  --entrypoint=gridflow registry.example/acme/flights:1.0 launch \
  --restart-policy=on-failure \
  --restart-limit=3 \
  --deadline=21600 \
  -- python /app/train_ps.py \
  --data=/data/flights \
  --model=/data/models/flights/2 \
  --steps=2000
docker run \
  --detach \
  --init \
  --name=flights-ps-worker-0 \
  --hostname=flights-ps-worker-0 \
  --network=flights-ps \
  --cpus=2 \
  --memory=4294967296 \
  --mount=type=volume,source=flights-data,target=/data \
  --env=GRIDFLOW_ROLE=worker \
  --env=GRIDFLOW_INDEX=0 \
  '--env=GRIDFLOW_CLUSTER={"chief":["flights-ps-chief-0:2222"],"worker":["flights-ps-worker-0:2222","flights-ps-worker-1:2222","flights-ps-worker-2:2222"],"ps":["flights-ps-ps-0:2222","flights-ps-ps-1:2222"]}' \
  '--env=GRIDFLOW_FINISH={"worker":["flights-ps-worker-0:2223","flights-ps-worker-1:2223","flights-ps-worker-2:2223"],"ps":["flights-ps-ps-0:2223","flights-ps-ps-1:2223"]}' \
  '--env=GRIDFLOW_GIVE_UP={"chief":["flights-ps-chief-0:2223"]}' \
  --entrypoint=gridflow registry.example/acme/flights:1.0 launch \
  --restart-policy=on-failure \
  --restart-limit=3 \
  --deadline=21600
docker run \
  --detach \
  --init \
  --name=flights-ps-worker-1 \
  --hostname=flights-ps-worker-1 \
  --network=flights-ps \
  --cpus=2 \
  --memory=4294967296 \
  --mount=type=volume,source=flights-data,target=/data \
  --env=GRIDFLOW_ROLE=worker \
  --env=GRIDFLOW_INDEX=1 \
  '--env=GRIDFLOW_CLUSTER={"chief":["flights-ps-chief-0:2222"],"worker":["flights-ps-worker-0:2222","flights-ps-worker-1:2222","flights-ps-worker-2:2222"],"ps":["flights-ps-ps-0:2222","flights-ps-ps-1:2222"]}' \
  '--env=GRIDFLOW_FINISH={"worker":["flights-ps-worker-0:2223","flights-ps-worker-1:2223","flights-ps-worker-2:2223"],"ps":["flights-ps-ps-0:2223","flights-ps-ps-1:2223"]}' \
  '--env=GRIDFLOW_GIVE_UP={"chief":["flights-ps-chief-0:2223"]}' \
  --entrypoint=gridflow registry.example/acme/flights:1.0 launch \
  --restart-policy=on-failure \
  --restart-limit=3 \
  --deadline=21600
docker run \
  --detach \
  --init \
  --name=flights-ps-worker-2 \
  --hostname=flights-ps-worker-2 \
  --network=flights-ps \
  --cpus=2 \
  --memory=4294967296 \
  --mount=type=volume,source=flights-data,target=/data \
  --env=GRIDFLOW_ROLE=worker \
  --env=GRIDFLOW_INDEX=2 \
  '--env=GRIDFLOW_CLUSTER={"chief":["flights-ps-chief-0:2222"],"worker":["flights-ps-worker-0:2222","flights-ps-worker-1:2222","flights-ps-worker-2:2222"],"ps":["flights-ps-ps-0:2222","flights-ps-ps-1:2222"]}' \
  '--env=GRIDFLOW_FINISH={"worker":["flights-ps-worker-0:2223","flights-ps-worker-1:2223","flights-ps-worker-2:2223"],"ps":["flights-ps-ps-0:2223","flights-ps-ps-1:2223"]}' \
  '--env=GRIDFLOW_GIVE_UP={"chief":["flights-ps-chief-0:2223"]}' \
  --entrypoint=gridflow registry.example/acme/flights:1.0 launch \
  --restart-policy=on-failure \
  --restart-limit=3 \
  --deadline=21600
docker run \
  --detach \
  --init \
  --name=flights-ps-ps-0 \
  --hostname=flights-ps-ps-0 \
  --network=flights-ps \
  --cpus=1 \
  --memory=2147483648 \
  --mount=type=volume,source=flights-data,target=/data \
  --env=GRIDFLOW_ROLE=ps \
  --env=GRIDFLOW_INDEX=0 \
  '--env=GRIDFLOW_CLUSTER={"chief":["flights-ps-chief-0:2222"],"worker":["flights-ps-worker-0:2222","flights-ps-worker-1:2222","flights-ps-worker-2:2222"],"ps":["flights-ps-ps-0:2222","flights-ps-ps-1:2222"]}' \
  '--env=GRIDFLOW_FINISH={"worker":["flights-ps-worker-0:2223","flights-ps-worker-1:2223","flights-ps-worker-2:2223"],"ps":["flights-ps-ps-0:2223","flights-ps-ps-1:2223"]}' \
  '--env=GRIDFLOW_GIVE_UP={"chief":["flights-ps-chief-0:2223"]}' \
  --entrypoint=gridflow registry.example/acme/flights:1.0 launch \
  --restart-policy=on-failure \
  --restart-limit=3 \
  --deadline=21600
docker run \
  --detach \
  --init \
  --name=flights-ps-ps-1 \
  --hostname=flights-ps-ps-1 \
  --network=flights-ps \
  --cpus=1 \
  --memory=2147483648 \
  --mount=type=volume,source=flights-data,target=/data \
  --env=GRIDFLOW_ROLE=ps \
  --env=GRIDFLOW_INDEX=1 \
  '--env=GRIDFLOW_CLUSTER={"chief":["flights-ps-chief-0:2222"],"worker":["flights-ps-worker-0:2222","flights-ps-worker-1:2222","flights-ps-worker-2:2222"],"ps":["flights-ps-ps-0:2222","flights-ps-ps-1:2222"]}' \
  '--env=GRIDFLOW_FINISH={"worker":["flights-ps-worker-0:2223","flights-ps-worker-1:2223","flights-ps-worker-2:2223"],"ps":["flights-ps-ps-0:2223","flights-ps-ps-1:2223"]}' \
  '--env=GRIDFLOW_GIVE_UP={"chief":["flights-ps-chief-0:2223"]}' \
  --entrypoint=gridflow registry.example/acme/flights:1.0 launch \
  --restart-policy=on-failure \
  --restart-limit=3 \
  --deadline=21600
status=0
code="$(docker wait flights-ps-chief-0)"; [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
code="$(docker wait flights-ps-worker-0)"; [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
code="$(docker wait flights-ps-worker-1)"; [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
code="$(docker wait flights-ps-worker-2)"; [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
code="$(docker wait flights-ps-ps-0)"; [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
code="$(docker wait flights-ps-ps-1)"; [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
exit "$status"
