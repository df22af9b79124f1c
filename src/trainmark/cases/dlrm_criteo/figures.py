"""Compute what the embedding tables move, and what the steps are bound by; no torch here.

Such a model has no headline MFU: its matmuls are a small part of the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.spec import Figure, Message, OwnFigures, message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.protocols import RankWork

# Parts of a step that the job times apart.
EMBEDDING_PART = "embedding"  # rows looked up, and updated
EXCHANGE_PART = "exchange"  # waiting for what other ranks send
# What a step is bound by where a part of it takes the longest.
RESOURCES = {
    "embedding_share": "memory",
    "dense_share": "compute",
    "exchange_share": "exchange",
    "input_share": "input",
}
_RATES = ("embedding_bytes_per_device", "copy_bytes_per_device", "exchange_bytes_per_device")
_NEAR_A_LIMIT = 20.0  # percent of it; below, what is short is not the resource
_NS_PER_S = 1e9


def compute(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return the figures of the tables and a note on what bounds the steps.

    All are over the windows after the warm-up, rates a device's, shares the ranks' mean.
    Empty if a rank ended before its job reported its facts.
    """
    if not all("copy_bytes_per_second" in rank.facts for rank in ranks):
        return OwnFigures({})
    computed = {"MFU": Figure(None, message("no_headline_mfu"))} | _compute_traffic(ranks)
    bound = find_bound({name: figure.value for name, figure in (dict(known) | computed).items()})
    return OwnFigures(computed, () if bound is None else (bound,))


def _compute_traffic(ranks: Sequence[RankWork]) -> dict[str, Figure]:
    slowest_s = max(rank.windows_ns for rank in ranks) / _NS_PER_S
    if slowest_s == 0:
        none = Figure(None, message("rank_without_measured_step"))
        return dict.fromkeys((*_RATES, *RESOURCES, "embedding_bandwidth_share"), none)
    samples, device_s = sum(rank.counts.samples for rank in ranks), len(ranks) * slowest_s
    moved = samples * ranks[0].facts["embedding_bytes_per_sample"]
    sent = samples * sum(rank.facts["exchanged_bytes_per_sample"] for rank in ranks)
    copied = sum(rank.facts["copy_bytes_per_second"] for rank in ranks) / len(ranks)
    total_ns, input_ns = (sum(rank.windows_ns for rank in ranks), sum(r.wait_ns for r in ranks))
    embedding_ns, exchange_ns = (
        sum(rank.parts_ns.get(part, 0) for rank in ranks)
        for part in (EMBEDDING_PART, EXCHANGE_PART)
    )
    dense_ns = total_ns - (embedding_ns + exchange_ns + input_ns)  # what no part claims
    figures = {
        "embedding_bytes_per_device": (moved / device_s, "embedding_bytes"),
        "copy_bytes_per_device": (copied, "copy_measured"),
        "exchange_bytes_per_device": (sent / device_s, "exchange_bytes"),
        "embedding_share": (100 * embedding_ns / total_ns, "embedding_time"),
        "exchange_share": (100 * exchange_ns / total_ns, "device_marks"),
        "input_share": (100 * input_ns / total_ns, "device_marks"),
        "dense_share": (100 * dense_ns / total_ns, "dense_time"),
    }
    traffic = {name: Figure(value, note=message(note)) for name, (value, note) in figures.items()}
    if len(ranks) == 1:
        traffic["exchange_share"] = Figure(None, message("one_rank_no_exchange"))
    bandwidth = Figure(None, message("embedding_untimed"))
    if embedding_ns:  # bytes/s within the embedding stage over those of a copy
        share = 100 * moved * _NS_PER_S / embedding_ns / copied
        bandwidth = Figure(share, note=message("embedding_bandwidth"))
    return traffic | {"embedding_bandwidth_share": bandwidth}


def find_bound(values: dict[str, float | None]) -> Message | None:
    """Say what the steps are bound by, and why; none where their parts are not known.

    Args:
        values: figures by name, shares in percent.
    """
    shares = {name: values.get(name) for name in RESOURCES}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return None
    largest = max(known, key=lambda name: known[name])
    overall, dense = values.get("MAMFU"), shares["dense_share"]
    # The products' rate within the dense part over the matmul rate, in percent.
    dense_rate = overall / (dense / 100) if overall is not None and dense else None
    embedding_rate = values.get("embedding_bandwidth_share")
    reached = {"embedding_share": embedding_rate, "dense_share": dense_rate}.get(largest)
    far = reached is not None and reached < _NEAR_A_LIMIT
    shares["exchange_share"] = shares["exchange_share"] or 0.0  # one rank exchanges nothing
    percents = shares | {"embedding_rate": embedding_rate, "dense_rate": dense_rate}
    return message(
        f"bound_by_{RESOURCES[largest]}{'_far_from_limit' if far else ''}",
        **{name: None if value is None else value / 100 for name, value in percents.items()},
    )
