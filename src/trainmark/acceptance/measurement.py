"""What was measured in an acceptance, when and with which software, from the evidence."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timezone
from statistics import fmean
from typing import TYPE_CHECKING

from trainmark.acceptance.result import MeasurementFacts

if TYPE_CHECKING:
    from trainmark.acceptance.evidence import Evidence, Phase


def describe_measurement(evidence: Evidence) -> MeasurementFacts:
    """Return what all sessions of an acceptance measured, and when.

    Sessions without a round do not count: they only judged again what others had measured.
    """
    spans = [
        (session, span.joined_s, span.last_round_s)
        for (session, _), span in evidence.spans.items()
        if span.last_round_s is not None
    ]
    # Clocks of nodes are never compared, so a session takes as long as its slowest node.
    duration_of_session: dict[int, float] = defaultdict(float)
    for session, joined_s, last_round_s in spans:
        duration_s = last_round_s - joined_s
        duration_of_session[session] = max(duration_of_session[session], duration_s)
    round_numbers: dict[Phase, set[int]] = defaultdict(set)
    for phase, number, _ in evidence.results:
        round_numbers[phase].add(number)
    return MeasurementFacts(
        started=_format_utc(min(joined_s for _, joined_s, _ in spans)) if spans else None,
        ended=_format_utc(max(last_round_s for *_, last_round_s in spans)) if spans else None,
        duration_s=sum(duration_of_session.values()),
        sessions=len(duration_of_session),
        rounds={phase: len(numbers) for phase, numbers in round_numbers.items()},
        devices=sum(len(joined.devices) for joined in evidence.nodes.values()),
        software=_find_common_software(evidence),
        others_cpu_share=_average_others_cpu_share(evidence),
    )


def _format_utc(unix_s: float) -> str:
    """Return a time in seconds since 1970 as UTC, ISO 8601, without fractions of a second."""
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat(timespec="seconds")


def _average_others_cpu_share(evidence: Evidence) -> dict[str, float]:
    """Return the share of each node's cores that other programs used, as the mean of its rounds."""
    shares_of_node: dict[str, list[float]] = defaultdict(list)
    for (node, _, _), share in evidence.others_cpu_shares.items():
        shares_of_node[node].append(share)
    return {node: fmean(shares) for node, shares in shares_of_node.items()}


def _find_common_software(evidence: Evidence) -> dict[str, str]:
    """Return the versions, by package, of the packages that all nodes have in the same version."""
    versions_by_node = [joined.software for joined in evidence.nodes.values()]
    if not versions_by_node:
        return {}
    return {
        name: version
        for name, version in versions_by_node[0].items()
        # None: the package, or the driver, is not there.
        if version is not None and all(other.get(name) == version for other in versions_by_node)
    }
