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
_FACTS = ("embedding_bytes_per_sample", "exchanged_bytes_per_sample", "copy_bytes_per_second")
_NEAR_A_LIMIT = 20.0  # percent of it; below, what is short is not the resource
_NS_PER_S = 1e9


def compute(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return the figures of the tables and a note on what bounds the steps.

    All are over the windows after the warm-up, rates a device's, shares the ranks' mean.
    Empty if a rank ended before its job reported its facts.
    """
    if not all(_tells(rank) for rank in ranks):
        return OwnFigures({})
    found = {"MFU": Figure(None, message("no_headline_mfu"))} | _traffic(ranks)
    values = {name: figure.value for name, figure in (dict(known) | found).items()}
    bound = bound_by(values)
    return OwnFigures(found, () if bound is None else (bound,))


def _tells(rank: RankWork) -> bool:
    """Tell whether a rank's job said how many bytes it moves, and how fast it could copy them."""
    told = [rank.facts.get(name) for name in _FACTS]
    amounts = [value for value in told if isinstance(value, int | float) and 0 <= value <= 1e100]
    return len(amounts) == len(_FACTS) and amounts[-1] > 0


def _traffic(ranks: Sequence[RankWork]) -> dict[str, Figure]:
    slowest_s = max(rank.windows_ns for rank in ranks) / _NS_PER_S
    if slowest_s == 0:
        reason = message("rank_without_measured_step")
        return {
            name: Figure(None, reason)
            for name in (*_RATES, *RESOURCES, "embedding_bandwidth_share")
        }
    samples = sum(rank.counts.samples for rank in ranks)
    moved = samples * ranks[0].facts["embedding_bytes_per_sample"]
    sent = samples * sum(rank.facts["exchanged_bytes_per_sample"] for rank in ranks)
    copied = sum(rank.facts["copy_bytes_per_second"] for rank in ranks) / len(ranks)
    return {
        "embedding_bytes_per_device": Figure(
            moved / len(ranks) / slowest_s, note=message("embedding_bytes")
        ),
        "copy_bytes_per_device": Figure(copied, note=message("copy_measured")),
        "exchange_bytes_per_device": Figure(
            sent / len(ranks) / slowest_s, note=message("exchange_bytes")
        ),
        **_shares(ranks),
        "embedding_bandwidth_share": _bandwidth(ranks, moved, copied),
    }


def _shares(ranks: Sequence[RankWork]) -> dict[str, Figure]:
    """Return the share of the steps' time in each part; what no part claims is dense."""
    total_ns = sum(rank.windows_ns for rank in ranks)
    embedding_ns, exchange_ns = _part_ns(ranks, EMBEDDING_PART), _part_ns(ranks, EXCHANGE_PART)
    input_ns = sum(rank.wait_ns for rank in ranks)
    dense_ns = total_ns - (embedding_ns + exchange_ns + input_ns)
    shares = {
        "embedding_share": Figure(100 * embedding_ns / total_ns, note=message("embedding_time")),
        "exchange_share": Figure(100 * exchange_ns / total_ns, note=message("device_marks")),
        "input_share": Figure(100 * input_ns / total_ns, note=message("device_marks")),
        "dense_share": Figure(100 * dense_ns / total_ns, note=message("dense_time")),
    }
    if len(ranks) == 1:
        shares["exchange_share"] = Figure(None, message("one_rank_no_exchange"))
    return shares


def _part_ns(ranks: Sequence[RankWork], name: str) -> int:
    return sum(rank.parts_ns.get(name, 0) for rank in ranks)


def _bandwidth(ranks: Sequence[RankWork], moved: float, copied: float) -> Figure:
    """Return the bytes/s within the embedding stage over those of a copy."""
    spent_ns = _part_ns(ranks, EMBEDDING_PART)
    if spent_ns == 0:
        return Figure(None, message("embedding_untimed"))
    share = 100 * moved * _NS_PER_S / spent_ns / copied
    return Figure(share, note=message("embedding_bandwidth"))


def bound_by(values: dict[str, float | None]) -> Message | None:
    """Say what the steps are bound by, and why; none where their parts are not known.

    Args:
        values: figures by name, shares in percent.
    """
    shares = {name: values.get(name) for name in RESOURCES}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return None
    largest = max(known, key=lambda name: known[name])
    embedding_rate, dense_rate = values.get("embedding_bandwidth_share"), _dense_rate(values)
    reached = {"embedding_share": embedding_rate, "dense_share": dense_rate}.get(largest)
    far = reached is not None and reached < _NEAR_A_LIMIT
    shares["exchange_share"] = shares["exchange_share"] or 0.0  # one rank exchanges nothing
    percents = shares | {"embedding_rate": embedding_rate, "dense_rate": dense_rate}
    return message(
        f"bound_by_{RESOURCES[largest]}{'_far_from_limit' if far else ''}",
        **{name: None if value is None else value / 100 for name, value in percents.items()},
    )


def _dense_rate(values: dict[str, float | None]) -> float | None:
    """Return the products' rate within the dense part over the matmul rate, in percent."""
    overall, share = values.get("MAMFU"), values.get("dense_share")
    return overall / (share / 100) if overall is not None and share else None
