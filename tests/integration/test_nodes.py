"""Real runs on two nodes, which are node processes of this machine."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from support.fake_backends import STAND_INS
from support.here_launcher import Here
from trainmark.events.timeline import read_run
from trainmark.export.followers.starting import Followers
from trainmark.export.followers.targets import parse_targets
from trainmark.launch import launchers, submission
from trainmark.launch.cluster import Cluster
from trainmark.launch.processes import StopRequest, find_alive_runs
from trainmark.plan.choosing import RemoteTarget
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.record.record import Record, read_record
from trainmark.record.verify import verify_evidence

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.launch.launchers import EngineJob, JobState


def _list_processes(run_id: str) -> list[psutil.Process]:
    """Return the living processes of all nodes of a run.

    Processes of a node have an id of their own in place of the run's, which begins with ``run_id``.
    """
    processes = []
    for run_of_node, pids in find_alive_runs().items():
        if run_of_node.startswith(run_id):
            for pid in pids:
                with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
                    processes.append(psutil.Process(pid))
    return processes


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for generated data, shared so that it is generated once for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run_two_nodes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs toy on two nodes with one rank each; it returns the record.

    ``launcher``: starts the nodes; ``fields``: of the recipe. The host is sampled every 0.1 s, so
    that short runs have readings too.
    """
    monkeypatch.setenv("TRAINMARK_CACHE", str(cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(launcher: Here, *, device: str = "cpu", **fields: str) -> Record:
        """Run toy on two nodes, until all their processes have ended; return the record."""
        monkeypatch.setattr(launchers, "load_launcher", lambda _: launcher)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        plan = resolve(
            RunRequest(
                case="toy",
                overrides=fields,
                device=device,
                nnodes=2,
                nproc=1,
                sample_every=0.1,
                out=tmp_path / "run",
            ),
            remote=RemoteTarget(launcher="here"),
        )
        record = submission.launch(plan, Cluster(master_port=port), StopRequest(), lambda _: None)
        # What was killed may take a moment to end.
        _ended, alive = psutil.wait_procs(_list_processes(plan.run_id))
        assert alive == []
        return record

    return run


def test_run_on_two_nodes_leaves_a_complete_record(run_two_nodes: Any, tmp_path: Path) -> None:
    """``Here`` is a launcher that starts each node as a process of this machine, with one rank.

    ``run_two_nodes`` runs toy on two nodes with one rank each, and returns the record.
    """
    record = run_two_nodes(Here())
    run = tmp_path / "run"
    assert (record.status, record.plan.nnodes, len(record.ranks)) == ("passed", 2, 2)
    rows = record.plan.data.train_samples
    assert record.counts.samples == rows * record.counts.epochs
    # A record that is read has not been compared with its evidence yet.
    assert read_record(run) == record.model_copy(update={"verification": "unverified"})
    assert verify_evidence(record, run) == []
    assert {entry.name for entry in record.evidence} >= {
        "events.node0.jsonl",
        "events.node1.jsonl",
        "events.job.jsonl",
        "telemetry.node1.jsonl",
    }
    assert record.environment["cpu"]
    assert record.telemetry is not None
    assert len(record.telemetry.hosts) == 2
    # The difference of the nodes' clocks is estimated at a barrier. Here both have the same clock,
    # so that only the time of the barrier itself remains.
    # A barrier takes far less than 1e9 ns, a second.
    timeline = read_run(run, world_size=2, nodes=2)
    assert abs(timeline.nodes[1].shift_ns) < 1_000_000_000


@pytest.mark.nightly
def test_a_follower_that_starts_before_the_nodes_exports_all_their_steps_once(
    run_two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower is a process that exports a run, here to the stand-in for W&B in ``STAND_INS``.

    Its target ``keep`` writes each call as a line of JSON into ``calls``. ``Here`` is a
    launcher that starts two nodes as processes of this machine. A remark would be about a fault
    of the follower. When it reads, while the nodes write or at the end, is not checked.
    ``run_two_nodes`` runs toy on two nodes with one rank each, and returns the record.
    """
    calls = tmp_path / "calls.jsonl"
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    monkeypatch.setenv("STAND_IN_CALLS", str(calls))
    with Followers(tmp_path / "run", parse_targets(["wandb=keep"])) as followers:
        followers.wait_until_ready(StopRequest())
        record = run_two_nodes(Here())
    assert list(followers.iterate_remarks()) == []
    calls_made = [json.loads(line) for line in calls.read_text().splitlines()]
    losses = [call["train/loss"] for call in calls_made if "train/step" in call]
    assert losses == record.steps.loss  # each step once
    for node in range(2):
        assert any(f"sys/node{node}/memory/used_gib" in call for call in calls_made)
    assert (calls_made[-1]["status"], calls_made[-1]["exit_code"]) == ("passed", 0)


def test_other_packages_on_a_node_are_named_before_training(
    run_two_nodes: Any, tmp_path: Path
) -> None:
    """``Here`` starts nodes on this machine; the given lines of a shell come before node 1.

    The versions of eight packages are compared, whichever of them a case uses: those that a
    record has in its environment. peft is any of them. ``run_two_nodes`` runs toy on two nodes
    with one rank each, and returns the record.
    """
    (tmp_path / "other/peft-99.0.dist-info").mkdir(parents=True)
    (tmp_path / "other/peft-99.0.dist-info/METADATA").write_text("Name: peft\nVersion: 99.0\n")
    path = os.pathsep.join(filter(None, [str(tmp_path / "other"), os.environ.get("PYTHONPATH")]))
    # On node 1 Python finds the metadata of peft 99.0 before that of the installed one.
    record = run_two_nodes(Here({1: f"export PYTHONPATH='{path}'\n"}))
    assert record.status == "failed"
    assert record.cause.message.code == "packages_differ"
    message_args = record.cause.message.args  # ``here``: the version on the node
    assert (message_args["node"], message_args["package"], message_args["here"]) == (
        1,
        "peft",
        "99.0",
    )
    timeline = read_run(tmp_path / "run", world_size=2, nodes=2)
    (failure,) = timeline.nodes[1].events["ranks_ended"].failures
    assert (failure.rank, failure.exit_code) == (1, 1)
    assert record.counts.steps == 0


class Killing(Here):
    """Kills the process of node 1 as soon as its rank trains."""

    def read_state(self, job: EngineJob) -> JobState:
        """Kill node 1 once its rank has trained a window after its warm-up; return the state."""
        file = job.folder / "events.rank1.jsonl"
        if file.exists() and b'"train"' in file.read_bytes():  # the phase of a window
            self.nodes[1].kill()
        return super().read_state(job)


def test_a_killed_node_leaves_no_process_and_a_partial_record(run_two_nodes: Any) -> None:
    """``Killing`` is a launcher that kills the process of node 1 as soon as its rank trains.

    A record of a training that was cut off is labelled "partial". ``run_two_nodes`` runs toy on
    two nodes with one rank each, and returns the record.
    """
    launcher = Killing()
    # It would train for hours.
    record = run_two_nodes(launcher, max_epochs="100000", target_value="none", max_steps="none")
    assert (record.status, record.cause.kind) == ("failed", "node_lost")
    assert record.cause.message.args["nodes"] == "1"  # the numbers of those that were lost
    assert None not in [process.poll() for process in launcher.nodes]
    assert record.counts.steps > 0
    assert not record.ranks[1].finished
    assert "partial" in record.labels


@pytest.mark.nightly
def test_node_without_the_interface_of_a_variable_is_named(run_two_nodes: Any) -> None:
    """``Here`` starts nodes on this machine; the given lines of a shell come before node 1.

    ``run_two_nodes`` runs toy on two nodes with one rank each, and returns the record.
    """
    # An interface that this machine does not have.
    record = run_two_nodes(Here({1: "export GLOO_SOCKET_IFNAME=eth9\n"}))
    assert (record.status, record.cause.kind) == ("failed", "node_refused")
    assert record.cause.message.args["node"] == 1
    assert "GLOO_SOCKET_IFNAME=eth9" in record.cause.message.args["text"]
