"""A session of one machine: what it writes and shows of each round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.acceptance_evidence import DEVICES, NODE, make_acceptance
from trainmark.acceptance import node_session
from trainmark.acceptance.evidence import Evidence, EvidenceWriter, Joined
from trainmark.acceptance.node_session import NodeSession, Round
from trainmark.acceptance.tasks import RankResult
from trainmark.acceptance.teams import TeamOutcome
from trainmark.launch.local import Setup
from trainmark.launch.processes import CpuUse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.acceptance.teams import Team


@pytest.mark.parametrize(
    ("others_s", "num_warnings"),
    [(0.5, 0), (6.0, 1)],  # of the 10 s that the cores had together: 5% and 60%
)
def test_busy_machine_is_recorded_in_each_round_and_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others_s: float, num_warnings: int
) -> None:
    """Two rounds of one device, in which the ranks use 2 s, and other programs ``others_s``.

    The counters of the processor are replaced, and so are the ranks. A line warns if others use
    more than 10%.
    """
    # All counters only rise: seconds of the cores that any program used, that they had together,
    # and that the ranks used, which are children of this process.
    readings = iter(
        CpuUse(busy_s=n * (2.0 + others_s), total_s=n * 10.0, children_s=n * 2.0)
        for n in (0, 1, 1, 2)  # before and after each round
    )
    monkeypatch.setattr(node_session.CpuUse, "read", lambda: next(readings))
    result = RankResult(
        rank=0, device=0, product="gpu", seconds={"step": [0.1]}, faults={}, trainings=[]
    )

    def measure_at_once(teams: Sequence[Team], *_: object, **__: object) -> list[TeamOutcome]:
        return [TeamOutcome(team=team, results=[result]) for team in teams]

    monkeypatch.setattr(node_session, "measure_teams", measure_at_once)
    writer = EvidenceWriter(tmp_path, NODE)
    writer.write(Joined, node=NODE, devices=list(DEVICES), products=["gpu"] * 4, software={})
    shown_lines: list[str] = []
    session = NodeSession(
        make_acceptance(tmp_path),
        Setup(nproc=4, variables={}, environment={}),
        writer,
        poll_stop_signal=lambda: None,  # nothing asks to stop
        show=shown_lines.append,
    )

    session.run([Round(phase="devices", number=number, teams=[(0,)]) for number in range(2)])

    assert Evidence.read(tmp_path).others_cpu_shares == {
        (NODE, "devices", number): pytest.approx(others_s / 10) for number in range(2)
    }
    warnings = [line for line in shown_lines if line.startswith("other programs used")]
    assert len(warnings) == num_warnings
    assert all("60% of the cores" in line for line in warnings)
