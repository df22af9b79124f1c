"""Measure a device's matmul and copy rates: upper bounds for a training step."""

from __future__ import annotations

from functools import partial
from math import isfinite
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.errors import EnvironmentFault
from trainmark.protocols import MatmulRate
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.protocols import Device
    from trainmark.recipe import Precision
    from trainmark.spec import Message

_BUDGET_NS = 250_000_000
_MAX_REPEATS = 20
_COPIES = 5
# Two clocks are compared on work that takes much longer than a launch, so many attempts as below:
# another program may use the host for a moment. Their times may differ by these shares.
_MIN_COMPARED_NS = 20_000_000
_MAX_COMPARED_RUNS = 4096
_ATTEMPTS = 3
_MIN_SHARE, _MAX_SHARE = 0.5, 1.5
_RANDOM_ROWS = 1024  # of an operand; further rows repeat them, because drawing takes time
_NUM_COMPARED = 16  # rows and columns of a result that are compared with exact ones
# Of the relative error in the Frobenius norm, with inner dimensions up to 50,000. A factor in fp32
# is rounded by 2**-24, in TF32 by 2**-11; a result in fp16 by 2**-11, in bf16 by 2**-9, and sums of
# parts of the inner dimension too. fp32 computed on TF32 units would have
# about 4e-4.
_MAX_ERRORS = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 2e-2, "fp8": 2e-2}
_BUS = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "all_to_all": 1.0}


class Work(NamedTuple):
    """Something to time.

    Args:
        run: does it once.
        fault: called after the first run; returns what is wrong with the result; None: nothing.
    """

    run: Callable[[], object]
    fault: Callable[[], Message | None]


def measure_ns(device: Device, run: Callable[[], object]) -> int:
    """Return the device time of ``run``, with nothing else running on the device."""
    device.synchronize()
    start = device.mark()
    run()
    end = device.mark()
    device.synchronize()
    return device.elapsed_ns(start, end)


def measure_repeatedly_ns(
    device: Device,
    run: Callable[[], object],
    *,
    budget_ns: float = _BUDGET_NS,
    least: int = 1,
    elapsed: Callable[[Device, Callable[[], object]], int] = measure_ns,
) -> list[int]:
    """Return the time of each repetition: ``least`` at least, 20 at most, until the budget ends."""
    times_ns: list[int] = []
    while len(times_ns) < least or (len(times_ns) < _MAX_REPEATS and sum(times_ns) < budget_ns):
        times_ns.append(elapsed(device, run))
    return times_ns


def refuse_wrong_marks(
    device: Device, run: Callable[[], object], *, clock: Callable[[], int] = perf_counter_ns
) -> None:
    """Compare the device's time of repeated work with the host's, which waits for it.

    Raises:
        EnvironmentFault: they differ by more than the noise of a busy host.
    """
    repeats = 1
    marked_ns, wall_ns = _time_by_both_clocks(device, run, repeats, clock)
    while wall_ns < _MIN_COMPARED_NS and repeats < _MAX_COMPARED_RUNS:
        repeats *= 2
        marked_ns, wall_ns = _time_by_both_clocks(device, run, repeats, clock)
    if wall_ns < _MIN_COMPARED_NS and marked_ns < _MIN_COMPARED_NS:
        return  # too fast to tell launches and work apart
    shares = [marked_ns / max(wall_ns, 1)]
    while not _MIN_SHARE <= shares[-1] <= _MAX_SHARE:
        if len(shares) == _ATTEMPTS:
            raise EnvironmentFault(
                f"device events report {marked_ns / 1e6:.3g} ms for work that takes "
                f"{wall_ns / 1e6:.3g} ms by the host clock",
                where=f"device {device.name}",
                rule=(
                    "the time between two marks must be the time that passes between them on the "
                    "device"
                ),
                fix="mark() must record an event in the stream of the work, elapsed_ns() must "
                "return nanoseconds, and synchronize() must wait for all work; "
                "tests/device/test_time.py checks them",
            )
        marked_ns, wall_ns = _time_by_both_clocks(device, run, repeats, clock)
        shares.append(marked_ns / max(wall_ns, 1))


def _time_by_both_clocks(
    device: Device, run: Callable[[], object], repeats: int, clock: Callable[[], int]
) -> tuple[int, int]:
    """Return the time of some repeats in a row, by the device's marks and by the host's clock."""
    device.synchronize()
    started_ns = clock()
    start = device.mark()
    for _ in range(repeats):
        run()
    end = device.mark()
    device.synchronize()
    wall_ns = clock() - started_ns
    return device.elapsed_ns(start, end), wall_ns


def measure_matmul_rate(
    device: Device,
    precision: Precision,
    *,
    sizes: tuple[int, ...],
    clock: Callable[[], int] = perf_counter_ns,
) -> MatmulRate:
    """Return the best rate over square matmuls of ``sizes``.

    A precision without matrix units can be a hundred times slower, so a larger matmul is
    tried only if it should take about a second at most, judged by the rate so far: give
    ``sizes`` from small to large. Each size runs once to warm up, then for a quarter of a
    second. The fastest single matmul counts: it was disturbed least, and an upper bound must
    not be too low. The swing is that of the size with the best rate.

    Args:
        clock: the host's, in ns.

    Raises:
        EnvironmentFault: the device's marks tell another time than the host's clock.
    """
    best = MatmulRate(0.0, None)
    best_run: Callable[[], object] | None = None
    for size in sizes:
        amount = count_flops((size, size, size))
        if best.flops_per_second and amount * 1e9 / best.flops_per_second > 4 * _BUDGET_NS:
            break
        run = prepare_matmul(device, precision, (size, size, size)).run
        run()
        times_ns = measure_repeatedly_ns(device, run)
        rate = MatmulRate(amount * 1e9 / max(1, min(times_ns)), compute_swing(times_ns))
        if rate.flops_per_second > best.flops_per_second:
            best, best_run = rate, run
    if best_run is not None:
        refuse_wrong_marks(device, best_run, clock=clock)
    return best


def count_flops(shape: tuple[int, int, int]) -> float:
    """Return the FLOPs of a matmul of ``shape``, rows, inner and columns."""
    rows, inner, columns = shape
    return 2.0 * rows * inner * columns


def compute_swing(times_ns: Sequence[int]) -> float | None:
    """Return by what share one half of the repetitions was slower; None: there is only one."""
    half = len(times_ns) // 2
    if half == 0:
        return None
    slower, faster = sorted((sum(times_ns[:half]), sum(times_ns[-half:])), reverse=True)
    return 1 - faster / slower if slower else 0.0


def prepare_matmul(device: Device, precision: Precision, shape: tuple[int, int, int]) -> Work:
    """Return a matmul of random numbers; its operands are ready.

    Args:
        precision: in effect already, see ``Device.set_precision``.
        shape: rows, inner and columns: ``(rows, inner) @ (inner, columns)``.
    """
    import torch

    rows, inner, columns = shape
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
    if precision == "fp8" and torch.version.hip and "gfx94" in _get_architecture():
        types["fp8"] = torch.float8_e4m3fnuz  # what the MI300's units multiply
    dtype = types.get(precision, torch.float32)
    generator = torch.Generator().manual_seed(rows)

    def operand(rows: int, columns: int) -> Any:
        drawn = torch.randn(min(rows, _RANDOM_ROWS), columns, generator=generator)
        return device.place(drawn).to(dtype).repeat(-(-rows // len(drawn)), 1)[:rows]

    left, right = operand(rows, inner), operand(inner, columns)
    out = left.new_empty(rows, columns, dtype=torch.bfloat16 if precision == "fp8" else dtype)
    multiply: Callable[[], object] = partial(torch.mm, left, right, out=out)
    if precision == "fp8":
        right = right.t().contiguous().t()  # the units want columns together
        unit_scale = device.place(torch.ones(()))
        multiply = partial(
            torch._scaled_mm,
            left,
            right,
            scale_a=unit_scale,
            scale_b=unit_scale,
            out_dtype=out.dtype,
            out=out,
        )

    def fault() -> Message | None:
        by_rows, by_columns = max(1, rows // _NUM_COMPARED), max(1, columns // _NUM_COMPARED)
        exact = left[::by_rows].cpu().double() @ right[:, ::by_columns].cpu().double()
        computed = out[::by_rows, ::by_columns].cpu().double()
        if not exact.any():
            return message("ceiling_zeros")
        error, max_error = float((computed - exact).norm() / exact.norm()), _MAX_ERRORS[precision]
        if not isfinite(error):
            return message("ceiling_not_finite")
        return None if error <= max_error else message("ceiling_error", error=error, most=max_error)

    return Work(multiply, fault)


def _get_architecture() -> str:
    import torch

    return str(torch.cuda.get_device_properties().gcnArchName)


def make_pattern(size_bytes: int) -> Any:
    """Return fp32 numbers on the host, small enough that sums of a few of them are exact."""
    import torch

    count = size_bytes // 4
    return torch.arange(1024.0).repeat(count // 1024 + 1)[:count]


def prepare_copy(device: Device, size_bytes: int) -> Work:
    """Return a copy of ``size_bytes`` within the device's memory: as many read, as many written."""
    import torch

    source = device.place(make_pattern(size_bytes))
    target = torch.zeros_like(source)
    return Work(lambda: target.copy_(source), lambda: find_difference(target, source))


def prepare_transfer(device: Device, size_bytes: int, *, to_device: bool) -> Work | None:
    """Return a copy between the host's pinned memory and the device's.

    None where the device computes in the host's memory.
    """
    import torch

    host = make_pattern(size_bytes)
    there = device.place(host)
    if there is host:
        return None
    pinned = device.pin(host if to_device else torch.zeros_like(host))
    source, target = (pinned, torch.zeros_like(there)) if to_device else (there, pinned)
    return Work(
        lambda: target.copy_(source, non_blocking=True),
        lambda: find_difference(target.cpu(), source.cpu()),
    )


def find_difference(computed: Any, expected: Any) -> Message | None:
    """Return how many numbers of a result are wrong, as a message; None: none is."""
    import torch

    if torch.equal(computed, expected):
        return None
    wrong = int((computed != expected).sum())
    return message("ceiling_numbers", wrong=wrong, of=computed.numel())


def measure_copy_rate(device: Device, *, copied_bytes: int) -> float:
    """Return bytes read plus written per second, of the fastest of a few copies.

    Args:
        copied_bytes: size of one copy; choose it far larger than every cache.
    """
    run = prepare_copy(device, copied_bytes).run
    return (
        2 * copied_bytes * 1e9 / min(measure_repeatedly_ns(device, run, budget_ns=0, least=_COPIES))
    )


def get_bus_factor(name: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests define both.

    Algorithm bandwidth is a rank's message over the time; bus bandwidth is what each rank's link
    must carry for it whatever the number of ranks n: times 2 (n - 1) / n for an all-reduce,
    (n - 1) / n for a reduce-scatter, an all-gather or an all-to-all, 1 for send and receive. The
    message of a reduce-scatter or an all-gather is the whole one, before or after it is divided.

    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-22.
    """
    if name == "send_receive":
        return 1.0
    return _BUS[name] * (ranks - 1) / ranks
