"""What a rank measures: sizes within a budget, rates, shares, and results that are wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import product
from math import inf
from threading import Barrier
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from support.fakes import FakeClock, SyncDevice
from support.old_torch import needs_fp8_matmul
from trainmark.devices import peaks, rates
from trainmark.machine.ceilings import CeilingKind, choose_copy_sizes
from trainmark.machine.ceilings_work import COLLECTIVES, Candidate, Point, sweep
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.spec import Message

H100 = "NVIDIA H100 80GB HBM3"


def make_candidate(
    *, amount: float, times_ns: list[int], held_bytes: float = 0.0, fault: Message | None = None
) -> Candidate:
    """Return work that takes the given times, the last one again and again.

    Args:
        amount: FLOPs or bytes of one run; also the size.
        held_bytes: memory that it needs.
        times_ns: of the first run, which warms up, and of the repetitions.
        fault: what is wrong with its result.
    """

    def yield_times() -> Iterator[int]:
        yield from times_ns
        while True:
            yield times_ns[-1]

    remaining_times = yield_times()
    # A run returns its time; ``measure_candidates`` advances the clock by it.
    work = rates.Work(run=lambda: next(remaining_times), fault=lambda: fault)
    point = Point(size=(int(amount),), amount=amount)
    return Candidate(point, held_bytes, prepare=lambda: work)


@pytest.mark.parametrize(
    ("memory_gib", "largest_mib"), [(141, 4096), (64, 4096), (24, 1536), (2, 128)]
)
def test_copy_sizes_scale_with_the_memory(memory_gib: int, largest_mib: int) -> None:
    # ``largest_mib``: a sixteenth of the memory, such as 24 GiB / 16 = 1536 MiB, at most 4096 MiB.
    sizes = choose_copy_sizes(memory_gib * 2**30 / 2)  # ``run_rank`` passes half of the memory
    largest = largest_mib * 2**20  # a sixteenth of the memory, at most 4 GiB
    assert sizes == [largest // 16, largest // 4, largest]


@pytest.fixture
def measure_candidates(clock: FakeClock) -> Callable[..., tuple[Point, ...]]:
    """Return a function that measures candidates of ``make_candidate`` on a clock of their own.

    Its ``budget_ns`` is the time for all candidates; ``more``: other arguments of ``sweep``. Unless
    they say otherwise there is 1 GB of memory, enough for all.
    """

    def call(*candidates: Candidate, budget_ns: float, **more: Any) -> tuple[Point, ...]:
        def advance_clock(device: Any, run: Callable[[], Any]) -> int:
            """Run work that returns its own time, and let this time pass."""
            took_ns = run()
            clock.advance(took_ns)
            return took_ns

        return sweep(
            SyncDevice(clock),
            candidates,
            budget_ns=budget_ns,
            clock=clock,
            elapsed=advance_clock,
            **{"memory_bytes": 1e9, **more},
        )

    return call


def test_size_is_skipped_if_it_would_exceed_the_remaining_time(measure_candidates: Any) -> None:
    """The first size shows a rate of 1 per ns: four runs of 251 need 1004 ns, of 200 only 800.

    Four runs: a cold one and the least number of repetitions.
    """
    points = measure_candidates(
        make_candidate(amount=10.0, times_ns=[10, 10]),
        make_candidate(amount=251.0, times_ns=[1]),
        make_candidate(amount=200.0, times_ns=[200, 200]),
        budget_ns=1200,
    )
    # The cold run and 20 repetitions, the most that a size gets, took 210 of 1200 ns.
    assert [point.status for point in points] == ["measured", "skipped", "measured"]
    # 1004 and 990 (1200 - 210) ns, rounded to two digits.
    assert points[1].reason == "the measurement needs 1e-06 s, but only 9.9e-07 s are left"
    assert (points[1].rate, points[1].repetitions) == (None, 0)


def test_ranks_skip_the_same_sizes(clock: FakeClock) -> None:
    """The second size is ten times as much work on the first rank, which alone would skip it."""
    values, barrier = [0.0, 0.0], Barrier(2)  # a value of each rank; a rank is a thread

    def measure(rank: int) -> list[Point]:
        def find_largest_of_ranks(value: float) -> float:
            values[rank] = value
            barrier.wait()  # until both have written
            largest = max(values)
            barrier.wait()  # until both have read
            return largest

        # A measurement is at least four runs. The first size takes 100 ns for an amount of 1. At
        # this rate, four runs of 10 need 4000 ns, more than the budget of 3000, and four of 1 only
        # 400.
        second_amount = 10.0 if rank == 0 else 1.0
        candidates = [
            make_candidate(amount=1.0, times_ns=[100]),
            make_candidate(amount=second_amount, times_ns=[1]),
        ]
        return sweep(
            SyncDevice(clock),
            # ``make_candidate`` takes the amount as the size, but all ranks have the same sizes.
            [
                candidate._replace(point=Point((index,), candidate.point.amount))
                for index, candidate in enumerate(candidates)
            ],
            budget_ns=3000,
            memory_bytes=1e9,
            clock=lambda: int(find_largest_of_ranks(0)),  # no time passes, but ranks wait
            find_max=find_largest_of_ranks,
            elapsed=lambda _, run: run(),
        )

    with ThreadPoolExecutor(2) as pool:
        measurements = list(pool.map(measure, range(2)))
    assert [[point.status for point in points] for points in measurements] == [
        ["measured", "skipped"]
    ] * 2


def test_checked_sums_are_exact_for_any_number_of_ranks(sync_device: SyncDevice) -> None:
    """The order of adding does not matter: fp32 is exact for whole numbers below 2**24.

    Each rank sums a pattern of numbers up to 1023, to which it adds its own number. Here it is the
    last rank of 1024; nothing is sent, so that its numbers stay as they were before the sum.
    """
    num_ranks, largest_of_pattern = 1024, 1023
    last_rank = num_ranks - 1
    maxima: list[float] = []

    def check_numbers(actual: Any, expected: Any) -> None:
        maxima.append(float(actual.double().max()))
        largest_sum = float(expected.double().max())
        assert largest_sum < 2**24
        assert largest_sum == sum(largest_of_pattern + rank for rank in range(num_ranks))

    ranks = SimpleNamespace(rank=last_rank, count=num_ranks, find_fault=check_numbers)
    # 8192 bytes hold the 1024 fp32 numbers of the pattern twice.
    work = COLLECTIVES["all_reduce"](sync_device, ranks, size_bytes=8192)
    work.fault()  # calls ``check_numbers``
    assert maxima == [largest_of_pattern + last_rank]


def test_wrong_result_has_no_rate_and_is_never_the_best(measure_candidates: Any) -> None:
    # Both sizes take 1 ns, so the first one, of ten times the amount, would have the higher rate;
    # but its check finds that 7 of 9 numbers of its result are wrong.
    points = measure_candidates(
        make_candidate(amount=10.0, times_ns=[1], fault=message("ceiling_numbers", wrong=7, of=9)),
        make_candidate(amount=1.0, times_ns=[1]),
        budget_ns=1000,
    )
    assert (points[0].status, points[0].reason) == (
        "wrong",
        "7 of 9 numbers in the result are wrong",
    )
    assert points[0].rate is None
    kind = CeilingKind(name="all_reduce")
    kind.set_points(points)
    assert kind.best == 1  # the index of the second size, although the first one is faster


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [("all_reduce", 2, 1.0), ("all_reduce", 4, 1.5), ("all_reduce", 8, 1.75),
     ("all_to_all", 2, 0.5), ("all_to_all", 8, 0.875), ("reduce_scatter", 4, 0.75),
     ("all_gather", 8, 0.875), ("send_receive", 2, 1.0), ("send_receive", 8, 1.0)],
)  # fmt: skip
def test_bus_bandwidth_is_defined_as_by_nccl_tests(name: str, ranks: int, factor: float) -> None:
    # https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, 2026-11-22
    assert rates.get_bus_factor(name, ranks) == factor


def test_bandwidths_match_a_line_of_nccl_tests(measure_candidates: Any) -> None:
    """Four A100, 4,218,900 bytes in 1011.4 us: 4.17 and 6.26 GB/s.

    https://gist.github.com/kwen2501/89c28b6d12045b45ccf7e33816af2713, 2026-11-22.
    """
    # Bytes over time are the first number, "algbw": 4,218,900 / 1011.4e-6 = 4.17e9. What each link
    # carries is the second one, "busbw": 2 (n - 1) / n as much, so 1.5 times as much with four
    # ranks. The rate of a point is its amount over its time, so the factor is in the amount.
    factor = rates.get_bus_factor("all_reduce", 4)
    amount, duration_ns = factor * 4_218_900, 1_011_400
    # The first size is measured whatever it takes.
    (point,) = measure_candidates(
        make_candidate(amount=amount, times_ns=[duration_ns]), budget_ns=1
    )
    assert point.rate is not None
    assert f"{point.rate['max'] / factor / 1e9:.2f}" == "4.17"  # its column "algbw"
    assert f"{point.rate['max'] / 1e9:.2f}" == "6.26"  # its column "busbw"


def make_rated_points(*rates_of_sizes: float | None) -> list[Point]:
    """Return points of sizes 0, 1, … with these rates; None: the size was not measured.

    Their amount of work is 1, as no caller reads it.
    """
    return [
        Point(size=(size,), amount=1.0, rate=None if rate is None else {"max": rate})
        for size, rate in enumerate(rates_of_sizes)
    ]


def test_the_fastest_size_counts_and_has_a_share_of_the_peak() -> None:
    # ``H100`` is the name that the SXM card of 80 GB reports. Its published bf16 peak is 989
    # TFLOP/s. The fastest of four sizes, index 1, is set to half of it; the last was not measured.
    kind = CeilingKind(name="matmul_bf16", unit="FLOP/s", peak=peaks.find_peak(H100, "bf16"))
    kind.set_points(make_rated_points(1e12, 494.5e12, 2e12, None))
    assert (kind.best, kind.share_of_peak) == (1, 494.5e12 / 989e12)
    peak = asdict(kind)["peak"]
    assert (peak["per_second"], peak["accelerator"]) == (989e12, "H100-SXM5-80GB")
    assert {"source", "date", "evidence"} <= set(peak)


@pytest.mark.parametrize(
    ("precision", "shape"),
    [
        *product(("fp32", "bf16"), [(64, 64, 64), (2500, 40, 33), (1, 5, 1)]),
        pytest.param("fp8", (64, 96, 32), marks=needs_fp8_matmul),
    ],
)
def test_a_matmul_is_checked(
    precision: Any, shape: tuple[int, int, int], sync_device: SyncDevice
) -> None:
    # ``needs_fp8_matmul`` skips fp8 if this torch cannot multiply such numbers on a CPU.
    # ``shape``: rows, inner and columns. The check compares about 16 rows and 16 columns of the
    # product: of (64, 64, 64) every fourth one, of (1, 5, 1) all. An operand with 2500 rows repeats
    # its first 1024, because drawing random numbers takes time.
    work = rates.prepare_matmul(sync_device, precision, shape)
    work.run()
    assert work.fault() is None


def test_a_matmul_with_fewer_bits_than_its_precision_is_wrong(
    sync_device: SyncDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The device multiplies fp32 numbers, but only with the bits of bf16.
    exact = torch.mm

    def multiply_coarsely(first: torch.Tensor, second: torch.Tensor, *, out: torch.Tensor) -> None:
        """Multiply as a device does that uses bf16 units for fp32."""
        out.copy_(exact(first.bfloat16(), second.bfloat16()))

    monkeypatch.setattr(torch, "mm", multiply_coarsely)
    work = rates.prepare_matmul(sync_device, "fp32", (128, 128, 128))
    work.run()
    fault = work.fault()
    assert fault is not None
    # ``most``: the largest relative error that is allowed in fp32.
    assert (fault.code, fault.args["most"]) == ("ceiling_error", 0.0001)


@pytest.mark.parametrize(("value", "code"), [(0.0, "ceiling_zeros"), (inf, "ceiling_not_finite")])
def test_matmul_of_zero_or_infinite_operands_is_wrong(
    value: float, code: str, sync_device: SyncDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``place`` moves operands to the device; here all of their numbers are replaced by ``value``.
    monkeypatch.setattr(sync_device, "place", lambda tensor: torch.full_like(tensor, value))
    work = rates.prepare_matmul(sync_device, "fp32", (8, 8, 8))
    work.run()
    assert work.fault() == message(code)
