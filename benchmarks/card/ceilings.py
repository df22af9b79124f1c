"""The card's upper bounds: matmul, copies, and what a launch costs."""

from __future__ import annotations

import statistics
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, get_args

from benchmarks.card.facts import read_clocks
from benchmarks.card.section import Card, Findings
from benchmarks.harness import Bar, choose_size
from trainmark.devices import peaks, rates
from trainmark.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainmark.machine.ceilings_work import Point
    from trainmark.protocols import Device, Vendor

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TITLE = "Ceilings: matmul, copies, launches"
# Rows, inner, columns. Squares up to what fills a large card, then layers as models have them:
# GPT-2's and Llama-2 7B's first MLP matmul, and one that only few of a card's units can share.
SHAPES: tuple[tuple[int, int, int], ...] = choose_size(
    (
        *((size, size, size) for size in (512, 1024, 2048, 4096, 8192)),
        (16384, 768, 3072),
        (2048, 4096, 11008),
        (128, 8192, 128),
    ),
    ((64, 64, 64), (96, 64, 32)),
)
BUDGET_NS = choose_size(5e9, 1e8)  # of a precision
BRIEF_SHARE = 0.5  # of what time there is, for the matmuls of all precisions
MEMORY_BYTES = 8 << 30
COPIED_BYTES: tuple[int, ...] = choose_size((1 << 20, 16 << 20, 1 << 30), (1 << 16,))
LAUNCHES, ROUNDS = choose_size((500, 21), (20, 3))
COPIES = 5  # of each size
LOAD_SIZE, LOAD_MATMULS = choose_size((4096, 200), (512, 2))


def run(card: Card) -> Findings:
    from trainmark import devices
    from trainmark.machine.ceilings import build_matmul_candidates, try_precision
    from trainmark.machine.ceilings_work import sweep

    vendor = devices.choose_vendor(card.device)
    device = vendor.open(0, 1)
    product = device.describe()["name"]
    findings = Findings(bars=[])
    measured: dict[Precision, Mapping[tuple[int, ...], Point]] = {}
    refused, wrong = [], []
    budget_ns = min(BUDGET_NS, 1e9 * BRIEF_SHARE * card.seconds_left() / len(PRECISIONS))
    for precision in PRECISIONS:
        why = try_precision(vendor, device, precision)
        if why is not None:
            refused.append(f"- {precision}: {why}.")
            continue
        candidates = build_matmul_candidates(device, precision, SHAPES)
        points = sweep(device, candidates, budget_ns=budget_ns, memory_bytes=MEMORY_BYTES)
        measured[precision] = {point.size: point for point in points}
        wrong += [f"{precision} {p.size}: {p.reason}" for p in points if p.status == "wrong"]
    for precision in PRECISIONS:
        points = tuple(measured.get(precision, {}).values())
        best = max((point.rate["max"] for point in points if point.rate), default=None)
        findings.figures[f"matmul_{precision}_flops_per_second"] = best
        peak = peaks.find_peak(product, precision)
        if best is not None and peak is not None:
            share = best / peak.per_second
            findings.bars.append(
                Bar(
                    f"fastest {precision} matmul / published peak",
                    f"{share:.3f}",
                    "at most 1, or the times are wrong",
                    share <= 1,
                )
            )
    findings.bars.append(
        Bar("matmuls with a wrong result", "; ".join(wrong) or "none", "none", not wrong)
    )
    device.set_precision("fp32")
    for size in COPIED_BYTES:
        findings.figures[f"copy_{size}_bytes_per_second"] = rates.measure_copy_rate(
            device, copied_bytes=size
        )
        findings.figures[f"upload_pinned_{size}_bytes_per_second"] = upload_rate(
            device, copied_bytes=size
        )
    times = launch_times(device, launches=LAUNCHES, rounds=ROUNDS)
    for name, values in times._asdict().items():
        findings.figures[f"launch_{name}"] = statistics.median(values)
        quarters = statistics.quantiles(values, n=4)
        findings.figures[f"launch_{name}_p25"] = quarters[0]
        findings.figures[f"launch_{name}_p75"] = quarters[2]
    loaded = read_clocks_under_load(vendor, device, size=LOAD_SIZE, matmuls=LOAD_MATMULS)
    findings.figures |= {f"loaded_{name}": value for name, value in loaded.items()}
    cells = [
        [_format_cell(measured.get(precision, {}).get(shape)) for precision in PRECISIONS]
        for shape in SHAPES
    ]
    findings.text = "\n".join(
        [
            "TFLOP/s of the fastest of up to 20 repetitions; in brackets by how much one half of "
            "them was slower than the other. Empty: refused, too slow, or the result is wrong.",
            "",
            "| matmul | " + " | ".join(PRECISIONS) + " |",
            "|---" * (len(PRECISIONS) + 1) + "|",
            *(
                f"| {' x '.join(map(str, shape))} | {' | '.join(row)} |"
                for shape, row in zip(SHAPES, cells, strict=True)
            ),
            "",
            *refused,
            "",
            "Copies count bytes read plus bytes written; uploads the bytes copied. "
            f"A launch is of a kernel of one element, {LAUNCHES} a round, {ROUNDS} rounds.",
        ]
    )
    return findings


def _format_cell(point: Point | None) -> str:
    if point is None or point.rate is None:
        return ""
    text = f"{point.rate['max'] / 1e12:.4g}"
    return text if point.swing is None else f"{text} ({100 * point.swing:.0f}%)"


def upload_rate(device: Device, *, copied_bytes: int) -> float | None:
    """Return bytes per second from pinned memory of the host to the device, of the fastest copy.

    None where the device computes in the host's memory; see ``rates.prepare_transfer``.
    """
    work = rates.prepare_transfer(device, copied_bytes, to_device=True)
    if work is None:
        return None
    return (
        copied_bytes
        * 1e9
        / min(rates.measure_repeatedly_ns(device, work.run, budget_ns=0, least=COPIES))
    )


def read_clocks_under_load(
    vendor: Vendor, device: Device, *, size: int, matmuls: int
) -> dict[str, float | None]:
    """Return the clocks while fp32 matmuls are queued; empty where nothing reads them."""
    import torch

    matrix = device.place(torch.ones(size, size))
    out = torch.empty_like(matrix)
    for _ in range(matmuls):
        torch.mm(matrix, matrix, out=out)
    clocks = read_clocks(vendor)
    device.synchronize()
    return clocks


class LaunchTimes(NamedTuple):
    """Host time of a kernel of one element, in nanoseconds, one number a round.

    Args:
        queued_ns: one of many that are queued before the host waits for all.
        round_trip_ns: one that the host waits for.
    """

    queued_ns: list[float]
    round_trip_ns: list[float]


def launch_times(
    device: Device, *, launches: int, rounds: int, clock: Callable[[], int] = perf_counter_ns
) -> LaunchTimes:
    """Measure what a launch costs when the device has nothing else to do.

    Args:
        launches: of each kind in a round; far fewer than a driver queues before it blocks.
    """
    import torch

    value = device.place(torch.zeros(1))
    times = LaunchTimes([], [])
    for number in range(rounds + 1):
        device.synchronize()
        start_ns = clock()
        for _ in range(launches):
            value.add_(1.0)
        device.synchronize()
        queued_ns = clock()
        for _ in range(launches):
            value.add_(1.0)
            device.synchronize()
        end_ns = clock()
        if number > 0:  # the first round warms up
            times.queued_ns.append((queued_ns - start_ns) / launches)
            times.round_trip_ns.append((end_ns - queued_ns) / launches)
    return times
