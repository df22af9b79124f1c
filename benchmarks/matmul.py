"""The rate of square matrix products in a process of its own, taking its turn when asked."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.harness import choose_size

if TYPE_CHECKING:
    from trainmark.protocols import Device

# By kind of device and precision. A CPU without bf16 units would take minutes for larger ones.
SIZES = choose_size(
    {("cpu", "fp32"): (1024, 2048, 4096), ("cpu", "bf16"): (256, 512)},
    {("cpu", "fp32"): (128,), ("cpu", "bf16"): (128,)},
)
ACCELERATOR_SIZES = choose_size((2048, 4096, 8192), (128,))
SECONDS = choose_size(1.0, 0.01)
QUEUED = 16  # products given to an accelerator before it is synchronised


def main(device_name: str, precision: str) -> None:
    """Report a turn's best sustained and best single rate over all sizes, in FLOP/s."""
    import torch

    from trainmark import devices

    device = devices.choose_vendor(device_name).open(0, 1)
    device.set_precision(precision)  # type: ignore[arg-type]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    sizes = SIZES.get((device.torch_type, precision), ACCELERATOR_SIZES)
    products = [
        [device.place(torch.randn(size, size)).to(dtype) for _ in range(3)] for size in sizes
    ]
    print("ready", flush=True)
    while sys.stdin.readline():
        rates = [_measure_rates(device, *product) for product in products]
        sustained, single = (max(values) for values in zip(*rates, strict=True))
        print(sustained, single, flush=True)


def _measure_rates(device: Device, left: Any, right: Any, out: Any) -> tuple[float, float]:
    """Repeat one product for a second; return its sustained and its best single FLOP/s."""
    import torch

    flops = 2.0 * len(left) ** 3
    # A CPU's marks need no synchronisation, and one product of it may take a second.
    queued = 1 if device.torch_type == "cpu" else QUEUED
    times_ns: list[int] = []
    device.synchronize()
    start = time.perf_counter()
    spent = 0.0
    while spent < SECONDS:
        marks = [device.mark()]
        for _ in range(queued):
            torch.mm(left, right, out=out)
            marks.append(device.mark())
        device.synchronize()
        times_ns += map(device.elapsed_ns, marks, marks[1:])
        spent = time.perf_counter() - start
    return flops * len(times_ns) / spent, flops * 1e9 / min(times_ns)


if __name__ == "__main__":
    main(*sys.argv[1:])
