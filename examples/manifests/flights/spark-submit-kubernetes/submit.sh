#!/bin/sh
set -eu
master="k8s://${KUBERNETES_API:?set it to https://HOST:PORT}"
driver="flights-driver-$(date +%s)-$$"
application="local:///opt/gridflow/spark_main.py"
spark-submit \
  --master "$master" \
  --name flights \
  --conf "spark.kubernetes.driver.pod.name=$driver" \
  --conf spark.executor.instances=2 \
  --conf spark.executor.cores=2 \
  --conf spark.task.cpus=2 \
  --conf spark.executor.memory=1024m \
  --conf spark.executor.memoryOverhead=3072m \
  --conf spark.driver.memory=2048m \
  --conf spark.driver.cores=1 \
  --conf spark.dynamicAllocation.enabled=false \
  --conf spark.speculation=false \
  --conf spark.submit.deployMode=cluster \
  --conf spark.kubernetes.namespace=default \
  --conf spark.kubernetes.container.image=registry.example/acme/flights:1.0 \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.mount.path=/data \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.mount.readOnly=false \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.options.claimName=flights-data \
  --conf spark.kubernetes.driver.volumes.emptyDir.gridflow-shm.mount.path=/dev/shm \
  --conf spark.kubernetes.driver.volumes.emptyDir.gridflow-shm.options.medium=Memory \
  --conf spark.kubernetes.driver.volumes.emptyDir.gridflow-shm.options.sizeLimit=1Gi \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.mount.path=/data \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.mount.readOnly=false \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName=flights-data \
  --conf spark.kubernetes.executor.volumes.emptyDir.gridflow-shm.mount.path=/dev/shm \
  --conf spark.kubernetes.executor.volumes.emptyDir.gridflow-shm.options.medium=Memory \
  --conf spark.kubernetes.executor.volumes.emptyDir.gridflow-shm.options.sizeLimit=1Gi \
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
state="$(spark-submit --master "$master" --status "default:$driver" 2>&1)" || true
case $state in
  *'phase: Succeeded'*) ;;
  *) printf '%s\n' "$state" "the driver $driver did not succeed: kubectl logs --namespace default $driver" >&2
    code="$(printf '%s\n' "$state" | sed -n 's/.*exit code: *\([1-9][0-9]*\).*/\1/p' | head -n 1)"
    exit "${code:-1}" ;;
esac
