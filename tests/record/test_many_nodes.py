"""A run of 1,024 nodes with 8 ranks each: planned, recorded and shown, briefly."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fakes import event, launch_event, window, write_events, write_run
from trainmark.pages.page import markdown_page
from trainmark.plan.capabilities import Elsewhere
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.rank.events import JOB_EVENTS_FILE, node_file
from trainmark.record import record, reduce
from trainmark.record.run.findings import _few
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.plan.plan import Plan

NODES, NPROC = 1_024, 8
LOST, SLOW = 700, 4_001
S = 1_000_000_000


def planned(folder: Path, nodes: int = NODES, launcher: str = "slurm") -> Plan:
    return resolve(
        RunRequest(
            case="toy", nnodes=nodes, nproc=NPROC, device="cpu", sample_every=0,
            overrides={"steps": "3", "warmup_steps": "1"}, out=folder / "run",
        ),
        elsewhere=Elsewhere(launcher=launcher), generated_root=folder / "cache",
    )  # fmt: skip


def rank_events(rank: int, clock_ns: int) -> list[dict[str, Any]]:
    """Return a rank of 3 steps of 1 s on its own device and cores."""
    t = clock_ns
    step_ns = S if rank == SLOW else 6 * S // 10
    device = {"name": "X1", "memory_total_bytes": 8_000_000}
    placed = {"numa_nodes": [0], "cores": f"{rank % 8}", "threads": 1, "why_not": None}
    events = [
        event("start", t + S, pid=1 + rank),
        event("synced", t + 2 * S, unix_ns=3 * t),
        event("facts", t + 2 * S, device=device, memory_scope="device", shares_cores=False,
              matmul_flops_per_second=5e10 - 1e10 * (rank == SLOW), placement=placed),
        window(t + 2 * S, t + 5 * S, step_ns=[step_ns] * 3, samples=[1] * 3,
               step_samples=[NODES * NPROC] * 3),
    ]  # fmt: skip
    if rank // NPROC == LOST:
        return events
    return [
        *events,
        event("trained", t + 5 * S, start_ns=t + 2 * S, end_ns=t + 5 * S, steps=3, epochs=1),
        event("result", t + 5 * S, used_bytes=1_000, job={}),
        event("end", t + 6 * S),
    ]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    plan = planned(folder)
    run = write_run(folder / "run", [launch_event()])
    plan.save(run)
    lost = event("job", 9, phase="ended", said="NODE_FAIL", exit_code=None, lost=[])
    write_events(run / JOB_EVENTS_FILE, [lost])
    for node in range(NODES):
        clock_ns = 7 * S * (node * 37 % NODES)
        ended = event("agent_exit", clock_ns + 7 * S, exit_code=0, failures=[])
        events = [launch_event(clock_ns), ended, event("finished", clock_ns + 7 * S)]
        write_events(run / node_file(node), events[: 1 if node == LOST else 3])
        for rank in range(node * NPROC, (node + 1) * NPROC):
            write_events(run / f"events.rank{rank}.jsonl", rank_events(rank, clock_ns))
    return run


@pytest.fixture(scope="module")
def built(run_dir: Path) -> record.Record:
    return reduce.reduce(run_dir)


def test_the_lost_node_the_slow_rank_and_its_device_are_named(built: record.Record) -> None:
    assert built.cause is not None
    assert (built.cause.kind, built.cause.message.args["nodes"]) == ("node_lost", str(LOST))
    found = {one.code: one.args for one in built.findings}
    assert found["slow_rank"]["rank"] == found["slow_device"]["rank"] == SLOW
    assert found["slow_rank"]["node"] == SLOW // NPROC


def test_all_ranks_are_in_the_record_on_one_clock(built: record.Record) -> None:
    assert [entry.rank for entry in built.ranks] == list(range(NODES * NPROC))
    ended = [entry for entry in built.ranks if entry.finished]
    assert len(ended) == (NODES - 1) * NPROC
    assert {entry.wall_ns for entry in ended} == {6 * S}
    assert built.steps.time_ns == [S] * 3
    assert built.steps.samples == [NODES * NPROC] * 3


def test_the_page_lists_some_of_them(built: record.Record) -> None:
    for lang, left_out in (("en", "… 8,164 more"), ("zh", "…… 另有 8,164 项")):
        shown = markdown_page([built], lang)
        assert left_out in shown  # of the ranks' cores
        assert len(shown) < 40_000
        assert "events.rank9.jsonl" not in shown
        assert "plan.json" in shown


def test_an_ordinary_number_of_lines_is_not_shortened() -> None:
    found = [message("steps_beside_windows", rank=rank, steps_s=1.0, windows_s=2.0)
             for rank in range(8)]  # fmt: skip
    assert _few(found) == found
    more = [*found * 3, message("oversubscribed"), *found]
    told = Counter(one.code for one in _few(more))
    assert told == {"steps_beside_windows": 16, "oversubscribed": 1, "the_same_more_often": 1}
    assert _few(more)[8] == message("the_same_more_often", more=16)
