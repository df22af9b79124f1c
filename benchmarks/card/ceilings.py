"""The card's upper bounds: matmul, copies, and what a launch costs."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, get_args

from benchmarks.card.section import Card, Findings
from benchmarks.harness import Bar, sized
from trainmark.devices.peaks import dense_peak
from trainmark.errors import EnvironmentFault
from trainmark.protocols import MatmulRate, ReportsClocks
from trainmark.spec import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.protocols import Device, Vendor

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TITLE = "Ceilings: matmul, copies, launches"
# Rows, inner, columns. Squares up to what fills a large card, then layers as models have them:
# GPT-2's and Llama-2 7B's first MLP matmul, and one that only few of a card's units can share.
SHAPES: tuple[tuple[int, int, int], ...] = sized(
    (
        *((size, size, size) for size in (512, 1024, 2048, 4096, 8192)),
        (16384, 768, 3072), (2048, 4096, 11008), (128, 8192, 128),
    ),
    ((64, 64, 64), (96, 64, 32)),
)  # fmt: skip
COPIED_BYTES: tuple[int, ...] = sized((1 << 20, 16 << 20, 1 << 30), (1 << 16,))
LAUNCHES, ROUNDS = sized((500, 21), (20, 3))
LOAD_MATMULS = sized(200, 2)


def refusal(vendor: Vendor, device: Device, precision: Precision) -> str | None:
    """Switch the device to ``precision``; return why it cannot be, if it cannot."""
    refused = vendor.refuse(Recipe(precision=precision), 1)
    if refused is not None:
        return refused.why
    try:
        device.set_precision(precision)
    except EnvironmentFault as fault:
        return fault.what
    return None


def _sweep(device: Device, precision: Precision) -> Iterator[tuple[str, MatmulRate | None]]:
    """Yield each shape with its rate; None for one that would take too long."""
    from trainmark.devices.rates import shape_rate, takes_too_long

    best = 0.0
    for shape in SHAPES:
        name = " x ".join(map(str, shape))
        if best and takes_too_long(shape, best):
            yield name, None
            continue
        rate = shape_rate(device, precision, shape)
        best = max(best, rate.flops_per_second)
        yield name, rate


def _clocks_under_load(device: Device) -> dict[str, float | None]:
    """Return the clocks while matmuls are queued; empty where the device cannot tell."""
    import torch

    if not isinstance(device, ReportsClocks):
        return {}
    size = SHAPES[0][0] * 8
    left = device.place(torch.ones(size, size))
    out = torch.empty_like(left)
    for _ in range(LOAD_MATMULS):
        torch.mm(left, left, out=out)
    found = device.clocks()
    device.synchronize()
    return {f"loaded_{name}": value for name, value in found.items()}


def run(card: Card) -> Findings:
    from trainmark import devices
    from trainmark.devices.rates import best_copy_rate, launch_times, upload_rate

    vendor = devices.choose(card.device)
    device = vendor.open(0, 1)
    product = device.describe()["name"]
    findings = Findings(bars=[])
    lines = ["| matmul | " + " | ".join(PRECISIONS) + " |", "|---" * (len(PRECISIONS) + 1) + "|"]
    cells: dict[str, list[str]] = {}
    refused = []
    for precision in PRECISIONS:
        why = refusal(vendor, device, precision)
        if why is not None:
            refused.append(f"- {precision}: {why}.")
        rates = {} if why is not None else dict(_sweep(device, precision))
        for shape in SHAPES:
            rate = rates.get(" x ".join(map(str, shape)))
            text = "" if rate is None else f"{rate.flops_per_second / 1e12:.4g}"
            if rate is not None and rate.swing is not None:
                text += f" ({100 * rate.swing:.0f}%)"
            cells.setdefault(" x ".join(map(str, shape)), []).append(text)
        known = [rate.flops_per_second for rate in rates.values() if rate is not None]
        best = max(known, default=None)
        findings.figures[f"matmul_{precision}_flops_per_second"] = best
        peak = dense_peak(product, precision)
        if best is not None and peak is not None:
            share = best / peak.flops_per_second
            findings.bars.append(
                Bar(f"fastest {precision} matmul / published peak", f"{share:.3f}",
                    "at most 1, or the times are wrong", share <= 1)
            )  # fmt: skip
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]
    device.set_precision("fp32")
    for size in COPIED_BYTES:
        findings.figures[f"copy_{size}_bytes_per_second"] = best_copy_rate(
            device, copied_bytes=size
        )
        for kind, pinned in (("pageable", False), ("pinned", True)):
            findings.figures[f"upload_{kind}_{size}_bytes_per_second"] = upload_rate(
                device, copied_bytes=size, pinned=pinned
            )
    times = launch_times(device, launches=LAUNCHES, rounds=ROUNDS)
    for name, values in times._asdict().items():
        findings.figures[f"launch_{name}"] = statistics.median(values)
        quarters = statistics.quantiles(values, n=4)
        findings.figures[f"launch_{name}_p25"] = quarters[0]
        findings.figures[f"launch_{name}_p75"] = quarters[2]
    findings.figures |= _clocks_under_load(device)
    findings.text = "\n".join([
        "TFLOP/s of the fastest of up to 20 repetitions in a quarter of a second; in brackets by "
        "how much one half of them was slower than the other. Empty: refused or too slow.",
        "", *lines, "", *refused, "",
        "Copies count bytes read plus bytes written; uploads the bytes copied. "
        f"A launch is of a kernel of one element, {LAUNCHES} a round, {ROUNDS} rounds.",
    ])  # fmt: skip
    return findings
