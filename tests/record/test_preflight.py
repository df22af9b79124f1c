"""What was found on nodes before a run."""

from __future__ import annotations

from typing import Any

from trainmark.record.nodes import NodeTimeline
from trainmark.record.preflight import notes


def _node(number: int, *found: tuple[str, str]) -> NodeTimeline:
    told: list[Any] = [{"code": a, "severity": "spoils", "what": b} for a, b in found]
    return NodeTimeline(number, {"examined": {"found": told}}, range(number, number + 1))


def test_each_check_is_told_once_with_its_nodes() -> None:
    nodes = [
        _node(0, ("governor", "powersave")), _node(1), _node(2, ("swap", "1 GiB")),
        *(_node(number, ("governor", "powersave")) for number in range(3, 200)),
        NodeTimeline(200, {}, range(200, 201)),
    ]  # fmt: skip
    assert [note.args for note in notes(nodes)] == [
        {"check": "governor", "nodes": "0,3-199", "what": "powersave"},
        {"check": "swap", "nodes": "2", "what": "1 GiB"},
    ]
    assert [note.code for note in notes(nodes)] == ["preflight_spoils"] * 2
    assert list(notes([])) == []
