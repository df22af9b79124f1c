set -e
module load x
export TRAINMARK_CONTAINER_IMAGE=registry.example/trainmark:1
export NCCL_DEBUG=WARN
set -- python -m trainmark.launch.node /runs/a --port 29500 --node-rank "$SLURM_NODEID" --master "node0"
mkdir -p /runs/a
TRAINMARK_CONTAINER_DIGEST=sha256:$(sha256sum <registry.example/trainmark:1 | cut -d ' ' -f 1)
TRAINMARK_CONTAINER_VERSION=$(apptainer version)
export TRAINMARK_CONTAINER_DIGEST TRAINMARK_CONTAINER_VERSION
set -- --memory=64g registry.example/trainmark:1 "$@"
exec apptainer exec --pwd=/runs/a --env=PYTHONNOUSERSITE=1 --mount=type=bind,source=/data/toy,target=/data/toy,readonly --mount=type=bind,source=/opt/site,target=/opt/site,readonly --mount=type=bind,source=/runs/a,target=/runs/a --mount=type=bind,source=/scratch,target=/tmp --rocm "$@"
