(
set -e
mkdir -p /somewhere/run
cd /somewhere/run
[ -z "$(ls -A)" ] || { echo 'the folder is not empty: choose another --out' >&2; exit 1; }
cat > ssh.nodes <<'TRAINMARK_FILE'
{
  "folder": "/scratch/20260102T030405Z-toy-abc123",
  "nodes": [
    {
      "host": "a",
      "options": [
        "-oBatchMode=yes",
        "-oPreferredAuthentications=publickey",
        "-oRequestTTY=no",
        "-oStrictHostKeyChecking=yes",
        "-oServerAliveInterval=5",
        "-oServerAliveCountMax=3",
        "-oConnectTimeout=10",
        "-oControlPath=none"
      ],
      "start": "set -e; mkdir -p /scratch/20260102T030405Z-toy-abc123; IFS= read -r plan; printf '%s\\n' \"$plan\" > /scratch/20260102T030405Z-toy-abc123/plan.json\nset -e\nexec /opt/env/bin/python -m trainmark.launch.node /scratch/20260102T030405Z-toy-abc123 --port 29500 --heartbeat --node-rank \"0\" --master \"a\"\n"
    },
    {
      "host": "b",
      "options": [
        "-oBatchMode=yes",
        "-oPreferredAuthentications=publickey",
        "-oRequestTTY=no",
        "-oStrictHostKeyChecking=yes",
        "-oUser=me",
        "-oPort=2222",
        "-oServerAliveInterval=5",
        "-oServerAliveCountMax=3",
        "-oConnectTimeout=10",
        "-oControlPath=none"
      ],
      "start": "set -e; mkdir -p /scratch/20260102T030405Z-toy-abc123; IFS= read -r plan; printf '%s\\n' \"$plan\" > /scratch/20260102T030405Z-toy-abc123/plan.json\nset -e\nexec /opt/env/bin/python -m trainmark.launch.node /scratch/20260102T030405Z-toy-abc123 --port 29500 --heartbeat --node-rank \"1\" --master \"a\"\n"
    }
  ]
}
TRAINMARK_FILE
PYTHONSAFEPATH=1 /usr/bin/python -m trainmark.launch.launchers.ssh
)
