"""What is counted of torch's compiler, on real compilations and on counters made up here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from trainmark.recipe import Recipe
from trainmark.train.parallel import compiler_facts as facts

if TYPE_CHECKING:
    from fakes import SyncDevice as Device

pytestmark = pytest.mark.usefixtures("one_thread")
COMPILED, REPLAYED = Recipe(compile=True), Recipe(compile="reduce-overhead")


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
