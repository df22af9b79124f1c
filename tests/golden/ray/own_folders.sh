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
  "may_grow": true,
  "script": "unset OMP_NUM_THREADS\n[ -e '/scratch/a b/20260102T030405Z-toy-abc123'/plan.json ] || { mkdir -p '/scratch/a b/20260102T030405Z-toy-abc123'; cp plan.json '/scratch/a b/20260102T030405Z-toy-abc123'; }\nset -e\nmodule load cuda\nexport NCCL_DEBUG=WARN\nexport GLOO_SOCKET_IFNAME=ib0\nexec /opt/trainmark/bin/python -m trainmark.launch.node '/scratch/a b/20260102T030405Z-toy-abc123' --port 29500 --port @PORT@ --heartbeat --send-files --node-rank \"@RANK@\" --master \"@MASTER@\"\n"
}
TRAINMARK_FILE
RAY_API_SERVER_ADDRESS=http://127.0.0.1:8265 sh -c 'ray job list > /dev/null 2>&1 || TRAINMARK_RAY_CLUSTER=20260102T030405Z-toy-abc123 ray start --head --port=0 --disable-usage-stats; exec ray job submit --no-wait --submission-id=20260102T030405Z-toy-abc123 --working-dir=. '"'"'--runtime-env-json={"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}, "excludes": [".reserve"]}'"'"' -- /opt/trainmark/bin/python -m trainmark.launch.launchers.ray_driver'
)
