"""Runs through a real Ray: two nodes on this host."""

from __future__ import annotations

import json
import os
import signal

import pytest

import faulty_runs
from engines.ray_cluster import program, ray_cluster
from real_runs import checked, ended, wait_for_fault
from run_fixtures import CASES
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

    def start(*words, case="faulty", nnodes=2):
        names = ("TRAINMARK_CACHE", "FAULT_FIFO")
        places = {names[0]: str(tmp_path / "cache"), names[1]: str(tmp_path / "fifo")}
        site = {"environment": places, "ray": {"address": cluster.url}}
        file = tmp_path / "cluster.yaml"
        file.write_text(json.dumps(site))
        many = (
            "--launcher",
            "ray",
            "--nnodes",
            str(nnodes),
            "--nproc",
            "1",
            "--cluster",
            str(file),
        )
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
    assert last_state(run_dir)["exit_code"] == 0


@pytest.mark.nightly
def test_a_killed_rank_is_named(run, fifo, tmp_path):
    record = faulty_runs.rank_killed(run, fifo, rank=1)
    assert record.ranks[1].steps == 14
    assert last_state(tmp_path / "run")["phase"] == "ended"


@pytest.mark.nightly
def test_ctrl_c_stops_the_job_and_ends_its_processes(run, fifo):
    process, run_dir = run("fault=wait", "fault_rank=1")
    wait_for_fault(fifo)
    process.send_signal(signal.SIGINT)
    code, _, _ = ended(process)
    record = checked(run_dir)  # no process of the run is left
    assert (code, record.status) == (1, "interrupted")
    assert (record.cause.kind, record.cause.signal) == ("signal", "SIGINT")
    assert last_state(run_dir)["phase"] == "lost"


@pytest.mark.nightly
def test_a_node_that_dies_is_named(run, cluster, fifo):
    process, run_dir = run("fault=wait", "fault_rank=0")
    wait_for_fault(fifo)
    cluster.tell("kill")
    code, _, _ = ended(process)
    cluster.tell("add")
    record = checked(run_dir)  # also on the node that Ray lost
    last = last_state(run_dir)
    assert last["phase"] == "ended"
    # What ran on the node may have time to report that it was told to end.
    told = (code, record.status, record.cause.kind)
    assert told in {(1, "failed", "node_lost"), (1, "interrupted", "signal")}
