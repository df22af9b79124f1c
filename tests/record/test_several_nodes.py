"""The record of a run on several nodes: what differs between them, and one that was lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.document_texts import render_markdown
from support.fakes import (
    GOLDEN,
    TICK,
    S,
    launch_event,
    make_event,
    make_window,
    rank_events,
    write_events,
    write_run,
)
from trainmark.pages import page
from trainmark.pages.rendering import to_markdown
from trainmark.record import record, reduce
from trainmark.record.verify import verify_evidence

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.record.record import Record

UNIX = 1_000_000_000_000_000_000
COMMON_ENVIRONMENT = {
    "cpu": "Fake CPU",
    "driver": "1.2",
    "packages": {"torch": "2.13", "numpy": "2.3"},
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the folder of a run on three nodes, which have not written anything yet."""
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    # Without the plan's labels, of which one says that the data are generated: the record's labels
    # are then only those that follow from the events.
    plan |= {"nnodes": 3, "nproc": 1, "launcher": "slurm", "labels": []}
    folder = write_run(tmp_path / "run", [launch_event(argv=["trainmark"])])
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def make_job_event(job_state: str) -> dict[str, Any]:
    """Return the event, at 13 s, in which a cluster reports the state in which the job ended."""
    return make_event("job", 13 * S, phase="ended", text=job_state)


def write_node(
    run_dir: Path,
    number: int,
    machine: dict[str, Any],
    *,
    skew_s: float = 0.0,
    lost: bool = False,
    device: str = "Fake CPU",
) -> None:
    """Write the files of a node; a lost node has no end and fewer measured steps.

    ``S`` is a second in nanoseconds, ``TICK`` an eighth of it, and ``UNIX`` the calendar's time of
    the launch. A step has 64 samples of each of the three ranks, together 192.

    Args:
        number: of the node, and of its rank.
        machine: its environment.
        skew_s: how much its wall clock is ahead.
        device: name of its device.
    """
    skew_ns = int(skew_s * S)
    events = [launch_event(node=number, unix_ns=UNIX + skew_ns, environment=machine)]
    events_of_rank = rank_events()  # the node has one rank, with the node's number
    events_of_rank.insert(2, make_event("synced", 3 * S, unix_ns=UNIX + 3 * S + skew_ns))
    for entry in events_of_rank:
        if entry["event"] == "facts":
            entry["device"] = {"name": device}
        if entry["event"] == "window":
            # Of the three ranks.
            entry["step_samples"] = [3 * samples for samples in entry["samples"]]
    if lost:
        steps = range(5)
        # A shorter measured window replaces the usual one, and no event follows. Its index is 8 in
        # ``rank_events``, and 9 after the insertion of ``synced``.
        events_of_rank[9] = make_window(
            8 * S,
            8 * S + 5 * TICK,
            first_step=3,
            step_ns=[TICK for _ in steps],
            samples=[64 for _ in steps],
            step_samples=[192 for _ in steps],
        )
        events_of_rank = events_of_rank[:10]
    else:
        events.append(make_event("ranks_ended", 12 * S, failures=[]))
        events.append(make_event("finished", 13 * S))
    write_events(run_dir / f"events.node{number}.jsonl", events)
    write_events(run_dir / f"events.rank{number}.jsonl", events_of_rank)


def render_both_languages(record: Record) -> tuple[str, str]:
    """Return the record as a page in both languages."""
    return to_markdown([page.build_document([record])]), render_markdown([record], "zh")


def test_differences_between_nodes_are_findings(run_dir: Path) -> None:
    # A node's machine has a processor, a driver and versions of packages: ``COMMON_ENVIRONMENT``
    # the driver 1.2, torch 2.13 and numpy 2.3. The usual device is called "Fake CPU". ``skew_s``:
    # by how much the node's clock is ahead.
    write_node(run_dir, 0, COMMON_ENVIRONMENT)
    other = {**COMMON_ENVIRONMENT, "driver": "1.3", "packages": {"torch": "2.13", "numpy": "2.2"}}
    write_node(run_dir, 1, other, skew_s=-2.5, device="Other CPU")
    write_node(run_dir, 2, COMMON_ENVIRONMENT, skew_s=0.5)
    record = reduce.reduce(run_dir)
    # For each node the facts in which it differs from the first one.
    assert record.environment["nodes"] == [
        {},
        {"driver": "1.3", "device": "Other CPU", "numpy": "2.2"},
        {},
    ]
    # Clocks that differ are no difference between machines.
    args_by_code = {finding.code: finding.args for finding in record.findings}
    assert args_by_code["nodes_differ"] == {"nodes": "1", "names": "driver, numpy, device"}


def test_a_lost_node_leaves_a_partial_record_that_can_be_verified(run_dir: Path) -> None:
    # Each of three nodes has one rank and the same environment. A rank that is not lost takes 16
    # steps of 64 samples: 3 that are not measured, and 13 measured ones of 0.125 s. The lost rank
    # ends after 5 measured steps.
    write_node(run_dir, 0, COMMON_ENVIRONMENT)
    write_node(run_dir, 1, COMMON_ENVIRONMENT, lost=True)
    write_node(run_dir, 2, COMMON_ENVIRONMENT)
    write_events(run_dir / "events.job.jsonl", [make_job_event("NODE_FAIL")])
    partial_record = reduce.reduce(run_dir)
    assert (partial_record.status, partial_record.cause.kind) == ("failed", "node_lost")
    assert partial_record.cause.message.args == {
        "nodes": "1",
        "ranks": "1",
        "text": "NODE_FAIL",  # the job's state, as the launcher reported it
        "steps": 16,  # the most that any rank has taken
    }
    assert partial_record.labels == ["partial"]
    assert partial_record.trust.grade == "do_not_quote"
    assert [rank.finished for rank in partial_record.ranks] == [True, False, True]
    # Samples reported until then over the slowest rank's time: two ranks took 13 steps of 64, the
    # lost one took 5; 13 steps take 1.625 s.
    assert partial_record.figure("final_result") == (2 * 13 + 5) * 64 / 1.625
    # Of the lost rank 3 steps that are not measured, and 5 that are.
    assert [rank.steps for rank in partial_record.ranks] == [16, 8, 16]
    record.write_record(partial_record, run_dir)
    assert verify_evidence(partial_record, run_dir) == []
    terminal, chinese = render_both_languages(partial_record)
    assert "partial (the run ended early" in terminal
    assert "节点 1（rank 1）在完成 16 步后失联：NODE_FAIL" in chinese


def test_node_without_files_gives_null_figures_with_a_reason(run_dir: Path) -> None:
    # Of three nodes, node 1 wrote nothing. The launcher reported the end of the job with a text.
    write_node(run_dir, 0, COMMON_ENVIRONMENT)
    write_node(run_dir, 2, COMMON_ENVIRONMENT)
    write_events(run_dir / "events.job.jsonl", [make_job_event("node 1 went away")])
    record = reduce.reduce(run_dir)
    assert record.cause.message.args["nodes"] == "1"
    reasons = {"final_result": "rank_without_measured_step", "p_train": "no_train_time"}
    for name, code in reasons.items():
        assert (record.figures[name].value, record.figures[name].reason.code) == (None, code)
    # What node 1 has is unknown, so no difference from the first node is known.
    assert record.environment["nodes"][1] == {}
