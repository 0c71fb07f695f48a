#!/bin/sh
set -u
pids=
env GRIDFLOW_ROLE=chief GRIDFLOW_INDEX=0 'GRIDFLOW_CLUSTER={"chief":["localhost:2222"],"worker":["localhost:2223","localhost:2224","localhost:2225"],"ps":["localhost:2226","localhost:2227"]}' 'GRIDFLOW_FINISH={"worker":["localhost:2229","localhost:2230","localhost:2231"],"ps":["localhost:2232","localhost:2233"]}' 'GRIDFLOW_GIVE_UP={"chief":["localhost:2228"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 --deadline=21600 -- python /app/train_ps.py --data=/data/flights --model=/data/models/flights/2 --steps=2000 &
pids="$pids $!"
env GRIDFLOW_ROLE=worker GRIDFLOW_INDEX=0 'GRIDFLOW_CLUSTER={"chief":["localhost:2222"],"worker":["localhost:2223","localhost:2224","localhost:2225"],"ps":["localhost:2226","localhost:2227"]}' 'GRIDFLOW_FINISH={"worker":["localhost:2229","localhost:2230","localhost:2231"],"ps":["localhost:2232","localhost:2233"]}' 'GRIDFLOW_GIVE_UP={"chief":["localhost:2228"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 --deadline=21600 &
pids="$pids $!"
env GRIDFLOW_ROLE=worker GRIDFLOW_INDEX=1 'GRIDFLOW_CLUSTER={"chief":["localhost:2222"],"worker":["localhost:2223","localhost:2224","localhost:2225"],"ps":["localhost:2226","localhost:2227"]}' 'GRIDFLOW_FINISH={"worker":["localhost:2229","localhost:2230","localhost:2231"],"ps":["localhost:2232","localhost:2233"]}' 'GRIDFLOW_GIVE_UP={"chief":["localhost:2228"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 --deadline=21600 &
pids="$pids $!"
env GRIDFLOW_ROLE=worker GRIDFLOW_INDEX=2 'GRIDFLOW_CLUSTER={"chief":["localhost:2222"],"worker":["localhost:2223","localhost:2224","localhost:2225"],"ps":["localhost:2226","localhost:2227"]}' 'GRIDFLOW_FINISH={"worker":["localhost:2229","localhost:2230","localhost:2231"],"ps":["localhost:2232","localhost:2233"]}' 'GRIDFLOW_GIVE_UP={"chief":["localhost:2228"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 --deadline=21600 &
pids="$pids $!"
env GRIDFLOW_ROLE=ps GRIDFLOW_INDEX=0 'GRIDFLOW_CLUSTER={"chief":["localhost:2222"],"worker":["localhost:2223","localhost:2224","localhost:2225"],"ps":["localhost:2226","localhost:2227"]}' 'GRIDFLOW_FINISH={"worker":["localhost:2229","localhost:2230","localhost:2231"],"ps":["localhost:2232","localhost:2233"]}' 'GRIDFLOW_GIVE_UP={"chief":["localhost:2228"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 --deadline=21600 &
pids="$pids $!"
env GRIDFLOW_ROLE=ps GRIDFLOW_INDEX=1 'GRIDFLOW_CLUSTER={"chief":["localhost:2222"],"worker":["localhost:2223","localhost:2224","localhost:2225"],"ps":["localhost:2226","localhost:2227"]}' 'GRIDFLOW_FINISH={"worker":["localhost:2229","localhost:2230","localhost:2231"],"ps":["localhost:2232","localhost:2233"]}' 'GRIDFLOW_GIVE_UP={"chief":["localhost:2228"]}' gridflow launch --restart-policy=on-failure --restart-limit=3 --deadline=21600 &
pids="$pids $!"
trap 'kill $pids 2>/dev/null' INT TERM
status=0
for pid in $pids; do
  code=0; wait "$pid" || code=$?
  [ "$code" = 0 ] || case $status in 0|113) status=$code ;; esac
done
exit "$status"
