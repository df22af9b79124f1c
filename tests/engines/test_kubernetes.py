"""Runs on Kubernetes; a ``kubectl`` of the tests stands in for the cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

import faulty_runs
from real_runs import checked, ended, wait_for_fault
from run_fixtures import CASES
from trainmark.rank.events import JOB_EVENTS_FILE, EventFile

TWO = ("--launcher", "kubernetes", "--nnodes", "2", "--nproc", "1")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Return the folder of the cluster, whose kubectl is on the path."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    program = folder / "kubectl"
    source = Path(__file__).parent / "kubectl.py"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{source}" "$@"\n')
    program.chmod(0o755)
    variables = {
        "TRAINMARK_CASE_PATH": str(CASES), "FAULT_FIFO": str(tmp_path / "fifo"),
        "TRAINMARK_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1",
        "KUBE_FOLDER": str(folder), "PATH": f"{folder}:{os.environ['PATH']}",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return folder


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
        (tmp_path / "cluster.yaml").write_text(json.dumps(site))
        return started(*words, *TWO, "--cluster", str(tmp_path / "cluster.yaml"), case=case)

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
    assert not (cluster / "job.json").exists()  # deleted at the end


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
    assert not (cluster / "job.json").exists()


@pytest.mark.nightly
def test_a_pod_that_the_cluster_gave_up_is_named(run, cluster, fifo):
    # The other node ends by its own time limit: nothing else would end a rank that only waits.
    process, run_dir = run("fault=wait", "fault_rank=0", "--timeout", "20")
    wait_for_fault(fifo)
    taken = {
        "phase": "Failed",
        "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        }],
    }  # fmt: skip
    (cluster / "1.status").write_text(json.dumps(taken))
    os.killpg(int((cluster / "1.pid").read_text()), signal.SIGKILL)
    code, out, err = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "failed"), out + err
    assert record.cause.kind == "node_lost"
    assert last_state(run_dir)["phase"] == "lost"
