"""A ``kubectl`` whose pods are processes of this machine: python kubectl.py WORDS.

What a cluster does besides (scheduling, images, volumes, names of hosts) is not there: pods see
the folders of this machine, and the first pod is found at 127.0.0.1. All is in the folder
``KUBE_FOLDER``: ``job.json``; of pod N ``N.pid``, ``N.exit``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import yaml

FOLDER = Path(os.environ["KUBE_FOLDER"])
JOB = FOLDER / "job.json"
INDEX = "batch.kubernetes.io/job-completion-index"
# As a kubelet ends it: SIGTERM reaches the command, whose exit code is kept.
POD = 'trap : TERM; sh -c "$1"; echo $? > "$2"'


def create(words: list[str]) -> None:
    """Start the pods of a manifest, or only read it with ``--dry-run=server``.

    ``FOLDER`` is the folder of the simulated cluster, in which a pod is a process of this machine.
    Its file ``JOB`` has the manifest, and the files N.pid, N.log and N.exit are those of pod N.
    ``POD`` is a script of the shell that runs the text $1 and writes its exit code to the file $2.

    Args:
        words: of the command line; the path of the manifest follows "-f".
    """
    manifest = yaml.safe_load(Path(words[words.index("-f") + 1]).read_text())
    if "--dry-run=server" in words:
        return
    JOB.write_text(json.dumps(manifest))
    name = manifest["metadata"]["name"]
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    script = container["command"][-1].replace("$$", "$")  # as a kubelet does
    script = script.replace(f"{name}-node-0-0.{name}", "127.0.0.1")  # the host of the first pod
    for index in range(job["completions"]):
        with (FOLDER / f"{index}.log").open("wb") as log:
            # ``POD`` runs the script, and writes its exit code to the file.
            pod = subprocess.Popen(
                ["sh", "-c", POD, "pod", script, str(FOLDER / f"{index}.exit")],
                env=os.environ | {"JOB_COMPLETION_INDEX": str(index)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (FOLDER / f"{index}.pid").write_text(str(pod.pid))
    print(f"jobset.jobset.x-k8s.io/{name}")


def is_alive(file: Path) -> bool:
    """Return whether the pod runs whose process id is in the file."""
    # A pod that has ended stays a zombie until its parent process asks for its exit code.
    pid = int(file.read_text())
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def build_status(file: Path) -> dict[str, Any]:
    """Return the status of a pod, as Kubernetes states it.

    Args:
        file: N.pid, which has the process id of pod N; N.exit beside it has its exit code.
    """
    if is_alive(file):
        return {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    code = int(file.with_suffix(".exit").read_text())
    terminated = {"exitCode": code, "reason": "Error" if code else "Completed"}
    phase = "Failed" if code else "Succeeded"
    return {"phase": phase, "containerStatuses": [{"state": {"terminated": terminated}}]}


def get(_: list[str]) -> None:
    """Print the job, unless it was deleted, and its pods; a deleted job has those that run.

    ``FOLDER`` has a file N.pid for pod N, ``JOB`` is the file of the job that was not deleted.
    ``INDEX`` is the name of Kubernetes' annotation with a pod's number. The argument, the words of
    the command line, is not needed: there is one job.
    """
    files = [file for file in sorted(FOLDER.glob("*.pid")) if JOB.exists() or is_alive(file)]
    pods = [
        {
            "kind": "Pod",
            "metadata": {"annotations": {INDEX: file.stem}},
            "status": build_status(file),
        }
        for file in files
    ]
    # A set of jobs ends when no pod runs: Failed if a pod failed, else Completed.
    items = list(pods)
    if JOB.exists():
        phases = {pod["status"]["phase"] for pod in pods}
        conditions = []
        if phases <= {"Succeeded", "Failed"}:
            kind = "Failed" if "Failed" in phases else "Completed"
            conditions = [{"type": kind, "status": "True", "reason": "AllJobs"}]
        items.append({"kind": "JobSet", "status": {"conditions": conditions}})
    print(json.dumps({"items": items}))


def delete(_: list[str]) -> None:
    """Forget the job and end its pods; each pod is a group of processes.

    ``JOB`` is the file with the job, ``FOLDER`` has a file N.pid with the process id of pod N. The
    argument, the words of the command line, is not needed: there is one job.
    """
    JOB.unlink(missing_ok=True)
    for file in FOLDER.glob("*.pid"):
        if is_alive(file):
            os.killpg(int(file.read_text()), signal.SIGTERM)


verb = next(word for word in sys.argv if word in ("create", "get", "delete"))
{"create": create, "get": get, "delete": delete}[verb](sys.argv)
