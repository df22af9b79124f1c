"""What is counted of torch's compiler, on real compilations and on counters made up here."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest
import torch

from trainmark.recipe import Recipe
from trainmark.train.parallel import compiler_facts as facts
from trainmark.train.parallel import counting

if TYPE_CHECKING:
    from fakes import SyncDevice as Device

pytestmark = pytest.mark.usefixtures("one_thread")
COMPILED, REPLAYED = Recipe(compile=True), Recipe(compile="reduce-overhead")


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """The compiler's counters, empty, in place of what earlier tests compiled."""
    import torch._dynamo.utils

    found: dict[str, Counter[str]] = defaultdict(Counter)
    monkeypatch.setattr(torch._dynamo.utils, "counters", found)
    return found


def test_graphs_breaks_and_a_recompilation_are_counted(sync_device: Device) -> None:
    torch._dynamo.reset()
    before = facts(sync_device, COMPILED) or {"graphs": 0, "graph_breaks": 0}

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    compiled = torch.compile(broken, backend="eager", dynamic=False)
    for rows in (4, 4, 5):  # the second runs what the first compiled; the third is a new shape
        compiled(torch.ones(rows))
    after = facts(sync_device, COMPILED)
    assert after is not None
    assert after["graphs"] - before["graphs"] == 4  # two around the break, for each shape
    assert after["graph_breaks"] - before["graph_breaks"] == 2
    assert after["graphs_left_out"] is None


def test_without_compiling_nothing_is_counted(
    counters: dict[str, Counter[str]], sync_device: Device
) -> None:
    counters["stats"]["unique_graphs"] = 2
    assert counting(COMPILED)() == 2
    assert counting(Recipe())() is None
    assert facts(sync_device, Recipe()) is None
