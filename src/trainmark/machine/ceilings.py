"""Measure this machine's upper bounds with one process a device: matmul, memory, collectives.

Owns what is measured and in which order, the document that it leads to, and what is refused before
the ranks start. Each rank is ``python -m trainmark.machine.ceilings ARGUMENTS``. Knows no case and
no vendor.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from trainmark import __version__, devices
from trainmark.devices import rates
from trainmark.devices.peaks import Peak, find_peak
from trainmark.errors import EnvironmentFault, MeasurementError
from trainmark.launch import processes
from trainmark.launch.local import POLL_S, prepare_setup, start_ranks
from trainmark.launch.network import LOOPBACK, refuse_unusable_network
from trainmark.launch.python_commands import build_module_command
from trainmark.machine.ceilings_work import (
    COLLECTIVES,
    Candidate,
    Point,
    RankGroup,
    measure_links,
    sweep,
    try_collective,
)
from trainmark.plan.choosing import refuse_unsuitable_device
from trainmark.rank.parent import PARENT_VARIABLE, die_with_parent
from trainmark.recipe import Precision, Recipe
from trainmark.record.messages import render
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.launch.local import Setup
    from trainmark.launch.processes import StopRequest
    from trainmark.launch.supervisor import RankProcess
    from trainmark.protocols import Device, Vendor
    from trainmark.spec import Message

SCHEMA = "trainmark-ceilings-1"
_MIB = 1 << 20
_GIB = 1 << 30
# Rows, inner and columns of the matmuls.
_SQUARES = [(n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192, 16384)]
_MAX_COPY_BYTES = 4 * _GIB  # far beyond every cache
_TRANSFERS = (_MIB, 16 * _MIB, 256 * _MIB, _GIB)
_COLLECTIVE_SIZES = (64 << 10, _MIB, 16 * _MIB, 64 * _MIB, 256 * _MIB, _GIB)
_UNKNOWN_MEMORY_BYTES = 4 * _GIB  # assumed of a device that does not report its memory
# What each rank of a pair sends to the other: large enough to fill a link.
_LINK_BYTES = 64 * _MIB
_CPU_LINK_BYTES = 4 * _MIB
# Of the memory, the size of such a message: an exchange holds four times its size, so that half of
# the memory stays free.
_LINK_MEMORY_SHARE = 1 / 8
# The data are fp32 numbers of 4 bytes. Sizes are multiples of 16 numbers, so that a sixteenth of a
# size, which is measured too, has whole numbers as well.
_ALIGNMENT_BYTES = 16 * 4
# Memory for a number of a matrix, with copies in other precisions; the same for all precisions.
_HELD_BYTES_PER_MATMUL_NUMBER = 8.0
# Memory that a copy or a collective needs for each byte of its size.
_HELD_BYTES_PER_BYTE = 4.0


@dataclass(slots=True, kw_only=True)
class CeilingKind:
    """One kind of work over several sizes, and the rates that the machine reaches in it.

    Examples are the matmuls in one precision and an all-reduce; docs/machine.md describes them.

    Args:
        name: such as ``matmul_bf16``.
        unit: of the rates.
        reason: why it does not apply, and has no points; None: it applies.
        counts: which point gives the rate of the kind: that with the best rate, or that of the
            largest size; for memory the latter, because smaller copies may fit into a cache.
        bus_factor: of a collective: bytes on each rank's link for each byte of a message.
        peak: published peak of the device; None: not known.
        points: what was measured, by size.
        best: index of the point that counts; None: none was measured.
        share_of_peak: rate of this point divided by the peak.
        why: the reason as a code with arguments.
    """

    name: str
    unit: Literal["FLOP/s", "bytes/s"] = "bytes/s"
    reason: str | None = None
    counts: Literal["fastest", "largest"] = "fastest"
    bus_factor: float | None = None
    peak: Peak | None = None
    points: list[Point] = field(default_factory=list)
    best: int | None = None
    share_of_peak: float | None = None
    why: Message | None = None

    def exclude(self, why: Message, reason: str = "") -> None:
        """Set why the kind does not apply here, as a message and as an English text.

        Args:
            reason: the text, if the device's vendor gives one; empty: the text of ``why``.
        """
        self.why = why
        self.reason = reason or render(why, "en")

    def set_points(self, points: list[Point]) -> None:
        """Set what was measured, from small to large; find the point that gives the kind's rate."""
        self.points = points
        # By index; points that were skipped or wrong have no rate.
        max_rates = {index: point.rate["max"] for index, point in enumerate(points) if point.rate}
        if not max_rates:
            return
        if self.counts == "largest":
            self.best = max(max_rates)  # the last index, that of the largest size
        else:
            self.best = max(max_rates, key=lambda index: max_rates[index])  # the highest rate
        if self.peak is not None:
            self.share_of_peak = max_rates[self.best] / self.peak.per_second


def try_precision(vendor: Vendor, device: Device, precision: Precision) -> str | None:
    """Switch the device to ``precision``; return why that is not possible, or None if it is."""
    refusal = vendor.refuse(Recipe(precision=precision), nproc=1)
    if refusal is not None:
        return refusal.why
    try:  # what the vendor allows, this device may still refuse
        device.set_precision(precision)
    except EnvironmentFault as fault:
        return fault.what
    return None


def build_matmul_candidates(
    device: Device, precision: Precision, shapes: Sequence[tuple[int, int, int]]
) -> list[Candidate]:
    """Return the matmuls to measure, from small to large.

    Args:
        shapes: rows, inner dimension and columns of each matmul.
    """
    return [
        Candidate(
            point=Point(size=shape, amount=rates.count_flops(shape)),
            # Of all elements of the three matrices; an upper limit for every precision.
            held_bytes=_HELD_BYTES_PER_MATMUL_NUMBER * _count_matrix_numbers(*shape),
            prepare=partial(rates.prepare_matmul, device, precision, shape),
        )
        for shape in sorted(shapes, key=rates.count_flops)
    ]


def _count_matrix_numbers(rows: int, inner: int, columns: int) -> int:
    """Return how many numbers the three matrices of a matmul have."""
    return rows * inner + inner * columns + rows * columns


def _build_candidates(
    prepare: Callable[[int], Any], sizes: Sequence[int], factor: float = 1.0
) -> list[Candidate]:
    """Return a candidate, which is a size to measure, for each of ``sizes``.

    Args:
        prepare: prepares the work of a size in bytes.
        sizes: in bytes, from small to large.
        factor: bytes that a run moves for each byte of its size.
    """
    return [
        Candidate(
            point=Point(size=(size,), amount=factor * size),
            held_bytes=_HELD_BYTES_PER_BYTE * size,
            prepare=partial(prepare, size),
        )
        for size in sizes
    ]


def _align(num_bytes: float) -> int:
    """Return ``num_bytes``, rounded down to a multiple of ``_ALIGNMENT_BYTES``."""
    return int(num_bytes) // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES


def choose_copy_sizes(memory_bytes: float) -> list[int]:
    """Return the sizes of copies within a device's memory, in bytes, from small to large.

    The rate of the largest one is the result: 4 GiB, or an eighth of a smaller memory, which is
    still far more than the caches of such a device hold. Smaller ones come first, each a quarter of
    the next one: by their rate ``sweep`` tells whether there is time for the largest one.

    Args:
        memory_bytes: memory of the device that the copies may use.
    """
    largest = min(_MAX_COPY_BYTES, _align(memory_bytes / 8))
    return [largest // 16, largest // 4, largest]


def iterate_kinds(
    vendor: Vendor, device: Device, ranks: RankGroup, memory_bytes: float
) -> Iterator[tuple[CeilingKind, list[Candidate]]]:
    """Yield each kind and its candidates, of which there are none if the kind does not apply.

    A kind must be measured before the next one is taken: the device has its precision until then.

    Args:
        memory_bytes: that a rank may use, the same on all ranks.
    """
    product = device.describe()["name"]
    yield from _iterate_matmuls(vendor, device, product)
    copies = _build_candidates(
        partial(rates.prepare_copy, device),
        choose_copy_sizes(memory_bytes),
        factor=2,  # a copy reads and writes
    )
    bandwidth = find_peak(product, precision=None)  # None: of the memory, not of matmuls
    # The rate of the largest copy counts, even if a smaller one is faster: it may fit into a cache.
    yield CeilingKind(name="memory_copy", counts="largest", peak=bandwidth), copies
    yield from _iterate_transfers(device)
    yield from _iterate_collectives(device, ranks)


def _iterate_matmuls(
    vendor: Vendor, device: Device, product: str
) -> Iterator[tuple[CeilingKind, list[Candidate]]]:
    """Yield the matmuls of each precision, to which the device is switched.

    A precision that the device cannot use has no candidates.

    Args:
        product: name of the device's product, which has published peaks.
    """
    for precision in get_args(Precision):
        reason = try_precision(vendor, device, precision)
        kind = CeilingKind(
            name=f"matmul_{precision}", unit="FLOP/s", peak=find_peak(product, precision)
        )
        if reason is None:
            yield kind, build_matmul_candidates(device, precision, _SQUARES)
        else:
            kind.exclude(message("ceiling_precision", precision=precision), reason)
            yield kind, []


def _iterate_transfers(device: Device) -> Iterator[tuple[CeilingKind, list[Candidate]]]:
    """Yield the transfers between host and device in both directions."""
    for name, to_device in (("host_to_device", True), ("device_to_host", False)):
        prepare = partial(rates.prepare_transfer, device, to_device=to_device)
        kind = CeilingKind(name=name)
        # Tried with four bytes; a device that uses the host's memory has nothing to transfer.
        uses_host_memory = prepare(4) is None
        if uses_host_memory:
            kind.exclude(message("ceiling_host_memory"))
            yield kind, []
        else:
            yield kind, _build_candidates(prepare, _TRANSFERS)


def _iterate_collectives(
    device: Device, ranks: RankGroup
) -> Iterator[tuple[CeilingKind, list[Candidate]]]:
    """Yield the collectives of all ranks; one that cannot be used has no candidates."""
    for name, collective in COLLECTIVES.items():
        if ranks.count == 1:
            why: Message | None = message("ceiling_one_process")
        else:
            why = try_collective(device, ranks, name)
        if why is not None:
            kind = CeilingKind(name=name)
            kind.exclude(why)
            yield kind, []
            continue
        # Bytes on each rank's link for each exchanged byte: the rates are those of the links.
        factor = rates.get_bus_factor(name, ranks.count)
        prepare = partial(collective, device, ranks)
        kind = CeilingKind(name=name, bus_factor=factor)
        yield kind, _build_candidates(prepare, _COLLECTIVE_SIZES, factor)


def measure_ceilings(
    stop: StopRequest,
    *,
    device: str | None,
    nproc: int,
    budget_s: float,
    timeout_s: float,
) -> dict[str, Any]:
    """Measure, and return the document that docs/machine.md describes.

    Standard error shows what is being measured, and the errors of a failing rank.

    Args:
        stop: the measurement ends as soon as it holds a signal.
        device: a vendor's name; None: the first vendor that has a device here.
        nproc: number of ranks.
        budget_s: time of one kind, for example the matmuls of one precision.
        timeout_s: time of everything, after which the ranks are ended.

    Raises:
        UsageError, EnvironmentFault: it cannot be measured here; nothing was started.
        MeasurementError: a rank failed, the time was over, or a signal came.
    """
    vendor = devices.choose_vendor(device)
    # Ranks may share the CPU, each with a part of its cores. But more ranks than cores would
    # compete for them, and none would reach the ceiling. No case is trained, so any recipe does.
    refuse_unsuitable_device(vendor, Recipe(), nproc, ranks_share_cores=False)
    start_s = time.monotonic()
    run_id = secrets.token_hex(8)
    cpu_at_start = processes.CpuUse.read()
    setup = prepare_setup(vendor, nproc, run_id)
    refuse_unusable_network(setup.variables, vendor, world_size=nproc, master=LOOPBACK)
    arguments = {"device": vendor.name, "nproc": nproc, "budget_s": budget_s}
    document = {
        "schema": SCHEMA,
        "suite": {"name": "trainmark", "version": __version__},
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **arguments,
        # The cores of a CPU are divided among the ranks: the rates of a rank are those of its part.
        "shares_cores": vendor.torch_type == "cpu",
        "environment": setup.environment,
    }
    try:
        rank_results = _run_ranks(arguments, setup, stop, deadline=start_s + timeout_s)
    finally:
        processes.kill_run(run_id)  # ranks that still run, and what they have started
    if len(rank_results) != nproc:
        raise MeasurementError("a rank ended before it had measured anything")
    # Moved out of the ranks' results. All ranks have the same links, because the time of a message
    # is that of the slowest rank.
    for result in rank_results:
        document["links"] = result.pop("links")
    document["ranks"] = rank_results
    document["others_cpu_share"] = cpu_at_start.compute_others_share(processes.CpuUse.read())
    document["took_s"] = round(time.monotonic() - start_s, 3)
    return document


def _run_ranks(
    arguments: dict[str, Any], setup: Setup, stop: StopRequest, *, deadline: float
) -> list[dict[str, Any]]:
    """Start the ranks and return what each that ended well measured, in the order of the ranks.

    Args:
        arguments: of ``run_rank``, without the rank.
        deadline: value of ``time.monotonic`` at which the ranks must have ended.

    Raises:
        MeasurementError: a rank failed, the time was over, or a signal came.
    """
    command = build_module_command("trainmark.machine.ceilings", json.dumps(arguments))
    # Each rank writes a line of JSON to one file. The file has no name, so it is gone if this
    # process is killed.
    with tempfile.TemporaryFile() as results:
        with start_ranks(command, setup, output=results, errors=sys.stderr.fileno()) as ranks:
            _wait_for_ranks(ranks, stop, deadline=deadline)
        results.seek(0)
        return sorted(map(json.loads, results), key=lambda result: int(result["rank"]))


def _wait_for_ranks(ranks: Sequence[RankProcess], stop: StopRequest, *, deadline: float) -> None:
    """Wait until all ranks ended.

    Raises:
        MeasurementError: one failed, the time was over, or a signal came.
    """
    while True:
        time.sleep(POLL_S)
        exit_codes = [process.poll() for process in ranks]  # None: the rank has not ended
        if stop.signal_name is not None:
            raise MeasurementError(f"stopped by {stop.signal_name}")
        if None in exit_codes and time.monotonic() >= deadline:
            fix = "use a smaller --budget-s, or fewer ranks"
            raise MeasurementError("the ranks did not finish in time", fix=fix)
        if any(exit_codes):  # neither None nor 0; the others would wait for this rank
            fix = "see the output of the ranks above"
            raise MeasurementError(f"the ranks ended with exit codes {exit_codes}", fix=fix)
        if None not in exit_codes:
            return


def run_rank(rank: int, *, device: str, nproc: int, budget_s: float) -> dict[str, Any]:
    """Return everything that one rank measures; all ranks begin each size together.

    Args:
        rank: its number.
        device: the vendor's name.
        nproc: number of ranks.
        budget_s: time of one kind, for example the matmuls of one precision.
    """
    vendor = devices.choose_vendor(device)
    rank_device = vendor.open(rank, nproc)
    rank_memory = vendor.rank_memory(nproc)
    # The free memory if the vendor can read it without torch, else all memory of the device.
    total_bytes = rank_memory.rank_bytes if rank_memory else rank_device.memory().total_bytes
    if not total_bytes:
        total_bytes = _UNKNOWN_MEMORY_BYTES
    measurements = []
    # The default precision of recipes. Before ranks were started, it was checked that the device
    # can train such a recipe.
    rank_device.set_precision("fp32")
    rank_device.matmul_rate("fp32")  # refuses a device whose clock is wrong
    with RankGroup.join(vendor.collective_backend, rank_device, rank, nproc) as ranks:
        # All ranks use the smallest memory of any, so that they do the same work. Half of it,
        # because the memory of earlier work may not be free again yet.
        smallest_bytes = -ranks.find_max(-total_bytes)  # the minimum
        memory_bytes = smallest_bytes / 2
        for kind, candidates in iterate_kinds(vendor, rank_device, ranks, memory_bytes):
            # On all ranks or on none, because ``sweep`` waits for all ranks at each size.
            is_excluded_anywhere = ranks.find_max(float(kind.why is not None)) > 0
            if is_excluded_anywhere and kind.why is None:
                kind.exclude(message("ceiling_not_elsewhere"))
            if rank == 0:
                print(f"trainmark: {kind.name}", flush=True)
            points = sweep(
                rank_device,
                [] if is_excluded_anywhere else candidates,
                memory_bytes=memory_bytes,
                budget_ns=budget_s * 1e9,
                clock=ranks.read_clock,
                find_max=ranks.find_max,
                # A collective ends with its slowest rank; other work is timed on each rank.
                elapsed=ranks.measure_ns if kind.bus_factor else rates.measure_ns,
            )
            kind.set_points(points)
            measurements.append(asdict(kind))
        links = _measure_links(
            rank_device, ranks, memory_bytes=memory_bytes, budget_ns=budget_s * 1e9
        )
    return {
        "rank": rank,
        "device": rank_device.describe(),
        "links": links,
        "collectives": vendor.collective_library() if nproc > 1 else None,
        "measurements": measurements,
    }


def _measure_links(
    device: Device, ranks: RankGroup, *, memory_bytes: float, budget_ns: float
) -> dict[str, Any]:
    """Return the rate between each two ranks, or why there is none: ``links`` of the document.

    ``why`` is the reason as a message, ``reason`` the same as an English text.
    """
    if ranks.count == 1:
        why: Message | None = message("ceiling_one_process")
    else:
        why = try_collective(device, ranks, "send_receive")
    if why is not None:
        return {"reason": render(why, "en"), "why": asdict(why), "pairs": None}
    if ranks.rank == 0:
        print("trainmark: pairs of ranks", flush=True)
    # Large enough to fill a link, but a small part of the memory.
    filling_bytes = _CPU_LINK_BYTES if device.torch_type == "cpu" else _LINK_BYTES
    size_bytes = min(filling_bytes, _align(memory_bytes * _LINK_MEMORY_SHARE))
    pairs = measure_links(device, ranks, size_bytes=size_bytes, budget_ns=budget_ns)
    return {"reason": None, "why": None, "pairs": [asdict(pair) for pair in pairs]}


def main(arguments: dict[str, Any]) -> None:
    """Measure as the rank that the environment names, and write a line of JSON.

    Args:
        arguments: of ``run_rank``, without the rank.
    """
    results = os.dup(1)  # standard output
    os.dup2(2, 1)  # what libraries print goes to standard error
    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    result = run_rank(int(os.environ["RANK"]), **arguments)
    line = f"{json.dumps(result, allow_nan=False)}\n"
    os.write(results, line.encode())  # in one call, because ranks share the file


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    sys.stderr.flush()
    os._exit(0)  # as ``leave_ranks`` asks for
