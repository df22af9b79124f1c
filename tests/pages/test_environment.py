"""The page's line on the cores of the ranks, in both languages."""

from __future__ import annotations

from typing import Any

import pytest

from fakes import GOLDEN
from trainmark.pages.environment import environment
from trainmark.record import record
from trainmark.record.record import Record


def line(placed: list[Any] | None, lang: str) -> str | None:
    """Return what a page says of the ranks' cores."""
    found = record.read(GOLDEN / "record_distilbert.json")
    told: Any = found.environment if placed is None else found.environment | {"placement": placed}
    named = {"en": "Cores of the ranks", "zh": "各 rank 的核"}[lang]
    sections = environment([Record(**{**dict(found), "environment": told})], lang)
    facts = {name: said for part in sections for block in part.blocks for name, said in block.items}  # type: ignore[union-attr]
    return facts.get(named)


def on(node: int, cores: str, why: str | None = None) -> dict[str, Any]:
    return {"numa_nodes": [node], "cores": cores, "threads": 8, "why_not": why}


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        ("en", "rank 0: pinned to cores 0-7 of NUMA node 0, 8 thread(s); "
               "rank 1: not pinned (the NUMA node of a device is unknown), 8 thread(s)"),
        ("zh", "rank 0：绑定到 NUMA 节点 0 的核 0-7，8 个线程；"
               "rank 1：未绑定（有设备所在的 NUMA 节点未知），8 个线程"),
    ],
)  # fmt: skip
def test_each_rank_s_cores_are_on_the_page(lang: str, said: str) -> None:
    assert line([on(0, "0-7"), on(1, "8-15", "unknown_node")], lang) == said


def test_what_all_ranks_have_is_said_once() -> None:
    found = line([on(0, "0-7", "off")] * 2, "en")
    assert found == "not pinned (TRAINMARK_PIN=0), 8 thread(s)"


def test_a_reason_of_another_version_is_shown_as_it_is() -> None:
    assert line([on(0, "0-7", "later")] * 2, "zh") == "未绑定（later），8 个线程"


@pytest.mark.parametrize("placed", [None, [], [None, None]])
def test_a_record_that_does_not_tell_has_no_line(placed: list[Any] | None) -> None:
    assert line(placed, "en") is None
