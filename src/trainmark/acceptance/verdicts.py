"""Decide which members pass: from the evidence of all nodes to one ``AcceptanceResult``.

Members are the devices of one machine, or nodes. They are compared with members of the same
product and software alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.bits import compare_devices
from trainmark.acceptance.judgement import (
    Cause,
    Judgement,
    LinkVerdicts,
    Measurements,
    NodeVerdicts,
    Verdict,
)
from trainmark.acceptance.model import judge, pairs_to_measure_again
from trainmark.acceptance.result import (
    Bits,
    Doubt,
    Finding,
    Interval,
    Link,
    Member,
    Quantity,
    Whole,
)
from trainmark.acceptance.tasks import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.acceptance.evidence import Evidence
    from trainmark.acceptance.model import Baseline
    from trainmark.acceptance.result import Code, Decision
    from trainmark.acceptance.tasks import RankResult

    FindBaseline = Callable[[str, str], Baseline | None]  # of a product and a quantity

_CODES: dict[Cause, Code] = {
    Cause.NODE: "slow",
    Cause.NETWORK: "slow_network",
    Cause.GROUP: "slow_group",
    Cause.HOT: "slow_hot",
    Cause.UNKNOWN: "slow_unknown",
}
_MAX_NAMED = 4  # members of a team
_DECISIONS: dict[Verdict, Decision] = {
    Verdict.PASS: "pass",
    Verdict.SLOW: "fail",
    Verdict.UNDECIDED: "undecided",
}


@dataclass(slots=True, kw_only=True)
class Assessment:
    """What is known of the members so far, by name.

    Args:
        products: product name of each member.
        findings: reasons to exclude a member.
        links: every link that was judged; bad ones also have a finding on one of their ends.
    """

    products: dict[str, str]
    findings: dict[str, list[Finding]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[str, Interval] = field(default_factory=dict)
    doubts: dict[str, tuple[Doubt, int | None]] = field(default_factory=dict)
    decided: set[str] = field(default_factory=set)
    step_s: dict[str, float] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    bits: list[Bits] = field(default_factory=list)
    quantities: list[Quantity] = field(default_factory=list)
    wholes: list[Whole] = field(default_factory=list)

    def members(self) -> list[Member]:
        """Return each member with its decision."""
        self._exclude_one_end_of_links()
        return [self._member(name) for name in self.products]

    def _exclude_one_end_of_links(self) -> None:
        """Give a finding to one end of each bad link: the one with most bad links.

        To exclude one end is enough; none more if an end fails already.
        """
        bad = [link for link in self.links if link.decision == "fail"]
        counts = Counter(name for link in bad for name in link.members)
        order = {name: place for place, name in enumerate(self.products)}
        for link in sorted(bad, key=lambda link: -max(counts[name] for name in link.members)):
            if any(self.findings.get(name) for name in link.members):
                continue
            name = max(link.members, key=lambda name: (counts[name], -order[name]))
            self.findings[name].append(
                Finding(
                    code="slow_link",
                    quantity=link.quantity,
                    interval=link.interval,
                    members=link.members,
                )
            )

    def _member(self, name: str) -> Member:
        findings = tuple(dict.fromkeys(self.findings.get(name, [])))
        doubt, more_rounds = self.doubts.get(name, (None, None))
        decision: Decision = "pass"
        if findings:
            decision, doubt, more_rounds = "fail", None, None
        elif doubt is not None:
            decision = "undecided"
        elif name not in self.decided:
            decision, doubt = "undecided", "not_measured"
        return Member(
            name=name,
            product=self.products[name],
            decision=decision,
            findings=findings,
            step=self.steps.get(name),
            step_s=self.step_s.get(name),
            doubt=doubt,
            more_rounds=more_rounds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of one quantity, each with its round: of members alone, and of pairs."""

    alone: list[tuple[int, str, float]]
    pairs: list[tuple[int, str, str, float]]

    def measurements(self, names: Sequence[str]) -> Measurements:
        """Return the arrays of the members ``names``, which are numbered in this order."""
        number = {name: place for place, name in enumerate(names)}
        alone = [
            (number[name], round_number, seconds)
            for round_number, name, seconds in self.alone
            if name in number
        ]
        pairs = [
            (*sorted((number[first], number[second])), round_number, seconds)
            for round_number, first, second, seconds in self.pairs
            if first in number and second in number
        ]
        alone_node, alone_round, alone_s = _columns(alone, 3)
        first, second, pair_round, pair_s = _columns(pairs, 4)
        return Measurements(
            num_nodes=len(names),
            alone_node=alone_node.astype(np.int64),
            alone_round=alone_round.astype(np.int64),
            alone_s=alone_s,
            first=first.astype(np.int64),
            second=second.astype(np.int64),
            pair_round=pair_round.astype(np.int64),
            pair_s=pair_s,
        )


def _columns(rows: Sequence[Sequence[float]], count: int) -> list[np.ndarray]:
    return list(np.array(rows, float).reshape(-1, count).T)


def collect_times(evidence: Evidence, alone_phase: str) -> dict[str, Times]:
    """Return the times of each quantity.

    Of a team the slowest rank counts. Of the windows of a round the median counts: they are of one
    process and one moment, so that they do not tell the noise from round to round.

    Args:
        alone_phase: in which members were measured alone: ``devices`` or ``nodes``.
    """
    times: dict[str, Times] = {}
    for (phase, round_number, members), results in evidence.results.items():
        for quantity in _common_quantities(results):
            of_quantity = times.setdefault(quantity, Times(alone=[], pairs=[]))
            seconds = _slowest_rank_s(results, quantity)
            if phase == alone_phase and len(members) == 1:
                of_quantity.alone.append((round_number, members[0], seconds))
            elif phase == "pairs":
                first, second = members
                of_quantity.pairs.append((round_number, first, second, seconds))
    return times


def _slowest_rank_s(results: Sequence[RankResult], quantity: str) -> float:
    """Return the median over the windows of a round, in each of which the slowest rank counts."""
    of_windows = zip(*(result.seconds[quantity] for result in results), strict=True)
    return float(median(max(of_ranks) for of_ranks in of_windows))


def slowest_of_team(results: Sequence[RankResult], quantity: str) -> float | None:
    """Return the time of a team in a round; None unless all its ranks measured it."""
    if quantity not in _common_quantities(results):
        return None
    return _slowest_rank_s(results, quantity)


def _common_quantities(results: Sequence[RankResult]) -> list[str]:
    """Return the quantities that all ranks measured, the same number of times."""
    return [
        name
        for name, repeats in results[0].seconds.items()
        if all(len(result.seconds.get(name, [])) == len(repeats) > 0 for result in results)
    ]


def judge_times(
    assessment: Assessment,
    times: dict[str, Times],
    groups: Sequence[Sequence[str]],
    *,
    worse_by: float,
    rates_worse_by: float,
    find_baseline: FindBaseline | None = None,
) -> list[tuple[str, str]]:
    """Judge every quantity within each group of comparable members.

    Only the training step decides whether a member is undecided: other quantities can only make
    it fail.

    Args:
        find_baseline: returns the baseline of a product and a quantity; None: there is none.

    Returns:
        The pairs that are to be measured again, each as often as that.
    """
    again: Counter[tuple[str, str]] = Counter()
    for name in assessment.products:
        seconds = [s for _, of, s in times[STEP].alone if of == name] if STEP in times else []
        if seconds:
            assessment.step_s[name] = median(seconds)
    for quantity, of_quantity in sorted(times.items()):
        limit = worse_by if quantity == STEP else rates_worse_by
        for names in groups:
            measured = of_quantity.measurements(names)
            baseline = None
            if find_baseline is not None:
                baseline = find_baseline(assessment.products[names[0]], quantity)
            if len(names) < 2 and baseline is None:
                if quantity == STEP:
                    assessment.doubts[names[0]] = ("no_peers", None)
                continue
            if len(measured.alone_s) + len(measured.pair_s) == 0:
                continue
            judgement = judge(
                measured, worse_by=limit, error_rate=0.01 / len(times), baseline=baseline
            )
            _note_nodes(assessment, judgement, names, quantity)
            _note_links(assessment, judgement, names, quantity)
            again |= Counter((names[a], names[b]) for a, b in pairs_to_measure_again(judgement))
            assessment.quantities.append(_quantity(quantity, limit, judgement))
    return list(again.elements())


def _note_nodes(
    assessment: Assessment, judgement: Judgement, names: Sequence[str], quantity: str
) -> None:
    nodes = judgement.nodes
    for place, name in enumerate(names):
        interval = _interval(nodes, place)
        if interval is None:
            if quantity == STEP and isfinite(nodes.slower[place]):
                assessment.doubts[name] = ("too_few_rounds", None)
            continue
        cause = nodes.cause[place]
        if cause is not None:
            group = np.flatnonzero(nodes.group == nodes.group[place])
            members = [names[int(member)] for member in group] if cause is Cause.GROUP else []
            assessment.findings[name].append(
                Finding(
                    code=_CODES[cause], quantity=quantity, interval=interval, members=tuple(members)
                )
            )
        if quantity == STEP:
            assessment.steps[name] = interval
            assessment.decided.add(name)
            if nodes.verdict[place] is Verdict.UNDECIDED:
                more = int(nodes.more_rounds[place])
                assessment.doubts[name] = ("interval", more if more > 0 else None)


def _interval(verdicts: NodeVerdicts | LinkVerdicts, place: int) -> Interval | None:
    """Return an interval; None if something was not measured, or too seldom to tell its noise."""
    slower, low, high = (
        float(values[place]) for values in (verdicts.slower, verdicts.low, verdicts.high)
    )
    if not isfinite(slower) or not isfinite(high):
        return None
    return Interval(slower=slower, low=low, high=high)


def _note_links(
    assessment: Assessment, judgement: Judgement, names: Sequence[str], quantity: str
) -> None:
    links = judgement.links
    for place, verdict in enumerate(links.verdict):
        interval = _interval(links, place)
        if interval is None:
            continue
        assessment.links.append(
            Link(
                members=(names[links.first[place]], names[links.second[place]]),
                quantity=quantity,
                decision=_DECISIONS[verdict],
                interval=interval,
                rounds=int(links.rounds[place]),
            )
        )


def _quantity(name: str, limit: float, judgement: Judgement) -> Quantity:
    detectable = judgement.links.detectable
    return Quantity(
        name=name,
        worse_by=limit,
        noise=judgement.noise_alone,
        noise_of_pairs=judgement.noise_pairs,
        trend=judgement.trend,
        detectable_link=detectable if isfinite(detectable) else None,
    )


def judge_bits(
    assessment: Assessment, evidence: Evidence, owner: dict[str, str], groups: Sequence[set[str]]
) -> None:
    """Compare the control trainings of the devices of each group, bit by bit.

    Args:
        owner: the member to which each device belongs: itself, or its node.
        groups: devices of one product and software.
    """
    trainings = {
        members[0]: results[0].trainings
        for (phase, _, members), results in evidence.results.items()
        if phase == "devices" and results[0].trainings
    }
    for devices in groups:
        of_group = {name: runs for name, runs in trainings.items() if name in devices}
        compared = compare_devices(of_group)
        products = {assessment.products[owner[name]] for name in devices}
        assessment.bits.append(
            Bits(
                product=" + ".join(sorted(products)),
                control=compared.control,
                devices=sum(bool(runs) for runs in of_group.values()),
            )
        )
        for deviation in compared.deviations:
            tensor = f" of {deviation.tensor}" if deviation.tensor else ""
            text = f"{deviation.device}: {deviation.part}{tensor} in step {deviation.step}"
            assessment.findings[owner[deviation.device]].append(
                Finding(code="computes_differently", members=(deviation.compared_with,), text=text)
            )
        for name in compared.unclear:
            assessment.doubts.setdefault(owner[name], ("differs_without_majority", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _BadRound:
    """A round of a team that failed, or whose results were wrong."""

    phase: str
    members: tuple[str, ...]
    code: Code
    text: str
    quantity: str | None = None


def note_bad_rounds(assessment: Assessment, evidence: Evidence, owner: dict[str, str]) -> list[str]:
    """Blame members for rounds that failed, or whose results were wrong.

    Args:
        owner: the member to which each device and node belongs.

    Returns:
        What was not measured, in words.
    """
    bad = [*_wrong_rounds(evidence), *_failed_rounds(evidence)]
    for bad_round in bad:
        owners = {owner.get(name, name) for name in bad_round.members}
        if bad_round.phase != "pairs" and len(owners) == 1:
            finding = Finding(code=bad_round.code, quantity=bad_round.quantity, text=bad_round.text)
            assessment.findings[owners.pop()].append(finding)
    _blame_bad_pairs(
        assessment, evidence, [bad_round for bad_round in bad if bad_round.phase == "pairs"]
    )
    return [
        f"{phase}, round {number + 1}, {_team_text(members)}: {failure.error}"
        for (phase, number, members), failure in evidence.failures.items()
    ]


def _team_text(members: Sequence[str]) -> str:
    """Return the names of a team; of a large one the first, the last and their number."""
    if len(members) <= _MAX_NAMED:
        return " and ".join(members)
    return f"{members[0]} to {members[-1]} ({len(members)} members)"


def _wrong_rounds(evidence: Evidence) -> list[_BadRound]:
    return [
        _BadRound(phase=phase, members=members, code="wrong_result", text=text, quantity=quantity)
        for (phase, _, members), results in evidence.results.items()
        for result in results
        for quantity, text in result.faults.items()
    ]


def _failed_rounds(evidence: Evidence) -> list[_BadRound]:
    """Return the rounds that failed by themselves.

    What a signal stopped blames nobody, and where a node did not come its partner is not at fault.
    """
    return [
        _BadRound(
            phase=phase,
            members=members,
            text=failure.error,
            code="no_answer" if failure.reason == "deadline" else "failed",
        )
        for (phase, _, members), failure in evidence.failures.items()
        if failure.reason != "stopped" and failure.absent is None
    ]


def _blame_bad_pairs(assessment: Assessment, evidence: Evidence, bad: Sequence[_BadRound]) -> None:
    """Blame for bad pairs the members most of whose pairs are bad; else one end of the link."""
    pairs = [
        members for phase, _, members in (*evidence.results, *evidence.failures) if phase == "pairs"
    ]
    all_pairs = Counter(name for members in pairs for name in members)
    bad_pairs = Counter(name for bad_round in bad for name in bad_round.members)
    for name in assessment.products:
        if all_pairs[name] > 1 and 2 * bad_pairs[name] > all_pairs[name]:
            first = next(bad_round for bad_round in bad if name in bad_round.members)
            assessment.findings[name].append(
                Finding(code=first.code, quantity=first.quantity, text=first.text)
            )
    for bad_round in bad:
        if not any(assessment.findings.get(name) for name in bad_round.members):
            name = max(bad_round.members, key=bad_pairs.__getitem__)
            assessment.findings[name].append(
                Finding(
                    code="link_failed",
                    quantity=bad_round.quantity,
                    members=bad_round.members,
                    text=bad_round.text,
                )
            )
