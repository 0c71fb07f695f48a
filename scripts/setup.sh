#!/usr/bin/env bash
# Make the virtual environment that the other targets use. Needs Python 3.11 and nothing else:
# uv is installed into the project's folder if this machine has none. Extras can be added by name, or
# the packages of the examples, into a folder of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

find_uv() {
  if command -v uv >/dev/null; then
    command -v uv
  elif [ -x .tools/bin/uv ]; then
    echo .tools/bin/uv
  fi
}

if [ -z "$(find_uv)" ]; then
  echo "Installing uv into .tools"
  # Debian splits venv and pip from Python: take whichever is there.
  if python3 -m venv .tools >/dev/null 2>&1; then
    .tools/bin/python -m pip install --quiet uv
  else
    rm -rf .tools
    python3 -m pip install --quiet --target .tools/packages uv ||
      python3 -m pip install --quiet --break-system-packages --target .tools/packages uv
    mkdir -p .tools/bin
    ln -sf ../packages/bin/uv .tools/bin/uv
  fi
fi
uv=$(find_uv)

if [ "${1:-}" = examples ]; then
  exec "$uv" pip install --quiet --python .venv/bin/python --target .cache/examples --compile-bytecode \
    --constraint requirements/constraints.txt --group examples
fi

[ -x .venv/bin/python ] || "$uv" venv --quiet --python '>=3.11,<3.13' .venv
echo "Installing what gridflow needs${1:+, and $1} (the first time it is fetched)"
# pyspark comes as source. Its build is not found again in uv's cache, where each would leave 1.4 GB.
"$uv" pip install --quiet --no-cache --python .venv/bin/python \
  --constraint requirements/constraints.txt pyspark
"$uv" pip install --quiet --python .venv/bin/python --constraint requirements/constraints.txt \
  --editable ".[spark,tensorflow,tf-keras,tensorboard,jax,demo${1:+,$1}]" --group lint --group test
.venv/bin/python src/gridflow/_collectives/native/build.py
# Where PYTHONDONTWRITEBYTECODE is set, as in many images, every training process would compile all of
# TensorFlow anew: ten seconds each. Some packages hold files for other versions of Python.
.venv/bin/python -m compileall -q -j 0 .venv/lib src >/dev/null || true
