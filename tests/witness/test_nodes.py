"""A program on two nodes, which are node processes of this machine."""

from __future__ import annotations

import socket
import sys

import pytest

from support.here_launcher import Here
from support.real_runs import read_checked_record
from support.witnessed_programs import PROGRAMS, WORK, list_grave_finding_codes
from trainmark.launch import launchers, submission
from trainmark.launch.cluster import Cluster
from trainmark.launch.processes import StopRequest
from trainmark.plan.choosing import RemoteTarget
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve

PYTHON = (sys.executable,)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1")


@pytest.fixture(name="measure_nodes")
def _measure_nodes(tmp_path, monkeypatch):
    """Return a function that measures ``ddp.py`` on two nodes with one rank each.

    The function takes the words of the command that precede the program, and ``changes``: values of
    fields of ``plan.witness`` that replace those of the plan.
    """

    def measure(command, **changes):
        """Return the record; ``changes`` are those of ``plan.witness``."""
        # Nodes are processes of this machine.
        monkeypatch.setattr(launchers, "load_launcher", lambda _: Here())
        # ``WORK`` is a file of ``--witness`` for the programs in the folder ``PROGRAMS``.
        # ``ddp.py`` prints no line with a speed, which ``speed_line`` would have to match.
        work = "\n".join(line for line in WORK.splitlines() if "speed_line" not in line)
        (tmp_path / "work.toml").write_text(work)
        with socket.socket() as listening:  # finds a free port for the ranks to meet
            listening.bind(("127.0.0.1", 0))
            port = listening.getsockname()[1]
        request = RunRequest.build(
            case="witnessed",
            witness=tmp_path / "work.toml",
            command=[*command, str(PROGRAMS / "ddp.py")],
            device="cpu",
            nnodes=2,
            nproc=1,
            sample_every=0,
            out=tmp_path / "run",
        )
        plan = resolve(request, remote=RemoteTarget(launcher="here"))
        assert plan.witness is not None
        witness = plan.witness.model_copy(update=changes)
        plan = plan.model_copy(update={"witness": witness})
        # The last argument would show the progress.
        submission.launch(plan, Cluster(master_port=port), StopRequest(), lambda _: None)
        return read_checked_record(tmp_path / "run")

    return measure


@pytest.mark.parametrize("command", [PYTHON, TORCHRUN], ids=["each_rank", "torchrun"])
def test_ranks_of_two_nodes_are_measured(tmp_path, measure_nodes, command):
    # With ``PYTHON``, a command of Python alone, Trainmark starts each rank; with ``TORCHRUN``, the
    # command starts that of its node. ``ddp.py`` takes 20 steps with 4 samples on each rank. No
    # finding of the record lowers its trust for good.
    record = measure_nodes(command)
    assert (record.status, list_grave_finding_codes(record)) == ("passed", set())
    assert (record.plan.nnodes, [rank.steps for rank in record.ranks]) == (2, [20, 20])
    assert [rank.counts.samples for rank in record.ranks] == [80, 80]  # 20 steps of 4
    outputs = [(tmp_path / "run" / f"log.node{node}.txt").read_text() for node in range(2)]
    assert "rank 0 of 2 done" in outputs[0]
    assert "rank 1 of 2 done" in outputs[1]


def test_node_without_the_folder_of_the_program_says_so(tmp_path, measure_nodes):
    # ``measure_nodes`` runs a program on two nodes. ``PYTHON`` is the command, Python alone;
    # ``folder`` is where each node starts the program.
    record = measure_nodes(PYTHON, folder=str(tmp_path / "gone"))
    assert record.status == "failed"
    assert record.cause is not None
    assert record.cause.message.code == "node_refused"
    assert str(tmp_path / "gone") in str(record.cause.message.args["text"])
