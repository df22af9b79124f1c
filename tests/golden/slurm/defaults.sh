(
set -e
mkdir -p /somewhere/run
cd /somewhere/run
[ -z "$(ls -A)" ] || { echo 'the folder is not empty: choose another --out' >&2; exit 1; }
cat > job.sh <<'TRAINMARK_FILE'
#!/bin/bash
# Trainmark 20260102T030405Z-toy-abc123: one task on each of 2 nodes
# SLURM_NODEID counts the hosts of the job's list, so the first is node 0. Its address is what
# Slurm itself reaches it by; its name need not be known to a resolver.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node --oneliner "$first" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
export TRAINMARK_MASTER="${address:-$first}"
# `wait` returns early on the SIGTERM that Slurm sends to end a job: the nodes' processes end first.
trap : TERM
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 --wait=0 --label bash node.sh &
while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
exit "$code"
TRAINMARK_FILE
cat > node.sh <<'TRAINMARK_FILE'
set -e
exec /opt/trainmark/bin/python -m trainmark.launch.node /somewhere/run --port 29500 --node-rank "$SLURM_NODEID" --master "$TRAINMARK_MASTER"
TRAINMARK_FILE
sbatch --parsable --job-name=20260102T030405Z-toy-abc123 --nodes=2 --ntasks=2 --ntasks-per-node=1 --no-requeue --chdir=/somewhere/run --output=log.job.txt --time=35 --exclusive --mem=0 job.sh > job.id
)
