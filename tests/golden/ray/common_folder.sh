(
set -e
mkdir -p /somewhere/run
cd /somewhere/run
[ -z "$(ls -A)" ] || { echo 'the folder is not empty: choose another --out' >&2; exit 1; }
cat > ray.json <<'TRAINMARK_FILE'
{
  "nnodes": 2,
  "bundle": {
    "CPU": 8
  },
  "script": "unset OMP_NUM_THREADS\nset -e\nexec /opt/trainmark/bin/python -m trainmark.launch.node /somewhere/run --port 29500 --port @PORT@ --heartbeat --node-rank \"@RANK@\" --master \"@MASTER@\"\n"
}
TRAINMARK_FILE
ray job submit --no-wait --address=http://head:8265 --submission-id=20260102T030405Z-toy-abc123 '--runtime-env-json={"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' -- /opt/trainmark/bin/python -m trainmark.launch.launchers.ray /somewhere/run > job.id
)
