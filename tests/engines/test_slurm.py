"""Runs through a real Slurm: two slurmd on this host, a task on each."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from engines.slurm_cluster import NODES, list_missing_programs, start_slurm_cluster
from support import faulty_runs
from support.real_runs import (
    interrupt_and_check_run,
    read_checked_record,
    read_job_states,
    train_distilbert_on_two_ranks,
    wait_for_fault,
)
from support.run_fixtures import CASES

if list_missing_programs():
    lacking = ", ".join(list_missing_programs())
    pytest.skip(f"no Slurm here: {lacking} missing (make test-engines)", allow_module_level=True)

TWO_NODES = ("--launcher", "slurm", "--nnodes", "2", "--nproc", "1")


@pytest.fixture(scope="module")
def cluster():
    """Yield a cluster of two nodes on this machine for all tests of the module."""
    with start_slurm_cluster() as slurm:
        yield slurm


@pytest.fixture
def idle_cluster(cluster, monkeypatch, tmp_path):
    """The cluster for this process and what it starts; idle again before the next test.

    Slurm's programs find it by the environment, and ranks find the cases of the tests (``CASES``).
    The case ``faulty`` writes to ``FAULT_FIFO`` when it reaches its fault.
    """
    variables = {"TRAINMARK_CASE_PATH": str(CASES), "FAULT_FIFO": str(tmp_path / "fifo")}
    for name, value in (cluster.variables | variables).items():
        monkeypatch.setenv(name, value)
    yield cluster
    cluster.wait_until(lambda: cluster.list_states() == ["idle", "idle"], "idle nodes")


def write_cluster_file(folder, **keys):
    """Write a cluster file for nodes that share this host: its loopback, and a free port.

    Args:
        folder: in which ``cluster.yaml`` is written.
        keys: options of sbatch, beside the partition, which has both nodes.

    Returns:
        The path of the file.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    slurm = {"exclusive": False, "options": {"partition": "main"} | keys}
    path = folder / "cluster.yaml"
    settings = {
        "launcher": "slurm",
        "environment": {"GLOO_SOCKET_IFNAME": "lo"},
        "master_port": port,
        "slurm": slurm,
    }
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture
def run(idle_cluster, start_run, tmp_path):
    """Return a function that starts ``trainmark run`` on both nodes; ``keys``: for sbatch.

    The function returns the process and the run's folder.
    """

    def start(*args, case="faulty", **keys):
        # ``TWO_NODES``: the words for the launcher slurm with two nodes of a rank each. The case
        # ``faulty`` plants a fault that its argument ``fault`` names.
        return start_run(
            *args, *TWO_NODES, "--cluster", str(write_cluster_file(tmp_path, **keys)), case=case
        )

    return start


def test_distilbert_trains_on_two_nodes(run):
    # ``train_distilbert_on_two_ranks`` starts the case by ``run``, on two nodes of Slurm; it checks
    # that the run passes with two ranks, and returns its folder. Each node writes its own events.
    run_dir = train_distilbert_on_two_ranks(run)
    for node in (0, 1):
        assert (run_dir / f"events.node{node}.jsonl").exists()


# Two launches that wait at their fault until the test writes ``go``, and a run that needs more
# nodes than there are.
PLAN = """\
device: cpu
runs:
- {name: a, case: faulty, nnodes: 2, repeat: 2, set: {fault: hold}}
- {name: big, case: faulty, nnodes: 9}
"""


@pytest.mark.nightly
def test_killed_plan_resumes_with_its_submitted_job(idle_cluster, fifo, tmp_path, monkeypatch):
    # ``PLAN`` has a run ``a`` of two launches of the case ``faulty``, and a run ``big`` that needs
    # nine nodes. Each launch of ``a`` writes to the pipe ``fifo``. It then waits until the test
    # writes to the pipe ``go``.
    go = tmp_path / "go"
    runs = tmp_path / "runs/plan"
    site = json.loads(write_cluster_file(tmp_path).read_text())
    (tmp_path / "cluster.yaml").write_text(json.dumps(site | {"nodes": 2}))  # it has two nodes
    (tmp_path / "plan.yaml").write_text(PLAN)
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "trainmark", "run", "plan.yaml", "--json"]
    command += ["--launcher", "slurm", "--cluster", "cluster.yaml"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        wait_for_fault(fifo)  # of the first launch
        process.kill()
    assert not (runs / "a/r1/record.json").exists()

    # The same command again follows the job of the first launch, which still waits.
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            assert "slurm, tested on: " in process.stderr.readline()
            assert "a/r1 is a submitted job" in process.stderr.readline()
            go.write_text("")
            wait_for_fault(fifo)  # of the second launch, which starts after the first has ended
            assert read_checked_record(runs / "a/r1").status == "passed"
            go.write_text("")
            out, err = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == 0, err
    run_by_name = {run["name"]: run for run in json.loads(out)["runs"]}
    assert (run_by_name["a"]["status"], run_by_name["a"]["statuses"]) == (
        "passed",
        ["passed", "passed"],
    )
    # Launches are r1 and r2. The killed call had submitted r1, and the second call started r2. The
    # launches that a call starts lie in a folder of its own: ``a``, then ``a-2``.
    assert run_by_name["a"]["run_ids"] == [
        read_checked_record(runs / name).run_id for name in ("a/r1", "a-2/r2")
    ]
    assert run_by_name["a"]["did_not_pass_before"] == []  # the killed command is no failure
    # The nodes that it needs, and how many can be used.
    assert re.findall(r"\d+", run_by_name["big"]["reason"]) == ["9", "2"]


@pytest.mark.nightly
def test_killed_rank_is_recorded_with_its_signal(run, fifo):
    record = faulty_runs.check_killed_rank(run, fifo, rank=1)
    assert record.ranks[1].steps == 14  # it was killed in its fifteenth step


@pytest.mark.nightly
def test_ctrl_c_cancels_the_job_and_ends_its_processes(run, idle_cluster, fifo):
    """SIGINT to the program cancels its job of Slurm.

    The case is ``faulty``: with ``fault=wait`` rank 1 writes to the pipe ``fifo`` and waits to be
    killed. ``interrupt_and_check_run`` then sends SIGINT and checks that the record's status is
    "interrupted". ``NODES`` are the names of the two nodes; ``list_tasks`` lists the processes of a
    node's jobs.
    """
    process, run_dir = run("fault=wait", "fault_rank=1")
    interrupt_and_check_run(process, run_dir, fifo)
    assert read_job_states(run_dir)[-1]["phase"] == "lost"  # as any job that is cancelled
    number = (run_dir / "job.id").read_text().strip()
    assert "JobState=CANCELLED" in idle_cluster.ask("scontrol", "show", "job", number)
    assert [idle_cluster.list_tasks(node) for node in NODES] == [[], []]


@pytest.mark.nightly
def test_a_detached_job_is_cancelled_later(idle_cluster, trainmark, tmp_path, fifo):
    """With --detach the program ends once the job is submitted; another call cancels it.

    ``TWO_NODES``: the words for the launcher slurm with two nodes of a rank each. With
    ``fault=wait`` rank 1 of the case ``faulty`` writes to the pipe ``fifo`` and waits to be killed.
    ``trainmark`` runs the program in ``tmp_path`` until it ends. ``idle_cluster`` is a cluster of
    two nodes on this machine, which sbatch finds by the environment.
    """
    args = ("run", "faulty", "fault=wait", "fault_rank=1", *TWO_NODES)
    submitted = trainmark(
        *args, "--cluster", str(write_cluster_file(tmp_path)), "--out", "run", "--detach"
    )
    assert submitted.returncode == 0, submitted.stderr
    wait_for_fault(fifo)
    cancelled = trainmark("run", "--attach", "run", "--cancel")
    record = read_checked_record(tmp_path / "run")
    assert (cancelled.returncode, record.status) == (1, "interrupted")
    # As any job that is cancelled.
    assert read_job_states(tmp_path / "run")[-1]["phase"] == "lost"


@pytest.mark.nightly
def test_script_of_a_dry_run_starts_the_same_run(idle_cluster, trainmark, tmp_path):
    """A dry run prints the script that would submit the job; here bash executes it.

    ``TWO_NODES``: the words for the launcher slurm with two nodes of a rank each. ``trainmark``
    runs the program until it ends. ``--attach`` then waits for the job that the script has
    submitted. The run's folder has a space in its name, which the script must quote.
    """
    site = write_cluster_file(tmp_path)
    run_dir = tmp_path / "a run"
    args = ("run", "toy", "max_epochs=1", "target=none", *TWO_NODES, "--cluster", str(site))
    dry_run = trainmark(*args, "--out", str(run_dir), "--dry-run")
    assert dry_run.returncode == 0, dry_run.stderr
    assert not run_dir.exists()
    pasted = subprocess.run(
        ["bash"],
        input=dry_run.stdout,
        text=True,
        cwd=tmp_path,
        capture_output=True,
        check=False,
        env=os.environ | {"TRAINMARK_CACHE": str(tmp_path / "cache")},
    )
    assert (pasted.returncode, pasted.stderr) == (0, "")
    attached = trainmark("run", "--attach", str(run_dir))
    assert attached.returncode == 0, attached.stdout + attached.stderr
    assert read_checked_record(run_dir).status == "passed"
