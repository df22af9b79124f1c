"""The steps of every case on the hollow card: no wait, and work in every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support import hollow_card, tiny_jobs
from trainmark.errors import EnvironmentFault
from trainmark.train.read_ahead import iterate_batches

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
CHECKPOINTING_CASES = ("glm_superglue", "gpt_megatron", "llama2_7b_lora")
RECIPE_FIELDS: dict[str, dict[str, Any]] = {"llama2_7b_lora": {"init": "random"}}


def count_step(device, generated, name, **fields) -> dict[str, int]:
    """Build a case's tiny job and return the counters of its third step, in which waits raise.

    ``RECIPE_FIELDS``: by case, changes of the recipe, such as random weights where none can be
    loaded; ``fields``: further changes. The simulated card counts waits, copies to the host,
    kernels and matmuls.
    """
    try:
        job = tiny_jobs.build(name, device, generated, **(RECIPE_FIELDS.get(name, {}) | fields))
    except EnvironmentFault as refusal:
        pytest.skip(str(refusal))
    batches = iterate_batches(job, device, epoch=0, depth=0)  # depth 0: no read-ahead
    # The first two steps allocate memory and choose algorithms, for which the host may wait.
    job.step(batches)
    job.step(batches)
    device.synchronize()
    hollow_card.reset_counters()
    with device.forbid_synchronization():
        job.step(batches)
    counters = hollow_card.read_counters()
    batches.close()
    return counters


@pytest.mark.parametrize("kernels", ["library", "own"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", tiny_jobs.CASES)
def test_step_does_not_wait(name, precision, kernels, device, generated):
    """In the third step of a tiny job the host never waits for the simulated card.

    ``count_step`` returns what that card counted in the step. ``kernels``: whether the step uses
    those of libraries or the program's own. A copy to the host would be a wait too; launches and
    matmuls show that the step did work.
    """
    # In bf16 one kernel of torch multiplies the rows of all experts. In other precisions they are
    # multiplied one by one, and the host must know how many rows each has.
    if name == "gpt_oss_20b" and precision != "bf16":
        pytest.skip("the host waits for the numbers of rows of experts; see train/experts.py")
    counters = count_step(device, generated, name, precision=precision, kernels=kernels)
    assert counters["waits"] == 0
    assert counters["copies_out"] == 0  # to the host
    assert counters["launches"] > 0  # of kernels
    assert counters["matmuls"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"kernels": "library"},
        {"kernels": "own"},
        {"checkpoint_activations": "selective"},
        {"compile": True},
    ],
    ids=str,
)
def test_fp8_step_does_not_wait(fields, device, generated):
    """``fields`` replace fields of the recipe, to train in several ways in fp8.

    ``count_step`` returns what the simulated card counted in the third step of a tiny job: waits of
    the host, copies to the host, and matmuls, which show that the step did work.
    """
    counters = count_step(device, generated, "llama31_8b", precision="fp8", **fields)
    assert counters["waits"] == 0
    assert counters["copies_out"] == 0
    assert counters["matmuls"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", CHECKPOINTING_CASES)
def test_step_that_recomputes_activations_does_not_wait(name, precision, device, generated):
    """``CHECKPOINTING_CASES``: those that recompute whole blocks if their recipe's field is True.

    ``count_step`` returns what the simulated card counted in the third step of a tiny job.
    """
    counters = count_step(device, generated, name, precision=precision, checkpoint_activations=True)
    assert counters["waits"] == 0


def test_waiting_calls_are_counted(device):
    """``item`` copies the one sum to the host, which must wait for it.

    So the counters of the simulated card, which other tests expect to be 0, do count.
    """
    value = device.place(torch.ones(3)).sum()
    hollow_card.reset_counters()
    value.item()
    assert hollow_card.read_counters()["waits"] > 0
    assert hollow_card.read_counters()["copies_out"] == 1
