"""Measure a device's matmul and copy rates: upper bounds for a training step, its ceilings."""

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

_BUDGET_NS = 250_000_000  # of the repetitions of one size
_MAX_REPEATS = 20
_MIN_COPIES = 5
# Device and host clock are compared on work that takes much longer than its launch.
_MIN_COMPARED_NS = 20_000_000
_MAX_COMPARED_RUNS = 4096
# The device's time must be within these shares of the host's. It is measured again if it is not,
# because another program may have used the host for a moment.
_MIN_SHARE = 0.5
_MAX_SHARE = 1.5
_MAX_ATTEMPTS = 3
_RANDOM_ROWS = 1024  # of an operand; further rows repeat them, because drawing takes time
_NUM_COMPARED = 16  # rows and columns of a result that are compared with exact ones
# Largest relative errors of a matmul in the Frobenius norm, with inner dimensions up to 50,000. A
# factor in fp32 is rounded by 2**-24, in TF32 by 2**-11. A result in fp16 is rounded by 2**-11, in
# bf16 by 2**-9, and so are the partial sums over the inner dimension. fp32 that is computed on TF32
# units would have an error of about 4e-4.
_MAX_ERRORS = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 2e-2, "fp8": 2e-2}
# Bus bandwidth over algorithm bandwidth for many ranks; see `get_bus_factor`.
_BUS_FACTORS = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "all_to_all": 1.0}


class Work(NamedTuple):
    """A piece of work on a device that is timed.

    Args:
        run: does the work once.
        fault: checks the result after the first run; returns what is wrong with it; None: nothing.
            The device must have been synchronized since the run.
    """

    run: Callable[[], object]
    fault: Callable[[], Message | None]


def measure_ns(device: Device, run: Callable[[], object]) -> int:
    """Return the device time of ``run`` in ns, after all earlier work on the device has ended.

    A mark is an event that the device records with the time at which it reaches it.
    """
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
    """Return the time of each repetition, in ns.

    Args:
        run: what to repeat.
        budget_ns: no repetition starts after this time in total, nor after 20 repetitions.
        least: minimum number of repetitions, even beyond these two limits.
        elapsed: measures one repetition, in ns.
    """
    times_ns: list[int] = []
    while len(times_ns) < least or (len(times_ns) < _MAX_REPEATS and sum(times_ns) < budget_ns):
        times_ns.append(elapsed(device, run))
    return times_ns


def refuse_wrong_marks(
    device: Device, run: Callable[[], object], *, clock: Callable[[], int] = perf_counter_ns
) -> None:
    """Refuse a device whose marks, the events by which it is timed, contradict the host's clock.

    Args:
        run: starts the work that is timed by both clocks; the host waits until the work ends.
        clock: the host's, in ns.

    Raises:
        EnvironmentFault: the times differ by more than the noise of a busy host.
    """
    # Repeat the work until it takes long enough to be compared.
    repeats = 1
    marked_ns, wall_ns = _time_by_both_clocks(device, run, repeats, clock)
    while wall_ns < _MIN_COMPARED_NS and repeats < _MAX_COMPARED_RUNS:
        repeats *= 2
        marked_ns, wall_ns = _time_by_both_clocks(device, run, repeats, clock)
    if wall_ns < _MIN_COMPARED_NS and marked_ns < _MIN_COMPARED_NS:
        return  # still too short: most of the host's time may be that of launching the work
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        if _MIN_SHARE <= marked_ns / max(wall_ns, 1) <= _MAX_SHARE:
            return
        if attempt < _MAX_ATTEMPTS:  # another process may have disturbed the host: try again
            marked_ns, wall_ns = _time_by_both_clocks(device, run, repeats, clock)
    raise EnvironmentFault(
        f"device events report {marked_ns / 1e6:.3g} ms for work that takes "
        f"{wall_ns / 1e6:.3g} ms by the host clock",
        where=f"device {device.name}",
        rule="the time reported between two marks must match the time elapsed on the device",
        fix="correct the vendor module: mark() must record an event on the stream that runs the "
        "work, elapsed_ns() must return nanoseconds, and synchronize() must wait for all work; "
        "tests/device/test_time.py checks this",
    )


def _time_by_both_clocks(
    device: Device, run: Callable[[], object], repeats: int, clock: Callable[[], int]
) -> tuple[int, int]:
    """Time ``repeats`` runs in a row; return the ns by the device's marks and by the host's clock.

    A mark is an event that the device records with the time at which it reaches it.
    """
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

    Each size runs once to warm up, then for a quarter of a second. The fastest single matmul
    counts, because it was disturbed least: a training that computes faster than this rate is taken
    for a wrong measurement, so the rate must not be too low. The swing that is returned says how
    much shorter, at the size with the best rate, the faster half of the repetitions took than the
    slower half.

    Args:
        sizes: rows of the matrices, from small to large. A precision without matrix units can be a
            hundred times slower, so a larger size is tried only if one matmul should take at most
            a second by the rate so far.
        clock: the host's, in ns.

    Raises:
        EnvironmentFault: the device's marks (events) report another time than the host's clock.
    """
    best = MatmulRate(flops_per_second=0.0, swing=None)
    best_run: Callable[[], object] | None = None
    for size in sizes:
        flops = count_flops((size, size, size))
        if best.flops_per_second:
            expected_ns = flops * 1e9 / best.flops_per_second
            if expected_ns > 4 * _BUDGET_NS:  # a second: four times the time for one size
                break
        run = prepare_matmul(device, precision, (size, size, size)).run
        run()  # warm-up
        times_ns = measure_repeatedly_ns(device, run)
        flops_per_second = flops * 1e9 / max(1, min(times_ns))
        if flops_per_second > best.flops_per_second:
            best = MatmulRate(flops_per_second, swing=compute_swing(times_ns))
            best_run = run
    if best_run is not None:
        refuse_wrong_marks(device, best_run, clock=clock)
    return best


def count_flops(shape: tuple[int, int, int]) -> float:
    """Return the FLOPs of a matmul: one multiplication and one addition for each product.

    Args:
        shape: rows, inner and columns: ``(rows, inner) @ (inner, columns)``.
    """
    rows, inner, columns = shape
    return 2.0 * rows * inner * columns


def compute_swing(times_ns: Sequence[int]) -> float | None:
    """Return how much less time the faster half of the repetitions took than the slower half.

    The halves are the first and the last repetitions, in the order in which they ran. The result is
    a share of the slower half's time; None: there is only one repetition.
    """
    half = len(times_ns) // 2  # of an odd number, the repetition in the middle is left out
    if half == 0:
        return None
    first_ns = sum(times_ns[:half])
    last_ns = sum(times_ns[-half:])
    slower_ns = max(first_ns, last_ns)
    if slower_ns == 0:  # too short for the device's clock
        return 0.0
    return 1 - min(first_ns, last_ns) / slower_ns


def prepare_matmul(device: Device, precision: Precision, shape: tuple[int, int, int]) -> Work:
    """Return the work of multiplying two random matrices, which are on the device already.

    ``Work`` is a function that does it once, and one that checks the result.

    Args:
        precision: of the matmul. The caller must have set it on the device: TF32 and fp32 have the
            same operands, and only a setting of torch makes the difference.
        shape: rows, inner and columns: ``(rows, inner) @ (inner, columns)``.
    """
    import torch

    rows, inner, columns = shape
    dtype = _get_operand_type(precision)
    generator = torch.Generator().manual_seed(rows)  # any fixed seed would do
    left = _draw_operand(device, generator, dtype, shape=(rows, inner))
    right = _draw_operand(device, generator, dtype, shape=(inner, columns))
    # The fp8 units write their results in bf16.
    out = left.new_empty(rows, columns, dtype=torch.bfloat16 if precision == "fp8" else dtype)
    multiply: Callable[[], object] = partial(torch.mm, left, right, out=out)
    if precision == "fp8":
        right = right.t().contiguous().t()  # the units read the second operand by columns
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
    find_fault = partial(_find_matmul_fault, left, right, out, max_error=_MAX_ERRORS[precision])
    return Work(multiply, find_fault)


def _get_operand_type(precision: Precision) -> Any:
    """Return torch's type of the operands of a matmul; for TF32 it is fp32."""
    import torch

    if precision == "bf16":
        return torch.bfloat16
    if precision == "fp16":
        return torch.float16
    if precision == "fp8":
        # The units of the MI300 (gfx94) take the fp8 type "fnuz", which has no negative zero.
        has_fnuz_units = torch.version.hip and "gfx94" in _get_architecture()
        return torch.float8_e4m3fnuz if has_fnuz_units else torch.float8_e4m3fn
    return torch.float32


def _draw_operand(device: Device, generator: Any, dtype: Any, *, shape: tuple[int, int]) -> Any:
    """Return random numbers on the device; rows after the first 1024 repeat these, to save time.

    Args:
        generator: torch's, of the random numbers.
        dtype: torch's type of the operand.
        shape: rows and columns.
    """
    import torch

    rows, columns = shape
    drawn = torch.randn(min(rows, _RANDOM_ROWS), columns, generator=generator)
    repeats = -(-rows // len(drawn))  # rounded up
    return device.place(drawn).to(dtype).repeat(repeats, 1)[:rows]


def _find_matmul_fault(left: Any, right: Any, out: Any, *, max_error: float) -> Message | None:
    """Compare some rows and columns of ``out`` with the exact product; return what is wrong.

    None: they agree. The codes of the messages begin with ``ceiling``, because ``trainmark
    ceilings`` shows them: it measures ceilings, the highest rates that a machine reaches.

    Args:
        left, right: the operands.
        out: the product that the device computed.
        max_error: largest relative error, in the Frobenius norm.
    """
    row_step = max(1, len(out) // _NUM_COMPARED)
    column_step = max(1, out.shape[1] // _NUM_COMPARED)
    exact = left[::row_step].cpu().double() @ right[:, ::column_step].cpu().double()
    computed = out[::row_step, ::column_step].cpu().double()
    if not exact.any():  # the operands, which were random, are only zeros on the device
        return message("ceiling_zeros")
    error = float((computed - exact).norm() / exact.norm())
    if not isfinite(error):
        return message("ceiling_not_finite")
    if error > max_error:
        return message("ceiling_error", error=error, most=max_error)
    return None


def _get_architecture() -> str:
    """Return the selected ROCm device's architecture, such as ``gfx942:sramecc+:xnack-``."""
    import torch

    return str(torch.cuda.get_device_properties().gcnArchName)


def make_pattern(size_bytes: int) -> Any:
    """Return fp32 numbers on the host: 0 to 1023 again and again.

    They are small whole numbers, so that sums of a few of them are exact.
    """
    import torch

    count = size_bytes // 4  # an fp32 number has 4 bytes
    return torch.arange(1024.0).repeat(count // 1024 + 1)[:count]


def prepare_copy(device: Device, size_bytes: int) -> Work:
    """Return the work of copying ``size_bytes`` within the device's memory.

    It reads ``size_bytes`` and writes as many. ``Work`` is a function that does it once, and one
    that checks the result.
    """
    import torch

    source = device.place(make_pattern(size_bytes))
    target = torch.zeros_like(source)
    return Work(run=lambda: target.copy_(source), fault=lambda: find_difference(target, source))


def prepare_transfer(device: Device, size_bytes: int, *, to_device: bool) -> Work | None:
    """Return the work of copying between the host's pinned memory and the device's memory.

    None if the device computes in the host's memory. ``Work`` is a function that does it once, and
    one that checks the result.

    Args:
        size_bytes: how much is copied each time the work runs.
        to_device: copy from the host to the device; False: from the device to the host.
    """
    import torch

    on_host = make_pattern(size_bytes)
    on_device = device.place(on_host)
    if on_device is on_host:  # the device computes in the host's memory
        return None
    if to_device:
        source = device.pin(on_host)
        target = torch.zeros_like(on_device)
    else:
        source = on_device
        target = device.pin(torch.zeros_like(on_host))
    return Work(
        # Does not wait for the copy. Whoever calls ``fault`` has synchronized the device before.
        run=lambda: target.copy_(source, non_blocking=True),
        fault=lambda: find_difference(target.cpu(), source.cpu()),
    )


def find_difference(computed: Any, expected: Any) -> Message | None:
    """Return a message with the number of wrong elements of a result; None: all are right."""
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
    # A budget of 0: exactly the minimum number of repetitions.
    times_ns = measure_repeatedly_ns(device, run, budget_ns=0, least=_MIN_COPIES)
    return 2 * copied_bytes * 1e9 / min(times_ns)


def get_bus_factor(name: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests define both.

    Algorithm bandwidth is the bytes of a rank's message over the time. Bus bandwidth is the bytes
    that each rank's link must carry for it over the time, and so is comparable across numbers of
    ranks. For n ranks the factor is 2 (n - 1) / n for an all-reduce, (n - 1) / n for a
    reduce-scatter, an all-gather or an all-to-all, and 1 for send and receive. The message of a
    reduce-scatter is the whole one before it is divided, that of an all-gather the gathered one.

    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-22.
    """
    if name == "send_receive":
        return 1.0
    return _BUS_FACTORS[name] * (ranks - 1) / ranks
