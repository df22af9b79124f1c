"""Torch's attention kernels at the cases' shapes: which one torch takes, and which is fastest.

A forward and a backward pass in bf16 each, by the device's marks. The first call of a shape is
timed by the host's clock: what it takes above a later one is what a measured window loses where
shapes vary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.card.section import Findings
from benchmarks.harness import Bar, choose_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.card.section import Card
    from trainmark.protocols import Device

TITLE = "Attention kernels"
KERNELS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
MOST_SLOWER = 1.1  # than the fastest may be what torch takes
BUDGET_NS = 200_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """Attention as a case computes it.

    Args:
        key_heads: of keys and values.
        masked: by a tensor; else causal.
    """

    name: str
    batch: int
    heads: int
    key_heads: int
    length: int
    width: int
    dropout: float
    masked: bool = False


SHAPES = choose_size(
    (
        Shape("gpt_megatron", 16, 12, 12, 1024, 64, 0.1),
        Shape("gpt_megatron_without_dropout", 16, 12, 12, 1024, 64, 0.0),
        Shape("llama2_7b_lora", 4, 32, 32, 512, 128, 0.0),
        Shape("llama31_8b", 2, 32, 8, 8192, 128, 0.0),
        Shape("glm_superglue", 80, 16, 16, 512, 64, 0.1, masked=True),
        Shape("distilbert_sst2", 32, 12, 12, 512, 64, 0.1, masked=True),
    ),
    (
        Shape("dropout", 1, 2, 2, 16, 16, 0.1),
        Shape("shared_keys", 1, 2, 1, 16, 16, 0.0),
        Shape("mask", 1, 2, 2, 16, 16, 0.0, masked=True),
    ),
)


def make_passes(device: Device, shape: Shape) -> Callable[[], None]:
    """Return a forward and a backward pass; its tensors are ready."""
    import torch

    def draw_tensor(heads: int) -> Any:
        numbers = torch.randn(shape.batch, shape.length, heads, shape.width)
        return device.place(numbers).to(torch.bfloat16).transpose(1, 2).requires_grad_()

    query, key, value = (
        draw_tensor(shape.heads),
        draw_tensor(shape.key_heads),
        draw_tensor(shape.key_heads),
    )
    gradient = torch.ones_like(query)
    mask = None
    if shape.masked:
        seen = torch.ones(shape.length, shape.length, dtype=torch.bool).tril_()
        mask = device.place(seen.expand(shape.batch, 1, -1, -1).contiguous())

    def run() -> None:
        attention = torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=shape.dropout,
            is_causal=not shape.masked,
            enable_gqa=shape.key_heads != shape.heads,
        )
        attention.backward(gradient)

    return run


def time_kernel_ms(device: Device, shape: Shape, kernel: str) -> tuple[float, float] | None:
    """Return the time of the first call and of later ones; None: the kernel does not do it."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from trainmark.devices.rates import measure_repeatedly_ns

    run = make_passes(device, shape)
    device.synchronize()
    with sdpa_kernel(getattr(SDPBackend, KERNELS[kernel])):
        start_ns = time.perf_counter_ns()
        try:
            run()
        except (RuntimeError, torch.OutOfMemoryError):
            return None
        device.synchronize()
        first_ms = (time.perf_counter_ns() - start_ns) / 1e6
        later_ns = measure_repeatedly_ns(device, run, budget_ns=BUDGET_NS, least=3)
    return first_ms, median(later_ns) / 1e6


def find_chosen_kernel(device: Device, shape: Shape) -> str:
    """Return the kernel that torch takes by itself, after what the device leaves out."""
    from trainmark.rank.watch import StepWatch
    from trainmark.train.attention import choose_attention_kernels

    choose_attention_kernels(device, dropout=shape.dropout)
    with StepWatch(dict) as watch:
        make_passes(device, shape)()
    return ", ".join(sorted(watch.attention))


def run(card: Card) -> Findings:
    from trainmark import devices

    device = devices.choose_vendor(card.device).open(0, 1)
    device.set_precision("bf16")
    bars: list[Bar] = []
    figures: dict[str, float | None] = {}
    rows = [
        "| shape | kernel | a pass forward and back, ms | first call, ms |",
        "|---|---|---|---|",
    ]
    for shape in SHAPES:
        chosen_kernel = find_chosen_kernel(device, shape)
        times_by_kernel = {kernel: time_kernel_ms(device, shape, kernel) for kernel in KERNELS}
        later = {kernel: times[1] for kernel, times in times_by_kernel.items() if times is not None}
        for kernel, times in times_by_kernel.items():
            figures[f"{shape.name}_{kernel}_ms"] = None if times is None else times[1]
            cells = ("–", "–") if times is None else (f"{times[1]:.3f}", f"{times[0]:.1f}")
            mark = " (taken)" if kernel == chosen_kernel else ""
            rows.append(f"| {shape.name} | {kernel}{mark} | {cells[0]} | {cells[1]} |")
        slower = later[chosen_kernel] / min(later.values()) if chosen_kernel in later else None
        measured = "–" if slower is None else f"{slower:.2f}"
        met = None if slower is None else slower <= MOST_SLOWER
        bars.append(
            Bar(
                f"{shape.name}: time of {chosen_kernel} / of the fastest kernel",
                measured,
                f"at most {MOST_SLOWER:g}",
                met,
            )
        )
    return Findings(bars, figures, "\n".join(rows))
