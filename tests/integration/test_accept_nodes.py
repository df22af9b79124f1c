"""``trainmark accept`` on several nodes, which are agents on this machine; ssh is a fake."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from support.run_fixtures import CASES
from trainmark.acceptance.evidence import EVIDENCE_DIR
from trainmark.acceptance.result import read_result

if TYPE_CHECKING:
    from pathlib import Path

# Runs its command on this machine; a host with a file HOST.sh runs that first, in the same shell.
FAKE_SSH = """#!/bin/sh
while case "$1" in -*) true;; *) false;; esac; do shift; done
host=${{1#ssh://}}; shift
if [ -e {folder}/$host.sh ]; then . {folder}/$host.sh; fi
exec sh -c "$*"
"""
# All of these addresses are this machine.
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Cluster:
    """Hosts that are this machine, and the acceptance of them."""

    def __init__(self, folder: Path, hosts: tuple[str, ...] = HOSTS) -> None:
        """Write the cluster file, and an ``ssh``, ``FAKE_SSH``, that runs its command here.

        Args:
            folder: where these files are, and the results in ``out``.
            hosts: addresses, all of this machine; each is a node.
        """
        self.folder, self.out, self.hosts = folder, folder / "out", hosts
        (folder / "ssh").write_text(FAKE_SSH.format(folder=folder))
        (folder / "ssh").chmod(0o755)
        # A free port, because other tests may run at the same time. The node with rank n uses the
        # port n + 1 above it; the last port is 65,535.
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = min(listener.getsockname()[1], 65_000)
        settings = {"device": "cpu", "master_port": port, "ssh": {"hosts": list(hosts)}}
        (folder / "cluster.yaml").write_text(json.dumps(settings))

    def command(self, *args: str, case: str = "toy") -> list[str]:
        """Return the command that accepts all hosts with ``case``; ``args``: further options.

        A phase has two rounds, in which a measurement takes 0.2 s (``--seconds``).
        """
        return [
            *(sys.executable, "-m", "trainmark", "accept", case),
            *shlex.split(f"--launcher ssh --nproc 1 --nnodes {len(self.hosts)}"),
            *("--cluster", str(self.folder / "cluster.yaml")),
            *shlex.split("--repeats 2 --seconds 0.2"),
            *("--out", str(self.out)),
            *args,
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of the command, in which ``ssh`` is the fake one."""
        return os.environ | {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "TRAINMARK_CASE_PATH": str(CASES),
            "OMP_NUM_THREADS": "1",
        }

    def run_before_ssh_command(self, host: str, script: str) -> None:
        """Have the fake ``ssh`` to a host run lines of a shell before each command."""
        (self.folder / f"{host}.sh").write_text(script + "\n")

    def accept(self, *args: str, case: str = "toy") -> subprocess.CompletedProcess[str]:
        """Accept all hosts with ``case``, until the command ends; ``args``: further options."""
        return subprocess.run(
            self.command(*args, case=case),
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    def events(self, kind: str) -> list[dict[str, object]]:
        """Return the events of a kind in the evidence of all nodes."""
        texts = [path.read_text() for path in sorted((self.out / EVIDENCE_DIR).iterdir())]
        events = [json.loads(line) for text in texts for line in text.splitlines()]
        return [event for event in events if event["event"] == kind]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return three nodes, ``HOSTS``, each with one device; all are this machine."""
    return Cluster(tmp_path)


def test_nodes_measure_alone_and_in_pairs_and_resume_with_missing_measurements(
    cluster: Cluster,
) -> None:
    """``HOSTS`` are three addresses of this machine; each is a node with one device.

    Phases measure devices, nodes, and pairs of nodes. ``cluster`` asks for two rounds of each; all
    pairs of three nodes need three rounds, of one pair each.
    """
    process = cluster.accept()

    # A busy machine may look slow, or give no verdict.
    assert process.returncode in (0, 1, 3), process.stderr
    result = read_result(cluster.out)
    assert result.unit == "node"
    assert [member.name for member in result.members] == list(HOSTS)
    assert all(member.step is not None for member in result.members)
    # Each device trains the same few steps more than once. Deterministic: more than half of
    # them repeat their own bits and agree with one another.
    assert [(comparison.control, comparison.devices) for comparison in result.bits] == [
        ("deterministic", 3)
    ]
    # Each of 3 nodes: twice its device, twice itself, and both its pairs. Later rounds of pairs
    # than the three planned ones measure links again that looked slow.
    measured = cluster.events("measured")
    planned = [event for event in measured if event["phase"] != "pairs" or event["round"] < 3]
    assert len(planned) == 3 * (2 + 2 + 2)
    assert not result.not_measured
    assert len(cluster.events("left")) == 3  # the agent of each node has ended

    # Attaching to an acceptance that has ended judges again, and measures nothing.
    attached = subprocess.run(
        [sys.executable, "-m", "trainmark", "accept", "--attach", str(cluster.out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert attached.returncode == process.returncode, attached.stderr
    assert cluster.events("measured") == measured

    second_call = cluster.accept()

    assert second_call.returncode in (0, 1, 3), second_call.stderr
    later = [event for event in cluster.events("measured") if event not in measured]
    # Nothing was missing but links that looked slow.
    assert [event for event in later if event["phase"] != "pairs" or event["round"] < 3] == []


def test_node_that_never_starts_is_named_and_others_keep_their_results(tmp_path: Path) -> None:
    """Two addresses of this machine are nodes, whose agents ssh starts.

    The lines of a shell run on the second host before each command of ssh.
    """
    cluster = Cluster(tmp_path, HOSTS[:2])
    # As if ssh could not connect, but only for the agent: the check before it succeeds.
    cluster.run_before_ssh_command(HOSTS[1], 'case "$*" in *agent*) exit 255;; esac')

    # ``--join``: how many seconds the others wait for it.
    process = cluster.accept("--phases", "devices,nodes", "--join", "10")

    assert process.returncode == 1, process.stderr
    result = read_result(cluster.out)
    by_name = {member.name: member for member in result.members}
    assert [finding.code for finding in by_name[HOSTS[1]].findings] == ["no_answer"]
    assert by_name[HOSTS[0]].step_s is not None


def test_node_without_the_shared_folder_reports_it(tmp_path: Path) -> None:
    """Two addresses of this machine are nodes, whose agents ssh starts.

    ``cluster.out`` is the folder of the results, which all nodes must share. The lines of a shell
    run on the second host before each command of ssh. ``--join``: for how many seconds the others
    wait for a node.
    """
    cluster = Cluster(tmp_path, HOSTS[:2])
    # The agent of the second node is told another path than the one of the shared folder.
    replace_path = f'set -- "$(echo "$*" | sed "s#{cluster.out}#/nowhere#g")"'
    cluster.run_before_ssh_command(HOSTS[1], f'case "$*" in *agent*) {replace_path};; esac')

    process = cluster.accept("--phases", "devices", "--join", "10")

    assert process.returncode == 1, process.stderr
    members = {member.name: member for member in read_result(cluster.out).members}
    (finding,) = members[HOSTS[1]].findings
    assert finding.code == "no_answer"
    assert "cannot read /nowhere" in finding.text
    assert "--out" in finding.text
    assert members[HOSTS[1]].step_s is None


PHASES = ("devices", "nodes", "pairs", "groups")


@pytest.mark.parametrize(
    "phase",
    [
        phase if phase == "devices" else pytest.param(phase, marks=pytest.mark.nightly)
        for phase in PHASES
    ],
)
def test_interrupted_phase_ends_all_nodes_and_keeps_what_was_measured(
    tmp_path: Path, phase: str
) -> None:
    """Four nodes, all this machine; the signal comes as soon as ``phase`` begins.

    ``PHASES`` are the phases of an acceptance in their order; ``cluster`` runs two rounds of each,
    or three of pairs. No process of it, whose words name the folder ``out``, may be left.
    """
    cluster = Cluster(tmp_path, tuple(f"127.0.0.{number}" for number in range(1, 5)))
    # With these limits no difference of this machine's cores fails a node.
    process = subprocess.Popen(
        cluster.command("--worse-by", "10", "--rates-worse-by", "10"),
        env=cluster.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    earlier_phases = PHASES[: PHASES.index(phase)]
    awaited = "nodes that joined: 4"  # a part of the line after which the signal is sent
    if earlier_phases:  # the last round of the phase before
        last_phase = earlier_phases[-1]
        rounds = 3 if last_phase == "pairs" else 2  # in three rounds each of four nodes meets all
        awaited = f"{last_phase}: {rounds} of"
    for line in process.stderr:
        if awaited in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()

    assert process.returncode in (1, 3), out + err  # interrupted: never passed
    assert read_result(cluster.out).interrupted == "SIGINT"
    measured = {event["phase"] for event in cluster.events("measured")}
    assert measured >= set(earlier_phases)
    remaining = [
        other
        for other in psutil.process_iter(["cmdline"])
        if str(cluster.out) in " ".join(other.info["cmdline"] or [])
    ]
    _, alive = psutil.wait_procs(remaining, timeout=300)  # they may still be ending
    assert alive == []


@pytest.mark.nightly
def test_death_of_the_first_node_loses_no_result_of_others(cluster: Cluster) -> None:
    """``HOSTS`` are three nodes of this machine; only pairs without the first are measured.

    ``--deadline``: the time limit of a round in seconds, after which the lost node is given up.
    """
    process = subprocess.Popen(
        cluster.command("--phases", "devices,nodes,pairs", "--deadline", "120"),
        env=cluster.environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # The first round of the phase before the pairs has ended.
    for line in process.stderr:
        if "nodes: 1 of" in line:
            break
    # Kill the agent of the first node. It chooses the rounds of pairs, and the ranks of each of its
    # pairs meet at its address. The agents of this command have its folder, sessions/1, among
    # their arguments.
    for other in psutil.process_iter(["cmdline"]):
        args = other.info["cmdline"] or []
        is_agent = "trainmark.acceptance.agent" in args and f"{cluster.out}/sessions/1" in args
        if is_agent and args[args.index("--node-rank") + 1] == "0":
            other.kill()
    out, err = process.communicate()

    assert process.returncode == 1, out + err
    result = read_result(cluster.out)
    assert HOSTS[0] in result.list_names("fail")
    members = {member.name: member for member in result.members}
    assert {finding.code for finding in members[HOSTS[0]].findings} >= {"no_answer"}
    pairs = {
        tuple(event["members"]) for event in cluster.events("measured") if event["phase"] == "pairs"
    }
    assert pairs == {(HOSTS[1], HOSTS[2])}


@pytest.mark.nightly
def test_node_clock_wrong_by_minutes_changes_no_result(cluster: Cluster) -> None:
    """``HOSTS`` are three nodes of this machine.

    The limits 10 are so wide that no difference of this machine's cores fails a node.
    """
    # Python imports this module at its start: the clock of the second node is 600 s ahead.
    (cluster.folder / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 600\n"
    )
    cluster.run_before_ssh_command(HOSTS[1], f"export PYTHONPATH={cluster.folder}:$PYTHONPATH")

    process = cluster.accept("--worse-by", "10", "--rates-worse-by", "10")

    assert process.returncode in (0, 3), process.stderr
    joined_s = {event["node"]: event["unix_s"] for event in cluster.events("joined")}
    assert joined_s[HOSTS[1]] - joined_s[HOSTS[0]] > 500  # of 600 s: they join apart
    result = read_result(cluster.out)
    assert not result.not_measured
    assert all(member.step is not None for member in result.members)


@pytest.mark.nightly
def test_two_nodes_are_accepted(tmp_path: Path) -> None:
    """``HOSTS`` are addresses of this machine, each of which is a node with one device.

    The limits 10 are so wide that no difference of this machine's cores fails a node.
    """
    cluster = Cluster(tmp_path, HOSTS[:2])

    process = cluster.accept("--worse-by", "10", "--rates-worse-by", "10")

    assert process.returncode in (0, 3), process.stderr
    result = read_result(cluster.out)
    # Of two nodes only the slower one can fail.
    assert [member.decision for member in result.members] != ["fail", "fail"]
    assert result.wholes == ()  # a set of two is a pair: groups are not searched
    assert {event["phase"] for event in cluster.events("measured")} == {"devices", "nodes", "pairs"}


@pytest.mark.nightly
def test_nodes_behind_a_bad_switch_are_found_as_one_group(tmp_path: Path) -> None:
    """Two of eight nodes are behind the switch: only steps of nodes on both sides are slow."""
    hosts = tuple(f"127.0.0.{number}" for number in range(1, 9))
    cluster = Cluster(tmp_path, hosts)
    hosts_behind_switch = hosts[4:6]
    for host in hosts_behind_switch:
        cluster.run_before_ssh_command(host, "export BEHIND_SWITCH=1")

    # Eight nodes share this machine's cores: only the switch, which takes a second, is to count.
    process = cluster.accept("--worse-by", "10", "--rates-worse-by", "10", case="switched")

    assert process.returncode == 1, process.stderr
    result = read_result(cluster.out)
    (set_of_all_nodes,) = result.wholes
    assert (set_of_all_nodes.outcome, set_of_all_nodes.groups) == (
        "found",
        (hosts_behind_switch,),
    )
    assert result.list_names("fail") == list(hosts_behind_switch)
    events = cluster.events("measured")
    rounds_of_all_nodes = {event["round"] for event in events if event["members"] == list(hosts)}
    assert len(rounds_of_all_nodes) == 2  # as --repeats says
