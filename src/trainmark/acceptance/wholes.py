"""Judge all comparable nodes together, and groups among them, from the evidence of sets."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from trainmark.acceptance.groups import SetTimes, predict_parts, search_groups
from trainmark.acceptance.result import Finding, Interval, Whole
from trainmark.acceptance.tasks import STEP
from trainmark.acceptance.verdicts import slowest_of_team

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.acceptance.evidence import Evidence
    from trainmark.acceptance.groups import FoundGroup, GroupSearch, Parts, SlowShare, Team
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.acceptance.result import Code
    from trainmark.acceptance.verdicts import Assessment, Times


def judge_wholes(
    assessment: Assessment,
    evidence: Evidence,
    times: Times,
    comparable: Sequence[Sequence[str]],
    request: AcceptRequest,
) -> list[Team]:
    """Add what sets of nodes tell to an assessment; nodes that fail already take no part.

    Args:
        times: of a step, of nodes alone and in pairs.
        comparable: nodes of one product and software each.

    Returns:
        Disjoint sets that are to be measured next.
    """
    measured = collect_set_times(evidence)
    to_measure: list[Team] = []
    for names in comparable:
        passing = [name for name in names if not assessment.findings.get(name)]
        parts = _predict(assessment, times, passing)
        if parts is None:
            continue
        search = search_groups(
            passing, parts, measured, repeats=request.repeats, worse_by=request.worse_by
        )
        to_measure += search.to_measure
        if search.whole is not None or search.outcome not in ("as_predicted", "unfinished"):
            assessment.wholes.append(_whole(search, len(passing)))
        for group in search.groups:
            _blame(assessment, group)
    return to_measure


def collect_set_times(evidence: Evidence) -> SetTimes:
    """Return what was measured of sets: a set that failed, and never succeeded, has an error."""
    seconds: dict[Team, list[float]] = defaultdict(list)
    for (phase, _, members), results in evidence.results.items():
        if phase != "groups":
            continue
        num_ranks = sum(len(evidence.nodes[name].devices) for name in members)
        if len(results) == num_ranks:
            step_s = slowest_of_team(results, STEP)
            if step_s is not None:
                seconds[members].append(step_s)
    errors = {
        members: failure.error
        for (phase, _, members), failure in evidence.failures.items()
        if phase == "groups"
        and members not in seconds
        and failure.reason != "stopped"
        and failure.absent is None
    }
    return SetTimes(seconds=seconds, errors=errors)


def _predict(assessment: Assessment, times: Times, names: Sequence[str]) -> Parts | None:
    """Return what nodes alone and in pairs predict; None if they were not measured."""
    members = set(names)
    noises = [
        noise
        for quantity in assessment.quantities
        if quantity.name == STEP
        for noise in (quantity.noise, quantity.noise_of_pairs)
        if noise is not None
    ]
    if not noises:
        return None
    # Pairs of the later rounds: their devices are as hot as those of the whole.
    pairs = sorted(pair for pair in times.pairs if {pair[1], pair[2]} <= members)
    return predict_parts(
        [seconds for _, name, seconds in times.alone if name in members],
        [seconds for *_, seconds in pairs[-max(1, len(pairs) // 3) :]] if pairs else [],
        max(noises),
    )


def _interval(share: SlowShare | None) -> Interval | None:
    if share is None:
        return None
    return Interval(slower=share.slower, low=share.low, high=share.high)


def _whole(search: GroupSearch, num_members: int) -> Whole:
    return Whole(
        num_members=num_members,
        outcome=search.outcome,
        interval=_interval(search.whole),
        groups=tuple(group.members for group in search.groups),
        parts=search.parts,
    )


def _blame(assessment: Assessment, group: FoundGroup) -> None:
    """Give a finding to every member of a group."""
    code: Code = "group_failed" if group.share is None else "slow_group"
    for name in group.members:
        assessment.findings[name].append(
            Finding(
                code=code,
                quantity=STEP,
                interval=_interval(group.share),
                members=group.members,
                text=group.error,
            )
        )
