"""Runs through a real Ray: two nodes on this host, and a local cluster of the run's own."""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest

import faulty_runs
from engines.ray_cluster import program, ray_cluster
from real_runs import checked, ended, wait_for_fault
from run_fixtures import CASES
from trainmark.launch.launchers.ray import CLUSTER_VARIABLE
from trainmark.launch.processes import kill_run, of_run
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.rank.events import JOB_EVENTS_FILE, EventFile

if program() is None:
    pytest.skip("no Ray here: `ray` missing (make test-engines)", allow_module_level=True)


@pytest.fixture(scope="module")
def cluster():
    # Ray hands the variables of its own processes on to what it runs.
    os.environ["TRAINMARK_CASE_PATH"] = str(CASES)
    with ray_cluster() as found:
        yield found


@pytest.fixture
def on_path(monkeypatch):
    monkeypatch.setenv("PATH", f"{program()}:{os.environ['PATH']}")


@pytest.fixture
def run(cluster, on_path, started, tmp_path):
    """Start ``trainmark run`` on the cluster's nodes."""

    def start(*words, case="faulty", nnodes=2, run_root=None):
        names = ("TRAINMARK_CACHE", "FAULT_FIFO")
        places = {names[0]: str(tmp_path / "cache"), names[1]: str(tmp_path / "fifo")}
        site = {"environment": places, "ray": {"address": cluster.url}}
        if run_root is not None:
            site["run_root"] = str(run_root)
        file = tmp_path / "site.yaml"
        file.write_text(json.dumps(site))
        many = ("--launcher", "ray", "--nnodes", str(nnodes), "--nproc", "1", "--site", str(file))
        return started(*words, *many, case=case)

    return start


def last_state(run_dir):
    return [event for event in EventFile(run_dir / JOB_EVENTS_FILE) if event["event"] == "job"][-1]


def test_distilbert_on_two_nodes(run):
    process, run_dir = run("max_epochs=1", "max_steps=40", "target=none", case="distilbert_sst2")
    code, out, err = ended(process)
    assert code == 0, out + err
    record = checked(run_dir)
    assert (record.status, len(record.ranks)) == ("passed", 2)
    assert last_state(run_dir)["ending"] == "completed"


def test_the_files_of_a_killed_rank_come_through_the_log(run, fifo, tmp_path):
    def start(*words):
        return run(*words, run_root=tmp_path / "scratch")

    record = faulty_runs.rank_killed(start, fifo, rank=1)
    assert record.ranks[1].steps == 14
    assert not (tmp_path / "run" / "collect.fault").exists()
    assert last_state(tmp_path / "run")["ending"] == "failed"


def test_ctrl_c_stops_the_job_and_ends_its_processes(run, fifo):
    process, run_dir = run("fault=wait", "fault_rank=1")
    wait_for_fault(fifo)
    process.send_signal(signal.SIGINT)
    code, _, _ = ended(process)
    record = checked(run_dir)  # no process of the run is left
    assert (code, record.status) == (1, "interrupted")
    assert (record.cause.kind, record.cause.signal) == ("signal", "SIGINT")
    assert last_state(run_dir)["ending"] == "cancelled"


def test_a_node_that_dies_is_named(run, cluster, fifo):
    process, run_dir = run("fault=wait", "fault_rank=0")
    wait_for_fault(fifo)
    cluster.tell("kill")
    code, _, _ = ended(process)
    cluster.tell("add")
    record = checked(run_dir)  # also on the node that Ray lost
    last = last_state(run_dir)
    assert last["ending"] == "node_lost"
    assert len(last["lost"]) == 1
    assert (code, record.status, record.cause.kind) == (1, "failed", "node_lost")


def test_a_cluster_that_is_too_small_is_refused_with_numbers(run):
    process, run_dir = run(case="toy", nnodes=3)
    code, _, _ = ended(process)
    last = last_state(run_dir)
    assert (code, last["ending"]) == (1, "refused")
    assert "needs 3 nodes with CPU 1 each; 2 of the cluster's 2 have that" in last["said"]
    assert checked(run_dir).status == "failed"


@pytest.fixture
def own_cluster(on_path, tmp_path):
    """End the cluster that a run starts for itself, also if the test fails before the run does."""
    yield
    if (tmp_path / "run" / PLAN_FILE).exists():
        assert kill_run(Plan.read(tmp_path / "run").run_id, CLUSTER_VARIABLE) == []


@pytest.mark.usefixtures("own_cluster")
def test_a_local_cluster_outlives_its_submission_and_ends_with_attach(trainmark, tmp_path):
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8265)) == 0:
            pytest.skip("another program has Ray's own port, 8265")
    words = ("--launcher", "ray", "--nnodes", "1", "--nproc", "1", "max_epochs=1", "target=none")
    submitted = trainmark("run", "toy", *words, "--out", "run", "--detach")
    assert submitted.returncode == 0, submitted.stderr
    number = (tmp_path / "run" / "job.id").read_text()
    attached = trainmark("run", "--attach", "run")
    assert attached.returncode == 0, attached.stdout + attached.stderr
    assert checked(tmp_path / "run").status == "passed"
    assert of_run(number, CLUSTER_VARIABLE) == []
