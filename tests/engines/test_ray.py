"""Runs through a real Ray: two nodes on this host."""

from __future__ import annotations

import json
import os
import shlex

import pytest

from engines.ray_cluster import find_program_folder, start_ray_cluster
from support.real_runs import (
    interrupt_and_check_run,
    read_job_states,
    train_distilbert_on_two_ranks,
)
from support.run_fixtures import CASES

if find_program_folder() is None:
    pytest.skip("no Ray here: `ray` missing (make test-engines)", allow_module_level=True)


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes on this machine, whose jobs find the case ``faulty``."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        # Ray hands the variables of its own processes on to what it runs.
        monkeypatch.setenv("TRAINMARK_CASE_PATH", str(CASES))
        with start_ray_cluster() as ray:
            yield ray


@pytest.fixture
def on_path(monkeypatch):
    """Put Ray's programs on the path."""
    monkeypatch.setenv("PATH", f"{find_program_folder()}:{os.environ['PATH']}")


@pytest.fixture
def run(cluster, on_path, start_run, tmp_path):
    """Return a function that starts ``trainmark run`` on the cluster's nodes.

    It returns the process and the run's folder. A rank of the case ``faulty`` writes to ``fifo``
    when it reaches the fault that the argument ``fault`` names. ``cluster.url`` is the address by
    which jobs are submitted; the fixture ``on_path`` puts Ray's programs on the path.
    """

    def start(*args, case="faulty", nnodes=2):
        variables = {
            "TRAINMARK_CACHE": str(tmp_path / "cache"),
            "FAULT_FIFO": str(tmp_path / "fifo"),
        }
        site = {"environment": variables, "ray": {"address": cluster.url}}
        file = tmp_path / "cluster.yaml"
        file.write_text(json.dumps(site))
        options = [
            *shlex.split(f"--launcher ray --nnodes {nnodes} --nproc 1"),
            *("--cluster", str(file)),
        ]
        return start_run(*args, *options, case=case)

    return start


def test_distilbert_trains_on_two_nodes(run):
    train_distilbert_on_two_ranks(run, "max_steps=40")


@pytest.mark.nightly
def test_ctrl_c_stops_the_job_and_ends_its_processes(run, fifo):
    """SIGINT to the program stops its job on the Ray cluster.

    The case is ``faulty``: with ``fault=wait`` rank 1 writes to the pipe ``fifo`` and waits to be
    killed. ``interrupt_and_check_run`` then sends SIGINT, and checks that the record's status is
    "interrupted" and that no process of the run is left.
    """
    process, run_dir = run("fault=wait", "fault_rank=1")
    interrupt_and_check_run(process, run_dir, fifo)
    assert read_job_states(run_dir)[-1]["phase"] == "lost"  # as a job that Ray stopped
