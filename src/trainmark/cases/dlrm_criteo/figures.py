"""Compute the traffic of the embedding tables and what limits the steps; no torch here.

This case reports no MFU as its headline figure, because matmuls are a small part of the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.spec import Figure, Message, OwnFigures, message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.protocols import RankWork

# Parts of a step that the job times separately.
EMBEDDING_PART = "embedding"  # looking up and updating rows
EXCHANGE_PART = "exchange"  # waiting for data from other ranks
# The resource that limits a step if this share of its time is the largest.
RESOURCES = {
    "embedding_share": "memory",
    "dense_share": "compute",
    "exchange_share": "exchange",
    "input_share": "input",
}
_RATES = ("embedding_bytes_per_device", "copy_bytes_per_device", "exchange_bytes_per_device")
# Percent of a resource's limit; below it, the resource itself is not what limits the step.
_MIN_PERCENT_NEAR_LIMIT = 20.0
_NS_PER_S = 1e9


def compute(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return the figures of the tables, the MFU (absent), and a note on what limits the steps.

    All figures cover the steps after the warm-up. Rates are per device, shares are means over
    the ranks. The result is empty if a rank ended before its job reported its facts.

    Args:
        known: the figures that every case has, by name.
    """
    if not all("copy_bytes_per_second" in rank.facts for rank in ranks):
        return OwnFigures({})
    # No MFU, because most of the work is look-ups, not matmuls.
    computed = {"MFU": Figure(None, message("no_headline_mfu"))} | _compute_traffic(ranks)
    all_figures = dict(known) | computed
    note = describe_limit({name: figure.value for name, figure in all_figures.items()})
    notes = () if note is None else (note,)
    return OwnFigures(computed, notes)


def _compute_traffic(ranks: Sequence[RankWork]) -> dict[str, Figure]:
    """Return bytes per second of tables, copies and exchange, and the shares of the step time.

    All are absent, with a reason, if no step was measured. Those that need the time of the parts
    are absent too if the events of the run have no times of parts.
    """
    # ``windows_ns`` is the time of a rank's steps after the warm-up, ``wait_ns`` the part of it in
    # which the rank waited for input.
    slowest_s = max(rank.windows_ns for rank in ranks) / _NS_PER_S
    if slowest_s == 0:
        absent = Figure(None, message("rank_without_measured_step"))
        # The names of all figures below: rates, then shares.
        return dict.fromkeys((*_RATES, *RESOURCES, "embedding_bandwidth_share"), absent)
    samples = sum(rank.counts.samples for rank in ranks)
    # Rates divide by this time of all devices together: the slowest rank's time counts for each, as
    # in the throughput. Shares divide by ``total_ns`` instead, because the parts of a rank's steps
    # were timed within its own windows.
    device_s = len(ranks) * slowest_s
    # This fact covers the tables of all ranks, so it is the same on every rank.
    embedding_bytes = samples * ranks[0].facts["embedding_bytes_per_sample"]
    # A rank's fact is the bytes that this rank sends for each sample of the global batch.
    exchanged_bytes = samples * sum(rank.facts["exchanged_bytes_per_sample"] for rank in ranks)
    # The rate of a large copy within a device's memory, for comparison with the embedding part.
    copy_rate = sum(rank.facts["copy_bytes_per_second"] for rank in ranks) / len(ranks)
    total_ns = sum(rank.windows_ns for rank in ranks)
    input_ns = sum(rank.wait_ns for rank in ranks)
    # ``parts_ns`` is the time of each part of the steps that the job times.
    embedding_ns = sum(rank.parts_ns.get(EMBEDDING_PART, 0) for rank in ranks)
    exchange_ns = sum(rank.parts_ns.get(EXCHANGE_PART, 0) for rank in ranks)
    dense_ns = total_ns - (embedding_ns + exchange_ns + input_ns)  # the rest of the time
    # Value of each figure, and the code of its note.
    figures = {
        "embedding_bytes_per_device": (embedding_bytes / device_s, "embedding_bytes"),
        "copy_bytes_per_device": (copy_rate, "copy_measured"),
        "exchange_bytes_per_device": (exchanged_bytes / device_s, "exchange_bytes"),
        "embedding_share": (100 * embedding_ns / total_ns, "embedding_time"),
        "exchange_share": (100 * exchange_ns / total_ns, "device_marks"),
        "input_share": (100 * input_ns / total_ns, "device_marks"),
        "dense_share": (100 * dense_ns / total_ns, "dense_time"),
    }
    traffic = {name: Figure(value, note=message(code)) for name, (value, code) in figures.items()}
    # Every step looks up rows, so this time is 0 only if the parts were not timed.
    if embedding_ns == 0:
        names = ("embedding_share", "exchange_share", "dense_share", "embedding_bandwidth_share")
        traffic |= dict.fromkeys(names, Figure(None, message("embedding_untimed")))
    else:
        # In percent: bytes per second within the embedding part alone, over those of a copy.
        share = 100 * embedding_bytes * _NS_PER_S / embedding_ns / copy_rate
        traffic["embedding_bandwidth_share"] = Figure(share, note=message("embedding_bandwidth"))
    if len(ranks) == 1:
        traffic["exchange_share"] = Figure(None, message("one_rank_no_exchange"))
    return traffic


def describe_limit(values: dict[str, float | None]) -> Message | None:
    """Return a message on the resource that limits the steps; None if that is not known.

    This is the resource of the part that takes the largest share of the time. If that part uses its
    resource at a rate far below the limit, the message says so.

    Args:
        values: figures by name, shares in percent.
    """
    shares = {name: values.get(name) for name in RESOURCES}
    # Without the time of the embedding part the rest, the dense part, is not known either. Then
    # another part may be larger than those that are known.
    if shares["embedding_share"] is None:
        return None
    known_shares = {name: share for name, share in shares.items() if share is not None}
    largest = max(known_shares, key=lambda name: known_shares[name])
    # The rate at which the embedding part uses memory, and that at which the dense part uses matmul
    # units, in percent of the device's rate; None: not known.
    embedding_rate = values.get("embedding_bandwidth_share")
    dense_rate = None
    # Matmul FLOPs per second of whole steps, in percent of the device's matmul rate.
    mamfu = values.get("MAMFU")
    dense_share = shares["dense_share"]
    if mamfu is not None and dense_share:
        # The matmuls run only in the dense part, which takes a share of the step's time.
        dense_rate = mamfu / (dense_share / 100)
    largest_rate = None  # of the largest part; not known for the exchange and the input
    if largest == "embedding_share":
        largest_rate = embedding_rate
    elif largest == "dense_share":
        largest_rate = dense_rate
    # A single rank exchanges nothing, so its share is None, but the message needs a number. It is
    # set only now, so that it is not among the known shares above.
    if shares["exchange_share"] is None:
        shares["exchange_share"] = 0.0
    percents = shares | {"embedding_rate": embedding_rate, "dense_rate": dense_rate}
    # The values in the message; its text formats fractions as percent.
    fractions = {
        name: None if percent is None else percent / 100 for name, percent in percents.items()
    }
    resource = RESOURCES[largest]
    if largest_rate is not None and largest_rate < _MIN_PERCENT_NEAR_LIMIT:
        return message(f"bound_by_{resource}_far_from_limit", **fractions)
    return message(f"bound_by_{resource}", **fractions)
