"""Runs through the real kubectl; a server in the test stands in for the cluster."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys

import pytest

import faulty_runs
from engines.kubernetes_stand_in import kubernetes_stand_in
from real_runs import checked, ended, wait_for_fault
from run_fixtures import CASES
from trainmark.rank.events import JOB_EVENTS_FILE, EventFile

if shutil.which("kubectl") is None:
    pytest.skip("no kubectl here: kubernetes.io/docs/tasks/tools has it", allow_module_level=True)

TWO = ("--launcher", "kubernetes", "--nnodes", "2", "--nproc", "1")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    variables = {
        "TRAINMARK_CASE_PATH": str(CASES), "FAULT_FIFO": str(tmp_path / "fifo"),
        "TRAINMARK_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1",
        "KUBECONFIG": str(tmp_path / "cluster/config"), "HOME": str(tmp_path),
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with kubernetes_stand_in(tmp_path / "cluster") as found:
        yield found


@pytest.fixture
def run(cluster, started, tmp_path):
    """Start ``trainmark run`` with two pods."""

    def start(*words, case="faulty"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        site = {
            "environment": {"GLOO_SOCKET_IFNAME": "lo"}, "master_port": port,
            "container": {"image": "trainmark:1", "python": sys.executable},
            "kubernetes": {"volumes": {str(tmp_path): {"hostPath": {"path": str(tmp_path)}}}},
        }  # fmt: skip
        (tmp_path / "site.yaml").write_text(json.dumps(site))
        return started(*words, *TWO, "--site", str(tmp_path / "site.yaml"), case=case)

    return start


def last_state(run_dir):
    return [event for event in EventFile(run_dir / JOB_EVENTS_FILE) if event["event"] == "job"][-1]


def test_distilbert_in_two_pods(run, cluster):
    process, run_dir = run("max_epochs=1", "target=none", case="distilbert_sst2")
    code, out, err = ended(process)
    assert code == 0, out + err
    record = checked(run_dir)
    assert (record.status, len(record.ranks)) == ("passed", 2)
    assert last_state(run_dir)["exit_code"] == 0
    assert not any(cluster.objects.values())  # deleted at the end


@pytest.mark.nightly
def test_a_killed_rank_leaves_its_signal(run, fifo):
    record = faulty_runs.rank_killed(run, fifo, rank=1)
    assert record.ranks[1].steps == 14


@pytest.mark.nightly
def test_ctrl_c_deletes_the_job(run, cluster, fifo):
    process, run_dir = run("fault=wait", "fault_rank=1")
    wait_for_fault(fifo)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    record = checked(run_dir)  # no process of the run is left
    assert (code, record.status) == (1, "interrupted"), out + err
    assert (record.cause.kind, record.cause.signal) == ("signal", "SIGINT")
    assert last_state(run_dir)["phase"] == "lost"
    assert not any(cluster.objects.values())


@pytest.mark.nightly
def test_a_pod_that_the_cluster_gave_up_is_named(run, cluster, fifo):
    # The other node ends by its own time limit: nothing else would end a rank that only waits.
    process, run_dir = run("fault=wait", "fault_rank=0", "--timeout", "40")
    wait_for_fault(fifo)
    lost = next(pod for pod in cluster.pods.values() if pod.index == 1)
    lost.status = {
        "phase": "Failed",
        "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
        }],
    }  # fmt: skip
    lost.process.kill()
    code, out, err = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "failed"), out + err
    assert record.cause.kind == "node_lost"
    assert last_state(run_dir)["phase"] == "lost"
