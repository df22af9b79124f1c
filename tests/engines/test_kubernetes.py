"""Runs on Kubernetes; a ``kubectl`` of the tests stands in for the cluster."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from support.real_runs import (
    interrupt_and_check_run,
    read_job_states,
    train_distilbert_on_two_ranks,
)
from support.run_fixtures import CASES

TWO_NODES = ("--launcher", "kubernetes", "--nnodes", "2", "--nproc", "1")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Return the folder of a simulated cluster; ``kubectl.py`` is on the path as its kubectl.

    Its pods are processes of this machine, which find the cases of the tests (``CASES``). The case
    ``faulty`` writes to ``FAULT_FIFO`` when it reaches its fault.
    """
    folder = tmp_path / "cluster"
    folder.mkdir()
    program = folder / "kubectl"
    source = Path(__file__).parent / "kubectl.py"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{source}" "$@"\n')
    program.chmod(0o755)
    variables = {
        "TRAINMARK_CASE_PATH": str(CASES),
        "FAULT_FIFO": str(tmp_path / "fifo"),
        "TRAINMARK_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "KUBE_FOLDER": str(folder),
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def run(cluster, start_run, tmp_path):
    """Return a function that starts ``trainmark run`` with two pods.

    It returns the process and the run's folder. The case ``faulty`` plants a fault that its
    argument ``fault`` names. A pod is a process of this machine (see ``cluster``), which uses
    neither the image nor the volume of the file.
    """

    def start(*args, case="faulty"):
        with socket.socket() as free:  # pods have the host's network
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        site = {
            "environment": {"GLOO_SOCKET_IFNAME": "lo"},
            "master_port": port,
            "container": {"image": "trainmark:1", "python": sys.executable},
            "kubernetes": {"volumes": {str(tmp_path): {"hostPath": {"path": str(tmp_path)}}}},
        }
        (tmp_path / "cluster.yaml").write_text(json.dumps(site))
        # ``TWO_NODES``: the words for the launcher kubernetes with two nodes of a rank each.
        return start_run(*args, *TWO_NODES, "--cluster", str(tmp_path / "cluster.yaml"), case=case)

    return start


def test_distilbert_trains_in_two_pods(run, cluster):
    train_distilbert_on_two_ranks(run)
    assert not (cluster / "job.json").exists()  # deleted at the end


@pytest.mark.nightly
def test_ctrl_c_deletes_the_job(run, cluster, fifo):
    """SIGINT to the program deletes its job from the simulated cluster.

    The case is ``faulty``: with ``fault=wait`` rank 1 writes to the pipe ``fifo`` and waits to be
    killed. ``interrupt_and_check_run`` then sends SIGINT and checks that the record's status is
    "interrupted".
    """
    process, run_dir = run("fault=wait", "fault_rank=1")
    interrupt_and_check_run(process, run_dir, fifo)
    assert read_job_states(run_dir)[-1]["phase"] == "lost"  # as a job that was deleted
    assert not (cluster / "job.json").exists()  # the job was deleted
