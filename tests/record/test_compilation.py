"""How a run was compiled, as its record says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes import event, launch_event, window, write_run
from trainmark.record.reduce import reduce

GOLDEN = Path(__file__).parents[1] / "golden"
S = 1_000_000_000
COUNTS = {"graphs": 2, "graph_breaks": 1, "cache_hits": 0, "cache_misses": 4}


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
        [launch_event(), event("ranks_ended", 7 * S, failures=[])],
        events,
    )
    plan = json.loads((GOLDEN / "plan_toy.json").read_text())
    plan["recipe"]["compile"] = compiled
    (run_dir / "plan.json").write_text(json.dumps(plan))
    return reduce(run_dir)


def test_the_compilers_counts_are_in_the_record_and_null_where_unknown(tmp_path: Path) -> None:
    assert record_of(tmp_path).compilation.model_dump() == COUNTS
    for lost in ({"counts": None}, {"ended": False}):
        found = record_of(tmp_path, **lost).compilation
        assert found.model_dump() == dict.fromkeys(COUNTS)


def test_a_graph_compiled_after_the_warm_up_is_noted_and_doubted(tmp_path: Path) -> None:
    record = record_of(tmp_path, measured=3)
    (note,) = [note for note in record.notes if note.code == "compiled_while_measured"]
    assert note.args == {"graphs": 3}
    assert "compiled_while_measured" in [reason.code for reason in record.trust.reasons]
