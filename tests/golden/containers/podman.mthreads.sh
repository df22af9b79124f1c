set -e
module load x
export TRAINMARK_CONTAINER_IMAGE=registry.example/trainmark:1
export NCCL_DEBUG=WARN
set -- python -m trainmark.launch.node /runs/a --port 29500 --node-rank "$SLURM_NODEID" --master "node0"
mkdir -p /runs/a
TRAINMARK_CONTAINER_DIGEST=$(podman image inspect --format '{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}' registry.example/trainmark:1)
TRAINMARK_CONTAINER_VERSION=$(podman version --format '{{.Client.Version}}')
export TRAINMARK_CONTAINER_DIGEST TRAINMARK_CONTAINER_VERSION
set -- "$(podman image inspect --format '{{.Id}}' registry.example/trainmark:1)" "$@"
for path in /dev/mtgpu.[0-9]* /dev/dri /dev/infiniband; do test ! -e "$path" || set -- "--device=$path" "$@"; done
set -- "--name=trainmark-20260102T030405Z-toy-abc123-$$" "$@"
for name in $(env | cut -d = -f 1); do case "$name" in MCCL_*) set -- "--env=$name" "$@" ;; esac; done
exec podman run --rm --init --interactive --pull=never --network=host --shm-size=16g --workdir=/runs/a --cap-drop=ALL --security-opt=no-new-privileges --security-opt=label=disable --env=HOME=/tmp --env=USER=trainmark --env=TRAINMARK_CONTAINER_DIGEST --env=TRAINMARK_CONTAINER_VERSION --env=OMP_NUM_THREADS --env=MKL_NUM_THREADS --env=KMP_BLOCKTIME --env=KMP_AFFINITY --env=OMP_PROC_BIND --env=OMP_WAIT_POLICY --env=GOMP_SPINCOUNT --env=PYTORCH_ALLOC_CONF --env=TORCH_COMPILE_DISABLE --env=ONEDNN_MAX_CPU_ISA --env=ONEDNN_DEFAULT_FPMATH_MODE --env=MALLOC_CONF --env=TRAINMARK_NETWORK --env=MUSA_VISIBLE_DEVICES --env=MTHREADS_VISIBLE_DEVICES --env=PYTORCH_MUSA_ALLOC_CONF --env=MUSA_LAUNCH_BLOCKING --env=TRAINMARK_CONTAINER_IMAGE --env=NCCL_DEBUG --mount=type=bind,source=/data/toy,target=/data/toy,readonly --mount=type=bind,source=/opt/site,target=/opt/site,readonly --mount=type=bind,source=/runs/a,target=/runs/a --mount=type=bind,source=/scratch,target=/tmp "$@"
