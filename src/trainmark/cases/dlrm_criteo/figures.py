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
# The resource that limits a step if the given part of it takes longest.
RESOURCES = {
    "embedding_share": "memory",
    "dense_share": "compute",
    "exchange_share": "exchange",
    "input_share": "input",
}
_RATES = ("embedding_bytes_per_device", "copy_bytes_per_device", "exchange_bytes_per_device")
_NEAR_A_LIMIT = 20.0  # percent; below it, the resource itself is not what limits the step
_NS_PER_S = 1e9


def compute(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return the figures of the tables and a note on what limits the steps.

    All figures cover the windows after the warm-up. Rates are per device, shares are means over
    the ranks. The result is empty if a rank ended before its job reported its facts.
    """
    if not all("copy_bytes_per_second" in rank.facts for rank in ranks):
        return OwnFigures({})
    computed = {"MFU": Figure(None, message("no_headline_mfu"))} | _compute_traffic(ranks)
    all_figures = dict(known) | computed
    bound = find_bound({name: figure.value for name, figure in all_figures.items()})
    return OwnFigures(computed, () if bound is None else (bound,))


def _compute_traffic(ranks: Sequence[RankWork]) -> dict[str, Figure]:
    """Return bytes per second of tables, copies and exchange, and the shares of the step time."""
    slowest_s = max(rank.windows_ns for rank in ranks) / _NS_PER_S
    if slowest_s == 0:
        absent = Figure(None, message("rank_without_measured_step"))
        return dict.fromkeys((*_RATES, *RESOURCES, "embedding_bandwidth_share"), absent)
    samples = sum(rank.counts.samples for rank in ranks)
    device_s = len(ranks) * slowest_s
    embedding_bytes = samples * ranks[0].facts["embedding_bytes_per_sample"]
    exchanged_bytes = samples * sum(rank.facts["exchanged_bytes_per_sample"] for rank in ranks)
    copy_rate = sum(rank.facts["copy_bytes_per_second"] for rank in ranks) / len(ranks)
    total_ns = sum(rank.windows_ns for rank in ranks)
    input_ns = sum(rank.wait_ns for rank in ranks)
    embedding_ns = sum(rank.parts_ns.get(EMBEDDING_PART, 0) for rank in ranks)
    exchange_ns = sum(rank.parts_ns.get(EXCHANGE_PART, 0) for rank in ranks)
    dense_ns = total_ns - (embedding_ns + exchange_ns + input_ns)  # the rest of the time
    figures = {
        "embedding_bytes_per_device": (embedding_bytes / device_s, "embedding_bytes"),
        "copy_bytes_per_device": (copy_rate, "copy_measured"),
        "exchange_bytes_per_device": (exchanged_bytes / device_s, "exchange_bytes"),
        "embedding_share": (100 * embedding_ns / total_ns, "embedding_time"),
        "exchange_share": (100 * exchange_ns / total_ns, "device_marks"),
        "input_share": (100 * input_ns / total_ns, "device_marks"),
        "dense_share": (100 * dense_ns / total_ns, "dense_time"),
    }
    traffic = {name: Figure(value, note=message(note)) for name, (value, note) in figures.items()}
    if len(ranks) == 1:
        traffic["exchange_share"] = Figure(None, message("one_rank_no_exchange"))
    bandwidth = Figure(None, message("embedding_untimed"))
    if embedding_ns:  # bytes/s within the embedding part over those of a copy
        share = 100 * embedding_bytes * _NS_PER_S / embedding_ns / copy_rate
        bandwidth = Figure(share, note=message("embedding_bandwidth"))
    return traffic | {"embedding_bandwidth_share": bandwidth}


def find_bound(values: dict[str, float | None]) -> Message | None:
    """Return a message on what limits the steps, and why; None if no share is known.

    Args:
        values: figures by name, shares in percent.
    """
    shares = {name: values.get(name) for name in RESOURCES}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return None
    largest = max(known, key=lambda name: known[name])
    mamfu, dense_share = values.get("MAMFU"), shares["dense_share"]
    # The rate of matmuls within the dense part over the device's matmul rate, in percent.
    dense_rate = mamfu / (dense_share / 100) if mamfu is not None and dense_share else None
    embedding_rate = values.get("embedding_bandwidth_share")
    rate = {"embedding_share": embedding_rate, "dense_share": dense_rate}.get(largest)
    is_far_from_limit = rate is not None and rate < _NEAR_A_LIMIT
    shares["exchange_share"] = shares["exchange_share"] or 0.0  # one rank exchanges nothing
    percents = shares | {"embedding_rate": embedding_rate, "dense_rate": dense_rate}
    return message(
        f"bound_by_{RESOURCES[largest]}{'_far_from_limit' if is_far_from_limit else ''}",
        **{name: None if value is None else value / 100 for name, value in percents.items()},
    )
