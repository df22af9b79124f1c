"""Runs on bare hosts: two namespaces with an sshd each, and the login machine in a third."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from engines.ssh_hosts import Hosts, explain_absence, wait_until
from support.real_runs import (
    interrupt_and_check_run,
    read_checked_record,
    read_job_states,
    train_distilbert_on_two_ranks,
    wait_for_end,
    wait_for_fault,
)
from support.run_fixtures import CASES
from trainmark.events.schema import EventFile
from trainmark.launch import processes
from trainmark.plan.plan import Plan

if explain_absence():
    pytest.skip(
        f"no hosts for ssh here: {explain_absence()} (make test-engines)", allow_module_level=True
    )

PORT = 29_511


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Two hosts with an sshd each and a login machine, in namespaces of this machine."""
    ssh_hosts = Hosts(tmp_path_factory.mktemp("hosts"))
    yield ssh_hosts
    ssh_hosts.end()


@pytest.fixture
def make_args(hosts, tmp_path):
    """Return a function that writes a cluster file and returns the arguments of a run with it.

    The file also sets variables of the environment: the folder of the tests' cases, and
    ``FAULT_FIFO``, to which the case that fails writes its process id when it reaches the fault.
    ``PORT`` is any port: each host has a network of its own, in which it is free.
    """

    def make():
        site = hosts.build_settings()
        site["environment"] |= {
            "TRAINMARK_CASE_PATH": str(CASES),
            "TRAINMARK_CACHE": str(tmp_path / "cache"),
            "FAULT_FIFO": str(tmp_path / "fifo"),
        }
        site["master_port"] = PORT
        (tmp_path / "cluster.yaml").write_text(json.dumps(site))
        cluster_option = ("--cluster", str(tmp_path / "cluster.yaml"))
        return ("--launcher", "ssh", "--nnodes", "2", "--nproc", "1", *cluster_option)

    return make


@pytest.fixture
def run(hosts, start_run, make_args):
    """Return a function that starts ``trainmark run`` on the login machine, with two nodes.

    The function returns the process and the run's folder. The case ``faulty`` plants a fault that
    its argument ``fault`` names.
    """

    def start(*options, case="faulty"):
        return start_run(*options, *make_args(), case=case, prefix=hosts.login.enter_namespace())

    return start


def list_processes_left(run_dir):
    """Return the ids of a run's living ranks, and of processes whose command line has its folder.

    On each host the folder of the run is ``root``, a slash and the id of the run. Hosts are
    namespaces of this machine, which also sees their processes.

    Args:
        run_dir: the run's folder on this machine.
    """
    run_id = Plan.read(run_dir).run_id
    # A list for each part of the run; callers only ask whether there are any.
    process_ids = [
        ids for name, ids in processes.find_alive_runs().items() if name.startswith(run_id)
    ]
    listed = subprocess.run(
        ["pgrep", "-f", f"root/{run_id}"], capture_output=True, text=True, check=False
    )
    return process_ids + listed.stdout.split()


def test_distilbert_trains_on_two_hosts(run, hosts):
    # ``train_distilbert_on_two_ranks`` starts the case by ``run``, on two hosts; it checks that the
    # run passes with two ranks, and returns its folder. ``list_processes_left`` returns the ids of
    # living processes of the run.
    run_dir = train_distilbert_on_two_ranks(run)
    for node in (0, 1):
        # The events on the node's own disk, and the copy in the run's folder.
        (original,) = hosts.get_disk(node).glob(
            f"{Plan.read(run_dir).run_id}/events.node{node}.jsonl"
        )
        assert len(list(EventFile(original))) == len(list(EventFile(run_dir / original.name)))
        assert (run_dir / f"telemetry.node{node}.jsonl").exists()
    assert list_processes_left(run_dir) == []


@pytest.mark.nightly
def test_ctrl_c_ends_all_nodes(run, fifo):
    """SIGINT to the program ends the ranks on both hosts.

    The case is ``faulty``: with ``fault=wait`` rank 1 writes to the pipe ``fifo`` and waits to be
    killed. ``interrupt_and_check_run`` then sends SIGINT and checks that the record's status is
    "interrupted".
    """
    process, run_dir = run("fault=wait", "fault_rank=1")
    interrupt_and_check_run(process, run_dir, fifo)
    assert list_processes_left(run_dir) == []


@pytest.mark.nightly
def test_lost_connection_ends_both_sides_and_names_the_node(run, hosts, fifo):
    """If the link to a host fails, the run fails, and the ranks there end by themselves.

    There are two hosts with a rank each. With ``fault=wait`` rank 0 of the case ``faulty`` writes
    to the pipe ``fifo`` and waits to be killed, so that the run is under way.
    """
    process, run_dir = run("fault=wait", "fault_rank=0")
    wait_for_fault(fifo)
    hosts.set_link(1, "down")
    code, _, err = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (code, record.status) == (1, "failed")
    # The number of the node whose link is down.
    assert (record.cause.kind, record.cause.message.args["nodes"]) == ("node_lost", "1")
    assert read_job_states(run_dir)[-1]["phase"] == "lost"
    assert f"{hosts.get_address(1)}: ssh: " in err
    assert not (run_dir / "events.node1.jsonl").exists()  # it could not be copied
    wait_until(
        lambda: list_processes_left(run_dir) == [],
        "the end of the lost node's processes",
        patience_s=90,
    )
    # For the next test.
    hosts.set_link(1, "up")
    wait_until(lambda: hosts.is_reachable(1), "the link")


@pytest.mark.nightly
def test_nodes_end_if_their_launcher_is_killed(run, hosts, fifo):
    """Ranks on both hosts end if the program is killed that started them.

    With ``fault=wait`` rank 1 of the case ``faulty`` writes to the pipe ``fifo`` and waits to be
    killed. ``list_processes_left`` lists the processes of the run on all hosts.
    """
    process, run_dir = run("fault=wait", "fault_rank=1")
    wait_for_fault(fifo)
    process.kill()
    wait_until(lambda: list_processes_left(run_dir) == [], "the end of the nodes", patience_s=120)
    # Another process writes the record of what was left.
    args = ("-m", "trainmark", "run", "--attach", str(run_dir))
    subprocess.run(
        hosts.login.enter_namespace(sys.executable, *args), capture_output=True, check=False
    )
    assert read_checked_record(run_dir).status == "interrupted"
