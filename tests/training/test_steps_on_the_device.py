"""No case waits for the device within a step, in a 16-bit type either, whichever kernels run.

Run on a CPU with the operations that an accelerator gets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainmark import cases, devices
from trainmark.conformance.synchronization import SynchronizedError, no_synchronization
from trainmark.planning.plan import resolve
from trainmark.protocols import JobContext
from trainmark.training.kernels import choice
from trainmark.training.read_ahead import batches_of

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import Precision

CASES = ("distilbert_sst2", "dlrm_criteo", "glm_superglue", "gpt_megatron", "llama2_7b_lora")


@pytest.fixture(autouse=True)
def _kernels_of_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave ``own`` what ``choose`` leaves it on an accelerator."""
    library = choice.LIBRARY
    own = replace(
        choice.OWN, attention=library.attention, dropout=library.dropout, rows=library.rows
    )
    monkeypatch.setattr(choice, "OWN", own)


@pytest.mark.parametrize("case", CASES)
def test_no_step_waits_for_the_device(case: str, tmp_path: Path) -> None:
    plan = resolve(case, device_name="cpu", generated_root=tmp_path)
    module = cases.part(case, "job")
    recipe: Any = plan.load_recipe()
    runs: tuple[tuple[Precision, str], ...] = (("fp16", "own"), ("bf16", "library"))
    for precision, kernels in runs:
        device = devices.choose("cpu").open(0, 1)
        context = JobContext(
            recipe=replace(recipe, precision=precision, kernels=kernels, micro_batch_size=2),
            data_dir=tmp_path / plan.data.folder, rank=0, world_size=1, device=device,
        )  # fmt: skip
        job = module.build(context, module.load_data(context))
        stream = batches_of(job, device, 0, depth=0)
        job.step(stream)  # the first one builds the optimizer's state
        ahead = iter([next(stream)])
        with no_synchronization(device):
            assert job.step(ahead) is not None


def test_a_scaled_step_of_an_optimizer_that_is_not_fused_would_wait() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0, foreach=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    with no_synchronization(devices.choose("cpu").open(0, 1)), pytest.raises(SynchronizedError):
        scaler.step(optimizer)
