#!/bin/bash
# Gives a node of a managed Spark cluster a Python environment with gridflow and TensorFlow, without
# Spark, which the service brings:
#
#   Amazon EMR       a bootstrap action: node.sh s3://acme-train/setup [PYTHON]
#   Google Dataproc  an initialization action, with --metadata=gridflow-setup=gs://acme-train/setup
#   anything else    node.sh FOLDER [PYTHON]
#
# The folder has gridflow's wheel, and constraints.txt if versions are to be pinned. Jobs use it with
# spark.pyspark.python=/opt/gridflow/bin/python. Running it again repairs what is half there.
set -euo pipefail
PREFIX=${PREFIX:-/opt/gridflow}
EXTRAS=${EXTRAS:-tensorflow}
METADATA=/usr/share/google/get_metadata_value

source=${1:-}
if [ -z "$source" ] && [ -x $METADATA ]; then
  source=$($METADATA attributes/gridflow-setup)
fi
if [ -z "$source" ]; then
  echo "usage: node.sh FOLDER [PYTHON]; FOLDER may be s3://… or gs://…" >&2
  exit 64
fi
python=${2:-python3}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Debian keeps venv in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null && command -v apt-get >/dev/null; then
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends python3-venv
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "$python is older than 3.11: give another one, such as python3.12, as the second argument" >&2
  exit 64
}

setup=$(mktemp -d)
trap 'rm -rf "$setup"' EXIT
case $source in
  s3://*) aws s3 cp --recursive "$source" "$setup" ;;
  gs://*) gcloud storage cp --recursive "${source%/}/*" "$setup" ;;
  *) cp -R "$source/." "$setup" ;;
esac
wheels=("$setup"/gridflow-*.whl)
if [ ${#wheels[@]} != 1 ] || [ ! -f "${wheels[0]}" ]; then
  echo "$source must have one wheel of gridflow; there is: $(ls "$setup")" >&2
  exit 66
fi
constraints=()
if [ -f "$setup/constraints.txt" ]; then
  constraints=(--constraint "$setup/constraints.txt")
fi

as_root install -d -o "$(id -u)" -g "$(id -g)" "$PREFIX"
"$python" -m venv --clear "$PREFIX"
"$PREFIX/bin/pip" install --no-cache-dir ${constraints[@]+"${constraints[@]}"} \
  "${wheels[0]}[$EXTRAS]"
# Some packages hold files for other versions of Python.
"$PREFIX/bin/python" -m compileall -q "$PREFIX/lib" || true
# YARN's containers run as other users.
chmod -R a+rX "$PREFIX"
"$PREFIX/bin/python" -c 'import gridflow'
