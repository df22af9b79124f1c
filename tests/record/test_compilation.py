"""How a run was compiled, as its record says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import event, launch_event, window, write_run
from trainmark.record.reduce import reduce

GOLDEN = Path(__file__).parents[1] / "golden"
S = 1_000_000_000
COUNTS = {
    "graphs": 2, "graph_breaks": 1, "cache_hits": 0, "cache_misses": 4, "cache_bypasses": 0,
    "graphs_left_out": None,
}  # fmt: skip


def record_of(
    tmp_path: Path,
    *,
    compiled: Any = True,
    counts: dict[str, Any] | None = COUNTS,
    measured: int = 0,
    ended: bool = True,
) -> Any:
    late = {"graphs_compiled": measured} if measured else {}
    events = [
        event("start", S, pid=1),
        window(2 * S, 3 * S, phase="compile", step_ns=[S], samples=[4], graphs_compiled=2),
        window(3 * S, 4 * S, phase="train", first_step=1, step_ns=[S], samples=[4], **late),
    ]
    if ended:
        events.append(event("result", 5 * S, job={}, used_bytes=1, compiler=counts))
        events.append(event("end", 6 * S))
    run_dir = write_run(
        tmp_path / "run",
        [launch_event(), event("agent_exit", 7 * S, failures=[])],
        events,
    )
    plan = json.loads((GOLDEN / "plan_toy.json").read_text())
    plan["recipe"]["compile"] = compiled
    (run_dir / "plan.json").write_text(json.dumps(plan))
    return reduce(run_dir)


@pytest.mark.parametrize(
    ("counts", "cache", "reason"),
    [
        ({}, "cold", None),
        ({"cache_hits": 4, "cache_misses": 0}, "warm", None),
        ({"cache_hits": 3, "cache_misses": 1}, "mixed", None),
        ({"cache_hits": 3, "cache_misses": 0, "cache_bypasses": 1}, "mixed", None),
        ({"cache_misses": 0, "cache_bypasses": 4}, "cold", None),
        ({"cache_misses": 0}, None, "compiler_uncounted"),
    ],
)
def test_the_cache_is_cold_warm_or_both(
    tmp_path: Path, counts: dict[str, int], cache: str | None, reason: str | None
) -> None:
    found = record_of(tmp_path, counts=COUNTS | counts).compilation
    assert (found.graphs, found.graph_breaks) == (2, 1)
    assert found.cache == cache
    assert (found.reason and found.reason.code) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"counts": None}, "compiler_uncounted"), ({"ended": False}, "compiler_uncounted")],
)
def test_what_is_not_known_is_null_with_a_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    found = record_of(tmp_path, **changes).compilation
    assert (found.graphs, found.graph_breaks, found.cache, found.cache_hits) == (None,) * 4
    assert found.reason.code == reason


def test_a_graph_compiled_after_the_warm_up_is_noted_and_doubted(tmp_path: Path) -> None:
    record = record_of(tmp_path, measured=3)
    assert record.compilation.graphs_while_measured == 3
    (note,) = [note for note in record.notes if note.code == "compiled_while_measured"]
    assert note.args == {"graphs": 3}
    assert "compiled_while_measured" in [reason.code for reason in record.trust.reasons]
