"""The annotated ``job.yaml`` of ``gridflow init``."""

from __future__ import annotations

from typing import Final

from gridflow.deploy.description.description import SIDES

_HEAD: Final = """\
# One job for every target: gridflow targets | explain -t TARGET | render -t TARGET job.yaml
name: flights                # a DNS label; prefix of host names
namespace: default
image: registry.example/acme/flights:1.0
command: [python, /app/train.py]
args: [--epochs, "5"]
env:                         # no secrets: use secrets: below
  TF_CPP_MIN_LOG_LEVEL: "1"

roles:                       # chief, worker, ps, evaluator, data
  worker:
    replicas: 2
    resources: {cpu: 2, memory: 4Gi}   # and gpu: 1, gpu_type: NVIDIA-A100-SXM4-40GB
  # chief: {}                # with parameter servers, the chief runs the program
  # ps: {replicas: 2}        # without its own command: a standard server
  # data: {replicas: 4}      # workers of TensorFlow's data service; adds a dispatcher

port: 2222
restart_policy: on-failure   # or never, or exit-code: only after exit codes of 128 and above
restart_limit: 3
# start_timeout: 30m         # how long tasks wait for their peers to come up; 5m by default
deadline: 2h                 # seconds, or for example 90s, 30m, 2h, 1d
# time_to_live: 1d           # how long to keep a finished job
# clean_up: running          # none, running or all: the tasks to remove at the end
# classic_flags: true        # also pass --job_name --task_index --ps_hosts --worker_hosts
# gang: {queue: research}    # start all tasks or none; also scheduler: kueue or volcano, minimum: 3

volumes:                     # each has one of pvc, empty, host, secret, config
  - {name: data, path: /data, pvc: flights-data}
  # - {name: scratch, path: /scratch, empty: 10Gi}
# shared_memory: 2Gi         # the size of /dev/shm

# secrets:
#   env: {API_TOKEN: {secret: api, key: token}}
#   files: {/etc/tls: tls}
#   image_pull: [registry]
# credentials:
#   gcs: {secret: gcs, key: key.json}
#   s3: {secret: s3, endpoint: "http://minio:9000"}

# node_selector: {disk: ssd}
# tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
# affinity: {nodeAffinity: {}}         # Kubernetes' own tree
# priority_class: high
# service_account: trainer
# run_as_user: 10001         # on Kubernetes; 0 is root
# labels: {team: flights}
# annotations: {note: anything}

tensorboard: {log_dir: /data/logs}

serve:                       # for the targets serving and kserve
  models: [{name: flights, path: /data/models/flights}]
  # batching: {max_batch_size: 32, timeout_micros: 1000}
  # monitoring: true
  # replicas: 2

notebook: {storage: 10Gi}    # for the target notebook

"""
TEMPLATE: Final = "".join(
    (
        _HEAD,
        *(f"# {name}: {side.sample}\n" for name, side in SIDES.items() if side.sample),
        """\
# overrides:                 # merged into a target's documents at the end
#   kubernetes: {Job/flights-worker: {spec: {suspend: true}}}
""",
    )
)
