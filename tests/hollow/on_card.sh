#!/bin/sh
# Run Python on the hollow card: tests/hollow/on_card.sh FOLDER TORCH_VERSION ARGUMENT...
# FOLDER is the one that build.sh filled.
set -eu

folder=$(cd "$1" && pwd)
version=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export LD_LIBRARY_PATH="$folder/$version/card"
export TRITON_LIBCUDA_PATH="$LD_LIBRARY_PATH"
export HOLLOW_DEVICE_NODES="$folder/nodes"
export PYTHONPATH="$here/site:$root/src:$root/tests${PYTHONPATH:+:$PYTHONPATH}"
cd "$root"
exec "$folder/$version/venv/bin/python" "$@"
