"""A step asks nothing of the device: no value is read back, so that the host can run ahead.

Run on a CPU with the operations that an accelerator gets: what torch would have to wait for there
are the same calls here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainmark import cases, devices
from trainmark.planning.plan import resolve
from trainmark.protocols import JobContext
from trainmark.training.kernels import choice

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import Precision

# Their results, or the sizes of their results, are known on the host only after the device.
READ_BACK = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim",
    "bincount", "repeat_interleave",
}  # fmt: skip
CASES = ("distilbert_sst2", "dlrm_criteo", "glm_superglue", "gpt_megatron", "llama2_7b_lora")


class ReadBack(TorchDispatchMode):
    """Collect the operations that read back from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        sized = (kwargs or {}).get("output_size") is not None
        if name in READ_BACK and not sized:
            self.found.append(name)
        if name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1]):
            self.found.append("index by a mask")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _kernels_of_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave ``own`` what ``choose`` leaves it on an accelerator."""
    library = choice.LIBRARY
    own = replace(
        choice.OWN, attention=library.attention, dropout=library.dropout, rows=library.rows
    )
    monkeypatch.setattr(choice, "OWN", own)


@pytest.mark.parametrize("case", CASES)
def test_no_value_is_read_back_within_a_step(case: str, tmp_path: Path) -> None:
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
        stream = job.batches(0)
        job.step(stream)  # the first one builds the optimizer's state
        ahead = iter([next(stream)])
        with ReadBack() as watched:
            assert job.step(ahead) is not None
        assert watched.found == [], (case, precision)


def test_what_is_read_back_is_found() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0, foreach=True)
    scaler = torch.amp.GradScaler("cpu")
    with ReadBack() as watched:
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)  # asks the host whether a gradient overflowed
        weight.detach()[weight > 0].sum()
    assert watched.found == ["_local_scalar_dense", "index by a mask"]
