"""More threads than cores are noted, and make the figures noisy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fakes import GOLDEN, event, launch_event, write_run
from trainmark.record.reduce import reduce

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000


@pytest.mark.parametrize(
    ("ranks", "shares", "noted"),
    [
        ([(4, 4)], True, None),
        ([(5, 4)], True, (0, 5, 4)),
        ([(4, 4)] * 2, True, (0, 4, 2)),
        ([(4, 4)] * 2, False, None),
        ([(3, 4), (3, 2)], False, (1, 3, 2)),
        ([(1000, None)], True, None),  # a record of before this was measured
        ([None], True, None),
    ],
)
def test_more_threads_than_cores_are_noted(
    tmp_path: Path, ranks: list[Any], *, shares: bool, noted: tuple[int, int, int] | None
) -> None:
    events = []
    for own in ranks:
        placed = None
        if own is not None:
            placed = {"cores": "0-3", "threads": own[0]}
            placed |= {} if own[1] is None else {"usable_cores": own[1]}
        facts = event(
            "facts", S, device={"name": "Fake"}, steps_per_epoch=1, placement=placed
        )  # fmt: skip
        events.append([event("start", 0, pid=1), facts, event("end", 2 * S)])
    launcher = [
        launch_event(environment={"cpu": "Fake CPU", "cpu_cores": 4}),
        event("agent_exit", 3 * S, failures=[]),
    ]
    run_dir = write_run(tmp_path / "run", launcher, *events)
    plan = json.loads((GOLDEN / "plan_toy.json").read_text())
    plan["nproc"] = len(ranks)
    plan["device"]["torch_type"] = "cpu" if shares else "cuda"
    (run_dir / "plan.json").write_text(json.dumps(plan))
    record = reduce(run_dir)
    found = [note.args for note in record.notes if note.code == "more_threads_than_cores"]
    assert [(one["rank"], one["threads"], one["cores"]) for one in found] == (
        [] if noted is None else [noted]
    )
    reasons = [reason.code for reason in record.trust.reasons]
    assert ("more_threads_than_cores" in reasons) == (noted is not None)
