"""What is counted of compiled steps."""

from __future__ import annotations

import torch

from trainmark.train.parallel import count_compiled_graphs


def test_graphs_and_recompilations_are_counted() -> None:
    # What earlier tests compiled is forgotten.
    torch._dynamo.reset()
    before = count_compiled_graphs() or 0  # None: nothing was compiled yet

    def break_graph(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    compiled = torch.compile(break_graph, backend="eager", dynamic=False)
    for rows in (4, 4, 5):  # the second runs what the first compiled; the third is a new shape
        compiled(torch.ones(rows))
    # Two around the break, for each shape.
    assert (count_compiled_graphs() or 0) - before == 4
