"""`compile=true` in every case: Inductor and Triton produce code, in one graph per shape."""

from __future__ import annotations

from typing import Any

import pytest
from torch import _dynamo as dynamo
from torch._dynamo.utils import counters

from support import tiny_jobs
from trainmark.errors import TrainmarkError
from trainmark.train.read_ahead import iterate_batches

RECIPE_FIELDS: dict[str, dict[str, Any]] = {"llama2_7b_lora": {"init": "random"}}
# Reasons of graph breaks by case; none may have another.
GRAPH_BREAKS: dict[str, set[str]] = {}


@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp16"])
@pytest.mark.parametrize("name", tiny_jobs.CASES)
def test_compiled_step_does_not_wait_and_has_no_unknown_graph_break(
    name, precision, device, generated
):
    """The fourth step raises if the host waits for the card in it.

    ``RECIPE_FIELDS``: by case, changes of the recipe, such as random weights where none can be
    loaded. ``GRAPH_BREAKS``: by case, the reasons for which its graph may break; others have none.
    """
    # In bf16 one kernel of torch multiplies the rows of all experts. In other precisions they are
    # multiplied one by one, and the host must know how many rows each has.
    if name == "gpt_oss_20b" and precision != "bf16":
        pytest.skip("the host waits for the numbers of rows of experts; see train/experts.py")
    dynamo.reset()
    counters.clear()
    fields = RECIPE_FIELDS.get(name, {})
    try:
        job = tiny_jobs.build(name, device, generated, precision=precision, compile=True, **fields)
    except TrainmarkError as refusal:
        pytest.skip(f"refused: {refusal}")
    batches = iterate_batches(job, device, epoch=0, depth=0)  # depth 0: no read-ahead
    for _ in range(3):  # the second and third find other shapes, if these vary
        job.step(batches)
    device.synchronize()
    with device.forbid_synchronization():
        job.step(batches)
    batches.close()
    assert set(counters["graph_break"]) <= GRAPH_BREAKS.get(name, set())
    # Counters of torch: the graphs, and the calls that Inductor leaves to libraries.
    # Something was compiled, and matmuls call the card's library.
    assert counters["stats"]["unique_graphs"] > 0
    assert counters["inductor"]["extern_calls"] > 0
