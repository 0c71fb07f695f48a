#!/bin/sh
set -u
pids=
env GRIDFLOW_ROLE=worker GRIDFLOW_INDEX=0 'GRIDFLOW_CLUSTER={"worker":["localhost:2222","localhost:2223"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 -- python /app/train.py --data=/data/flights --model=/data/models/flights/1 --logs=/data/logs --epochs=5 &
pids="$pids $!"
env GRIDFLOW_ROLE=worker GRIDFLOW_INDEX=1 'GRIDFLOW_CLUSTER={"worker":["localhost:2222","localhost:2223"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 -- python /app/train.py --data=/data/flights --model=/data/models/flights/1 --logs=/data/logs --epochs=5 &
pids="$pids $!"
tensorboard --logdir=/data/logs --port=6006 --bind_all --load_fast=false &
board=$!
trap 'kill $pids $board 2>/dev/null' INT TERM
status=0
for pid in $pids; do
  wait "$pid" || status=$?
done
kill "$board"
exit "$status"
