"""How the ranks of a run differ: which is slow, throttled or hot."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

from trainmark.pages import cells
from trainmark.pages.document import Strip
from trainmark.pages.texts import Phrase, Tone, has_cards, join, phrase
from trainmark.record.findings import SLOW_SHARE, find_throttling_shares
from trainmark.results.store.columns import get_device_name

if TYPE_CHECKING:
    from trainmark.record.record import Record
    from trainmark.telemetry.summary import IntervalName

_MAX_NAMED_RANKS = 4


def collect_throttled_shares(record: Record, interval: IntervalName) -> dict[int, float]:
    """Return for what share of an interval each throttled device had lowered clocks.

    Args:
        interval: ``run``, until the last rank ends, or ``measured``, the training after its
            warm-up.

    Returns:
        The share by the number of the first rank that uses the device. A device whose clocks were
        never lowered is left out.
    """
    # By the first rank of each throttled device, then by reason. Each has a reason: a device whose
    # clocks were never lowered is not in it.
    shares = find_throttling_shares(record.telemetry, interval)
    # Several reasons may apply at once, so their shares cannot be added.
    return {rank: max(reasons.values()) for rank, reasons in shares.items()}


class SlowRank(NamedTuple):
    """A rank that is slower than others.

    ``excess``: by how much its step is longer than that of the median rank, as a share of the
    latter.
    """

    rank: int
    excess: float


def read_slow_rank(record: Record) -> SlowRank | None:
    """Return the rank that a finding of the record calls slow; None without such a finding.

    A finding is a message about the launch that was computed from its measurements.
    """
    for finding in record.findings:
        if finding.code == "slow_rank":
            # A record that Trainmark did not write may have other arguments.
            match finding.args:
                # `share`: of the median rank's step, by which the slow rank's step is longer.
                case {"rank": int(rank), "share": float(share)}:
                    return SlowRank(rank, excess=share)
    return None


def build_rank_strip(record: Record) -> Strip | None:
    """Return a cell for each rank, by node, and a sentence on the ranks that stand out.

    The tone of a cell, by which it is coloured, is "bad" for a slow rank and "warn" for a throttled
    rank or one that did not finish. Hovering over a cell shows the median time of the rank's steps.
    None for one rank, and if the record has nothing about ranks.
    """
    if record.plan.world_size < 2 or not record.ranks:
        return None
    slowest = read_slow_rank(record)  # None: no finding calls a rank slow
    # A key for each device whose clocks were lowered: its first rank.
    throttled_ranks = collect_throttled_shares(record, "measured")
    cells_by_node: dict[int, list[tuple[Tone, Phrase]]] = {}
    for entry in record.ranks:
        tone: Tone = "plain"
        if slowest and entry.rank == slowest.rank:
            tone = "bad"
        elif entry.rank in throttled_ranks or not entry.finished:
            tone = "warn"
        step = cells.NOTHING if entry.step_ns is None else f"{entry.step_ns / 1e6:.4g} ms"
        hover = f"rank {entry.rank}, {get_device_name(record)}: {step}"
        node = entry.rank // record.plan.nproc  # a node has `nproc` ranks
        cells_by_node.setdefault(node, []).append((tone, hover))
    remarks = join(_list_rank_remarks(record), "semicolon")
    return Strip(phrase("strip.title"), tuple(map(tuple, cells_by_node.values())), remarks)


def _list_rank_remarks(record: Record) -> list[Phrase]:
    """Return remarks on the slowest rank, the throttled ones and the hottest, as far as known.

    If no finding calls a rank slow, the first remarks say how far the slowest is from the median.
    """
    # `excess`: by how much its step is longer than the median rank's, as a share of the latter.
    slowest = read_slow_rank(record)
    # The share of the time after the warm-up with lowered clocks, by rank.
    measured_shares = collect_throttled_shares(record, "measured")
    remarks: list[Phrase] = []
    if slowest:
        share = f"{slowest.excess:+.0%}"
        remarks.append(phrase("strip.slowest", rank=slowest.rank, share=share))
    else:
        remarks += _describe_step_differences(record)
    if measured_shares:
        worst = max(measured_shares, key=measured_shares.__getitem__)
        share = f"{measured_shares[worst]:.0%}"
        remarks.append(phrase("strip.throttled", rank=worst, share=share))
    run_shares = collect_throttled_shares(record, "run")  # of the whole run, warm-up included
    # Ranks that were throttled only before the measured steps or after them.
    throttled_outside = [str(rank) for rank in run_shares if rank not in measured_shares]
    if throttled_outside:
        names: list[Phrase] = [*throttled_outside[:_MAX_NAMED_RANKS]]
        if len(throttled_outside) > _MAX_NAMED_RANKS:
            names.append(phrase("strip.more_ranks", n=len(throttled_outside) - _MAX_NAMED_RANKS))
        remarks.append(phrase("strip.outside", ranks=join(names)))
    hottest = _find_hottest_rank(record)
    if hottest:
        rank, celsius = hottest
        remarks.append(phrase("strip.hottest", rank=rank, celsius=f"{celsius:.0f}"))
    return remarks


def _describe_step_differences(record: Record) -> list[Phrase]:
    """Return how much slower the slowest rank is than the median, and why that may mean nothing.

    It is for a record without a finding of a slow rank.
    """
    # Of each rank the median time of its measured steps; a rank that measured none has no time.
    steps_ns = [rank_entry.step_ns for rank_entry in record.ranks if rank_entry.step_ns]
    if len(steps_ns) < 2:
        return [phrase("strip.no_steps")]
    # Of two ranks, median_low takes the faster one, with which the slower one is compared.
    excess = max(steps_ns) / median_low(steps_ns) - 1
    parts: list[Phrase] = [phrase("strip.spread", share=f"{excess:.1%}")]
    # A rank above the threshold SLOW_SHARE has no finding only if ranks were not searched for slow
    # ones: there are more ranks than cores ("oversubscribed"), or the measured time was too short.
    # The text of this part says the latter.
    if excess > SLOW_SHARE and "oversubscribed" not in record.plan.labels:
        parts.append(phrase("strip.not_compared"))
    if not has_cards(record):  # the ranks have no devices of their own
        parts.append(phrase("strip.shared_cores"))
    return parts


def _find_hottest_rank(record: Record) -> tuple[int, float] | None:
    """Return the rank with the hottest device in the training, and how hot it was in °C.

    None if fewer than two devices that are used by ranks report temperatures.
    """
    if record.telemetry is None:
        return None
    readings = []
    for device in record.telemetry.devices:
        use = device.over.get("train")  # what was read of the device during the training
        if device.ranks and use is not None and "temperature_c" in use.quantities:
            # One rank stands for all that share the device.
            readings.append((use.quantities["temperature_c"].highest, device.ranks[0]))
    if len(readings) < 2:
        return None
    celsius, rank = max(readings)  # by the temperature
    return rank, celsius
