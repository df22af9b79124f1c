"""Time work of several sizes within a budget, alone or with other ranks.

Owns which sizes are skipped, how often one is repeated, what is kept of the repetitions, the
collectives, and what ranks agree on meanwhile, which goes through the host (gloo).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import inf
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainmark.devices import rates
from trainmark.errors import to_one_line
from trainmark.rank.process_group import join_ranks, leave_ranks
from trainmark.record.messages import render
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed import ProcessGroup

    from trainmark.protocols import Device
    from trainmark.spec import Message

_GIB = 2**30
_MAX_ERROR_CHARACTERS = 200
_NUMBER_BYTES = 4  # of fp32
_HELD_BYTES_PER_BYTE = 4.0  # memory that an exchange needs for each byte of its size
MIN_REPEATS = 3
_RANK_OFFSET = 1024.0  # between the numbers of two ranks; larger than any number of the pattern


@dataclass(slots=True)
class Point:
    """A size of a work such as matmuls, and what was measured of it in repeated runs.

    Args:
        size: rows, inner and columns of a matmul; or bytes.
        amount: FLOPs or bytes of one run; of a collective those that each rank's link carries.
        status: ``wrong``: the result of the work is not the expected one.
        repetitions: number of runs whose times count.
        reason: why it was skipped, or what is wrong with its result; None if measured.
        why: the reason as a code with arguments.
        rate: in FLOP/s or bytes/s: ``median`` and ``max`` of the repetitions.
        swing: how much less time the faster half of the repetitions took than the slower half, as
            a fraction.
    """

    size: tuple[int, ...]
    amount: float
    status: Literal["measured", "skipped", "wrong"] = "skipped"
    reason: str | None = None
    repetitions: int = 0
    rate: dict[str, float] | None = None
    swing: float | None = None
    why: Message | None = None

    def explain(self, why: Message) -> None:
        """Set why the size was skipped, or what is wrong with its result."""
        self.why = why
        self.reason = render(why, "en")

    def set_times(self, times_ns: Sequence[int]) -> None:
        """Set what was measured: the time of each repetition."""
        self.status = "measured"
        self.repetitions = len(times_ns)
        self.rate = {
            "median": self.amount * 1e9 / median(times_ns),
            "max": self.amount * 1e9 / min(times_ns),
        }
        # How much less time the faster half of the repetitions took, the first or the last ones.
        self.swing = rates.compute_swing(times_ns)


class Candidate(NamedTuple):
    """One size to measure.

    Args:
        point: its size, and where its result is kept.
        held_bytes: memory that it needs.
        prepare: called when its turn has come; prepares the work.
    """

    point: Point
    held_bytes: float
    prepare: Callable[[], rates.Work]


def sweep(
    device: Device,
    candidates: Sequence[Candidate],
    *,
    budget_ns: float,
    memory_bytes: float,
    clock: Callable[[], int] = perf_counter_ns,
    find_max: Callable[[float], float] = float,
    elapsed: Callable[[Device, Callable[[], object]], int] = rates.measure_ns,
) -> list[Point]:
    """Measure candidates, given from small to large, within the budget.

    Each gets the same part of the remaining time. A candidate is skipped if it needs more memory
    than ``memory_bytes``. It is also skipped if, at the best rate so far, its first run and
    ``MIN_REPEATS`` repetitions would not end within the budget. All ranks begin a size together and
    skip the same ones.

    Args:
        memory_bytes: the same on all ranks.
        clock: returns nanoseconds, the same on all ranks; waits for them.
        find_max: returns the largest value of all ranks; waits for them. The default is for a
            single rank: its own value.
        elapsed: runs a function on the device and returns the nanoseconds that it took.
    """
    ends_ns = clock() + budget_ns
    best_rate = 0.0  # amount per nanosecond
    for position, candidate in enumerate(candidates):
        point = candidate.point
        runs_amount = (1 + MIN_REPEATS) * point.amount  # of the first run and the repetitions
        # All ranks must come to ``find_max`` and ``clock``, so both are called even for a size that
        # is skipped. Without a rate yet, the candidate is tried if any time remains.
        needed_ns = find_max(runs_amount / best_rate if best_rate else 0.0)
        remaining_ns = max(0.0, ends_ns - clock())
        why_skipped = None
        if candidate.held_bytes > memory_bytes:
            why_skipped = message("ceiling_memory", gib=candidate.held_bytes / _GIB)
        elif needed_ns >= remaining_ns:
            why_skipped = _explain_short_time(needed_ns, remaining_ns)
        if why_skipped is not None:
            point.explain(why_skipped)
            continue
        work = candidate.prepare()
        elapsed(device, work.run)  # the first run warms up: its time does not count
        fault = work.fault()
        # Its part of the remaining time: sizes that were skipped leave theirs to the others. Read
        # before the fault is looked at, because ``clock`` waits for all ranks.
        candidate_budget_ns = (ends_ns - clock()) / (len(candidates) - position)
        if fault is not None:
            point.status = "wrong"
            point.explain(fault)
            continue
        warm_ns = rates.measure_repeatedly_ns(
            device, work.run, budget_ns=candidate_budget_ns, least=MIN_REPEATS, elapsed=elapsed
        )
        best_rate = max(best_rate, point.amount / min(warm_ns))
        point.set_times(warm_ns)
    return [candidate.point for candidate in candidates]


def _explain_short_time(needed_ns: float, remaining_ns: float) -> Message:
    """Return the message that a size needs more time than remains of the budget."""
    needed_s = _round_to_two_digits(needed_ns / 1e9)
    remaining_s = _round_to_two_digits(remaining_ns / 1e9)
    return message("ceiling_time", needed_s=needed_s, left_s=remaining_s)


def _round_to_two_digits(value: float) -> float:
    """Return a number rounded to two significant digits: 152.3 as 150."""
    return float(f"{value:.2g}")


# Groups that stay until the process ends, because their destructor may hang: see ``leave_ranks``.
_gloo_groups: list[Any] = []


class RankGroup:
    """All ranks of a measurement on one machine, as one of them sees them.

    Args:
        group: of ``torch.distributed``, through which they agree; None for a single rank.
    """

    def __init__(self, rank: int, count: int, group: ProcessGroup | None = None) -> None:
        self.rank = rank
        self.count = count  # of all ranks
        self._group = group  # through which the ranks agree on values; None: there is one rank

    @classmethod
    @contextmanager
    def join(cls, backend: str, device: Device, rank: int, count: int) -> Iterator[RankGroup]:
        """Join the other ranks at the address that the environment names.

        The process must end by ``os._exit``, without destructors: that of a group may hang.
        """
        from torch import distributed

        if count == 1:
            yield cls(rank, count)
            return
        join_ranks(backend, device)
        group = distributed.new_group(backend="gloo")
        _gloo_groups.append(group)  # so that it is not destroyed before the process ends
        yield cls(rank, count, group)
        # Not after an error: the other ranks may never come here.
        distributed.barrier()
        leave_ranks()

    def find_max(self, value: float) -> float:
        """Return the largest ``value`` of all ranks; waits for all of them."""
        import torch

        if self._group is None:  # a single rank
            return value
        tensor = torch.tensor(float(value), dtype=torch.float64)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, self._group)
        return tensor.item()

    def read_clock(self) -> int:
        """Return the time of the rank that asks last; all ranks on a machine share its clock."""
        return int(self.find_max(perf_counter_ns()))

    def measure_ns(self, device: Device, run: Callable[[], object]) -> int:
        """Return the time of the slowest of several ranks; all begin together.

        A single rank has joined no group and cannot call this.
        """
        import torch.distributed

        # The barrier of the default group, which uses the same backend as the measured collective.
        # ``find_max`` uses a group of its own, through the host.
        torch.distributed.barrier()
        return int(self.find_max(rates.measure_ns(device, run)))

    def find_fault(self, computed: Any, expected: Any) -> Message | None:
        """Return what is wrong with this rank's result, or that another rank's result is wrong.

        Args:
            expected: None: this rank has no result. It must call this too, because all ranks
                exchange what they found.
        """
        own_fault = None if expected is None else rates.find_difference(computed, expected)
        is_wrong_anywhere = self.find_max(float(own_fault is not None)) > 0
        if own_fault is not None:
            return own_fault
        return message("ceiling_wrong_elsewhere") if is_wrong_anywhere else None


def _build_all_reduce(device: Device, ranks: RankGroup, size_bytes: int) -> rates.Work:
    """Prepare the sum over ranks of ``size_bytes`` of fp32 numbers, in place."""
    import torch.distributed

    # The sums grow with each run, because they are in place: the result is checked after the first
    # run only. The pattern has numbers up to 1023, so with up to 4096 ranks every partial sum of
    # that run is below 2**24: fp32 holds such whole numbers exactly.
    value = device.place(rates.make_pattern(size_bytes) + ranks.rank)
    count = ranks.count
    # Rank r adds r to each number: the sum over ranks of r is count (count - 1) / 2.
    expected = device.place(rates.make_pattern(size_bytes) * count + count * (count - 1) // 2)
    return rates.Work(
        partial(torch.distributed.all_reduce, value), lambda: ranks.find_fault(value, expected)
    )


def _build_all_to_all(device: Device, ranks: RankGroup, size_bytes: int) -> rates.Work:
    """Prepare the exchange of an even part of ``size_bytes`` of fp32 numbers with every rank."""
    import torch
    import torch.distributed

    size_bytes -= size_bytes % (_NUMBER_BYTES * ranks.count)  # each rank's part is equally large
    numbers = rates.make_pattern(size_bytes)
    # The offset tells the numbers of each rank apart. This rank gets its part of every rank's.
    sent = device.place(numbers + _RANK_OFFSET * ranks.rank)
    part_of_rank = numbers.chunk(ranks.count)[ranks.rank]
    received_parts = [part_of_rank + _RANK_OFFSET * rank for rank in range(ranks.count)]
    expected = device.place(torch.cat(received_parts))
    received = torch.zeros_like(sent)
    return rates.Work(
        partial(torch.distributed.all_to_all_single, received, sent),
        lambda: ranks.find_fault(received, expected),
    )


def _build_reduce_scatter(device: Device, ranks: RankGroup, size_bytes: int) -> rates.Work:
    """Prepare the sum over ranks of ``size_bytes`` of fp32 numbers, an even part for each rank."""
    import torch
    import torch.distributed

    size_bytes -= size_bytes % (_NUMBER_BYTES * ranks.count)  # each rank's part is equally large
    numbers = rates.make_pattern(size_bytes)
    count = ranks.count
    sent = device.place(numbers + ranks.rank)
    part_of_rank = numbers.chunk(count)[ranks.rank]
    # Rank r adds r to each number: the sum over ranks of r is count (count - 1) / 2.
    expected = device.place(part_of_rank * count + count * (count - 1) // 2)
    received = torch.zeros_like(expected)
    # The names since and before torch 2.13.
    reduce_scatter = _find_collective("reduce_scatter_single", "reduce_scatter_tensor")
    return rates.Work(
        partial(reduce_scatter, received, sent), lambda: ranks.find_fault(received, expected)
    )


def _build_all_gather(device: Device, ranks: RankGroup, size_bytes: int) -> rates.Work:
    """Prepare the collection of ``size_bytes`` of fp32 numbers, an even part of each rank."""
    import torch
    import torch.distributed

    size_bytes -= size_bytes % (_NUMBER_BYTES * ranks.count)  # each rank's part is equally large
    parts = rates.make_pattern(size_bytes).chunk(ranks.count)
    # The offset tells the numbers of each rank apart.
    sent = device.place(parts[ranks.rank] + _RANK_OFFSET * ranks.rank)
    expected = device.place(
        torch.cat([part + _RANK_OFFSET * rank for rank, part in enumerate(parts)])
    )
    received = torch.zeros_like(expected)
    # The names since and before torch 2.13.
    all_gather = _find_collective("all_gather_single", "all_gather_into_tensor")
    return rates.Work(
        partial(all_gather, received, sent), lambda: ranks.find_fault(received, expected)
    )


def _find_collective(name: str, earlier_name: str) -> Callable[..., Any]:
    """Return a function of ``torch.distributed`` that was renamed in torch 2.13.

    Args:
        name: its name since torch 2.13.
        earlier_name: its name before.
    """
    import torch.distributed

    has_new_name = hasattr(torch.distributed, name)
    collective: Callable[..., Any] = getattr(
        torch.distributed, name if has_new_name else earlier_name
    )
    return collective


def _build_send_receive(device: Device, ranks: RankGroup, size_bytes: int) -> rates.Work:
    """Prepare sending ``size_bytes`` of fp32 numbers to the next rank, in a ring."""
    next_rank = (ranks.rank + 1) % ranks.count
    previous_rank = (ranks.rank - 1) % ranks.count
    return _build_exchange(device, ranks, size_bytes, to=next_rank, source=previous_rank)


def _build_exchange(
    device: Device, ranks: RankGroup, size_bytes: int, *, to: int, source: int
) -> rates.Work:
    """Prepare sending a message to one rank and receiving one from a rank, at the same time.

    Args:
        to: number of the rank that gets the message of this one.
        source: number of the rank whose message this one gets.
    """
    import torch
    import torch.distributed as dist

    numbers = rates.make_pattern(size_bytes)
    # The offset tells the messages of each rank apart.
    sent = device.place(numbers + _RANK_OFFSET * ranks.rank)
    expected = device.place(numbers + _RANK_OFFSET * source)
    received = torch.zeros_like(sent)

    def run() -> None:
        """Send and receive, and wait for both."""
        messages = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, source)]
        for request in dist.batch_isend_irecv(messages):
            request.wait()

    return rates.Work(run, lambda: ranks.find_fault(received, expected))


def build_pair_exchange(
    device: Device, ranks: RankGroup, size_bytes: int, pair: tuple[int, int]
) -> rates.Work:
    """Prepare an exchange of ``size_bytes`` each way within a pair; nothing on other ranks."""
    if ranks.rank not in pair:
        # ``find_fault`` is collective: ranks without a result must call it too.
        return rates.Work(_do_nothing, lambda: ranks.find_fault(computed=None, expected=None))
    partner = pair[1] if ranks.rank == pair[0] else pair[0]
    return _build_exchange(device, ranks, size_bytes, to=partner, source=partner)


def _do_nothing() -> None:
    """Stand for the work of a rank outside the pair that exchanges messages."""


COLLECTIVES = {
    "all_reduce": _build_all_reduce,
    "reduce_scatter": _build_reduce_scatter,
    "all_gather": _build_all_gather,
    "all_to_all": _build_all_to_all,
    "send_receive": _build_send_receive,
}


def try_collective(device: Device, ranks: RankGroup, name: str) -> Message | None:
    """Try a collective with a few bytes; return why the backend refuses it, None if it works.

    A backend refuses before it sends anything, and on all ranks alike. The result is not checked
    here, but at the first size that is measured.
    """
    try:
        # The smallest size: one number for each rank.
        work = COLLECTIVES[name](device, ranks, _NUMBER_BYTES * ranks.count)
        work.run()
        device.synchronize()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return message("ceiling_unsupported", text=to_one_line(str(error))[:_MAX_ERROR_CHARACTERS])
    return None


@dataclass(slots=True, kw_only=True)
class Link:
    """What was measured between two ranks, one pair at a time.

    Args:
        ranks: the lower one first.
        point: bytes that each sends to the other, and their rate in each direction.
    """

    ranks: tuple[int, int]
    point: Point


def measure_links(
    device: Device, ranks: RankGroup, *, size_bytes: int, budget_ns: float
) -> list[Link]:
    """Measure each pair of ranks alone, while the others wait.

    Args:
        budget_ns: of all pairs together.
    """
    pairs = list(combinations(range(ranks.count), 2))
    links = []
    for pair in pairs:
        candidate = Candidate(
            # The bytes of one direction, although both are used at once: the rate of a link is that
            # of each direction.
            point=Point(size=(size_bytes,), amount=float(size_bytes)),
            held_bytes=_HELD_BYTES_PER_BYTE * size_bytes,
            prepare=partial(build_pair_exchange, device, ranks, size_bytes, pair),
        )
        points = sweep(
            device,
            [candidate],
            budget_ns=budget_ns / len(pairs),
            memory_bytes=inf,  # the caller has chosen a size that fits
            # All ranks must decide alike, so they share the clock of the rank that asks last, the
            # largest value of all ranks, and the time of the slowest one.
            clock=ranks.read_clock,
            find_max=ranks.find_max,
            elapsed=ranks.measure_ns,
        )
        links.append(Link(ranks=pair, point=points[0]))
    return links
