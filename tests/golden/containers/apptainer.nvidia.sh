set -e
module load x
export TRAINMARK_CONTAINER_IMAGE=registry.example/trainmark:1
export NCCL_DEBUG=WARN
set -- python -m trainmark.launch.node /runs/a --port 29500 --node-rank "$SLURM_NODEID" --master "node0"
set -e
fail() { echo "container: $1" >&2; exit 2; }
apptainer version >/dev/null
test -e /opt/site || fail /opt/site' is not here'
test -e /scratch || fail /scratch' is not here'
test -e /data/toy || fail /data/toy' is not here'
test -e registry.example/trainmark:1 || fail registry.example/trainmark:1' is not here'
test "$(id -u)" != 0 || fail 'root of this node would be root in the container: be another user, or name one in arguments'
mkdir -p /runs/a
TRAINMARK_CONTAINER_DIGEST=sha256:$(sha256sum <registry.example/trainmark:1 | cut -d ' ' -f 1)
TRAINMARK_CONTAINER_VERSION=$(apptainer version)
export TRAINMARK_CONTAINER_DIGEST TRAINMARK_CONTAINER_VERSION
set -- registry.example/trainmark:1 "$@"
exec apptainer exec --pwd=/runs/a --env=PYTHONNOUSERSITE=1 --mount=type=bind,source=/data/toy,target=/data/toy,readonly --mount=type=bind,source=/opt/site,target=/opt/site,readonly --mount=type=bind,source=/runs/a,target=/runs/a --mount=type=bind,source=/scratch,target=/tmp --nv "$@"
