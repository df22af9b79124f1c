"""Each job names what its attention needs, and a device leaves out the kernels that do not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from support import tiny_jobs
from trainmark.devices.accelerator import CudaDevice
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.train.attention import choose_kernels_for_varying_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIXED_SHAPES, VARYING_SHAPES = (
    {"dropout": 0.0, "shapes_vary": False},
    {"dropout": 0.0, "shapes_vary": True},
)


class Recorder(CpuDevice):
    """A CPU that notes what attention it is to fit."""

    def __init__(self) -> None:
        super().__init__(threads=torch.get_num_threads())
        self.needs: list[dict[str, Any]] = []

    def fit_attention(self, **needs: Any) -> None:
        """Keep what is needed: the dropout of attention weights, and whether shapes vary."""
        self.needs.append(needs)


@pytest.fixture
def cuda_device() -> Iterator[CudaDevice]:
    """Return a device that was not opened; torch's flags are as before afterwards."""
    device = object.__new__(CudaDevice)  # its constructor would need a card
    device._torch = torch
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield device
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(
    ("dropout", "shapes_vary", "cudnn"),
    [
        # cuDNN rounds the dropout to sixteenths and needs long to plan for each new shape.
        (0.0, False, True), (0.0625, False, True), (0.125, False, True), (0.5, False, True),
        (0.1, False, False), (1e-9, False, False), (0.0, True, False), (0.125, True, False),
    ],
)  # fmt: skip
def test_cudnn_attention_is_used_only_with_exact_dropout(
    cuda_device: CudaDevice, dropout: float, shapes_vary: bool, cudnn: bool
) -> None:
    cuda_device.fit_attention(dropout=dropout, shapes_vary=shapes_vary)
    assert cuda_device.attention_flags() == {
        "flash": True,
        "efficient": True,
        "cudnn": cudnn,
        "math": True,
    }


@pytest.mark.parametrize(
    ("name", "fields", "needs"),
    [
        ("gpt_megatron", {"dropout": 0.1}, {"dropout": 0.1, "shapes_vary": False}),
        ("glm_superglue", {"dropout": 0.1}, {"dropout": 0.1, "shapes_vary": True}),
        ("llama31_8b", {}, FIXED_SHAPES),
        ("llama2_7b_lora", {"mmlu_mode": "off"}, FIXED_SHAPES),  # MMLU's prompts vary
        ("distilbert_sst2", {}, FIXED_SHAPES),  # its generated model drops no attention weights
    ],
)
def test_job_names_what_its_attention_needs(
    tmp_path: Path, name: str, fields: dict[str, Any], needs: dict[str, Any]
) -> None:
    # ``Recorder`` keeps in ``needs`` what each call asks of the device's attention: the dropout of
    # its weights, and whether shapes vary. ``FIXED_SHAPES``: no dropout, and shapes do not vary.
    device = Recorder()
    tiny_jobs.build(name, device, tmp_path, **fields)
    assert device.needs == [needs]


def test_mmlu_prompts_leave_the_attention_setting_unchanged() -> None:
    # ``Recorder`` keeps in ``needs`` what each call asks of the device's attention. The prompts of
    # MMLU, an evaluation, have no dropout but varying shapes: ``VARYING_SHAPES``. 0.25: of
    # training.
    device = Recorder()
    with choose_kernels_for_varying_shapes(device, dropout=0.25):
        # First the needs of the prompts, and at the end those of the training again.
        assert device.needs == [VARYING_SHAPES]
    assert device.needs == [VARYING_SHAPES, {"dropout": 0.25, "shapes_vary": False}]
