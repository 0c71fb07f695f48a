#!/bin/sh
set -u
pids=
env GRIDFLOW_ROLE=worker GRIDFLOW_INDEX=0 'GRIDFLOW_CLUSTER={"worker":["localhost:2222","localhost:2223"]}' 'GRIDFLOW_GIVE_UP={"worker":["localhost:2224","localhost:2225"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 --deadline=21600 -- python /app/train.py --data=/data/flights --model=/data/models/flights/1 --logs=/data/logs --epochs=5 &
pids="$pids $!"
env GRIDFLOW_ROLE=worker GRIDFLOW_INDEX=1 'GRIDFLOW_CLUSTER={"worker":["localhost:2222","localhost:2223"]}' 'GRIDFLOW_GIVE_UP={"worker":["localhost:2224","localhost:2225"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 --deadline=21600 -- python /app/train.py --data=/data/flights --model=/data/models/flights/1 --logs=/data/logs --epochs=5 &
pids="$pids $!"
tensorboard --logdir=/data/logs --port=6006 --bind_all --load_fast=false &
board=$!
trap 'kill $pids $board 2>/dev/null' INT TERM
status=0
for pid in $pids; do
  code=0; wait "$pid" || code=$?
  [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
done
kill "$board"
exit "$status"
