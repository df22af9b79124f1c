"""Decide which members pass: from the evidence of all nodes to one ``AcceptanceResult``.

Members are the devices of one machine, or nodes. They are compared only with their peers: members
of the same product and software.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.acceptance.bits import compare_devices
from trainmark.acceptance.intervals import NO_ROUNDS, UNKNOWN_ROUNDS
from trainmark.acceptance.judgement import (
    Cause,
    Judgement,
    LinkVerdicts,
    Measurements,
    NodeVerdicts,
    Verdict,
)
from trainmark.acceptance.model import ERROR_RATE, choose_pairs_to_measure_again, judge_measurements
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
_MAX_NAMED = 4  # members of a team that are all named in a text
_DECISIONS: dict[Verdict, Decision] = {
    Verdict.PASS: "pass",
    Verdict.SLOW: "fail",
    Verdict.UNDECIDED: "undecided",
}


class DoubtOfMember(NamedTuple):
    """Why a member is undecided.

    Args:
        more_rounds: how many further rounds would decide; None: no number of rounds would, or it is
            not known.
    """

    reason: Doubt
    more_rounds: int | None = None


@dataclass(slots=True, kw_only=True)
class Assessment:
    """What is known so far of the members, the devices or nodes that are accepted or excluded.

    Dictionaries and sets are by the member's name.

    Args:
        product_of_member: product name of each member; its keys are all members, in their order.
        findings: reasons to exclude a member.
        steps: how much slower the training step of a member is than its peers'.
        doubts: why a member is undecided.
        judged: members whose training step was judged; the verdict may be that it is undecided.
        step_s: median seconds of a step of a member alone.
        links: all links that were judged; for a bad one, one of its ends also has a finding.
    """

    product_of_member: dict[str, str]
    findings: dict[str, list[Finding]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[str, Interval] = field(default_factory=dict)
    doubts: dict[str, DoubtOfMember] = field(default_factory=dict)
    judged: set[str] = field(default_factory=set)
    step_s: dict[str, float] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    bits: list[Bits] = field(default_factory=list)
    quantities: list[Quantity] = field(default_factory=list)
    wholes: list[Whole] = field(default_factory=list)

    def list_members(self) -> list[Member]:
        """Return each member with its decision, after bad links have excluded one of their ends."""
        self._exclude_one_end_of_links()
        return [self._make_member(name) for name in self.product_of_member]

    def _exclude_one_end_of_links(self) -> None:
        """Give a finding to one end of each bad link, unless one of its ends has a finding already.

        A finding excludes a member. If one end of a link is excluded, the link is not used, so that
        the other end may stay. The end with more bad links is excluded. The links of the member
        with most bad links come first, because its exclusion settles all of them.
        """
        bad_links = [link for link in self.links if link.decision == "fail"]
        num_bad_links = Counter(name for link in bad_links for name in link.members)
        bad_links.sort(
            key=lambda link: max(num_bad_links[name] for name in link.members), reverse=True
        )
        position = {name: index for index, name in enumerate(self.product_of_member)}
        for link in bad_links:
            # An end is excluded, by an earlier link of this loop or for another reason.
            if any(self.findings.get(name) for name in link.members):
                continue
            # If both ends have as many bad links, the one that comes first among the members.
            worse_end = max(link.members, key=lambda name: (num_bad_links[name], -position[name]))
            self.findings[worse_end].append(
                Finding(
                    code="slow_link",
                    quantity=link.quantity,
                    interval=link.interval,
                    members=link.members,
                )
            )

    def _make_member(self, name: str) -> Member:
        """Return a member with its decision and all that led to it."""
        findings = tuple(dict.fromkeys(self.findings.get(name, [])))  # without duplicates
        doubt = self.doubts.get(name)
        if doubt is None and name not in self.judged:  # its training step was not judged
            doubt = DoubtOfMember("not_measured")
        decision: Decision
        if findings:
            decision = "fail"
            doubt = None  # no doubt remains about a member that fails
        elif doubt is not None:
            decision = "undecided"
        else:
            decision = "pass"
        return Member(
            name=name,
            product=self.product_of_member[name],
            decision=decision,
            findings=findings,
            step=self.steps.get(name),  # how much slower than its peers, as an interval
            step_s=self.step_s.get(name),  # seconds of its own step
            doubt=None if doubt is None else doubt.reason,
            more_rounds=None if doubt is None else doubt.more_rounds,
        )


class AloneTime(NamedTuple):
    """The seconds that a quantity of a member alone took in a round."""

    round_number: int
    member: str
    seconds: float


class PairTime(NamedTuple):
    """The seconds that a quantity of a pair of members took in a round."""

    round_number: int
    first: str
    second: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The measured times of one quantity, such as a training step or a copy.

    Args:
        alone: of members (devices or nodes) alone, one entry for each round.
        pairs: of two members that trained together, one entry for each round.
    """

    alone: list[AloneTime]
    pairs: list[PairTime]

    def make_measurements(self, names: Sequence[str]) -> Measurements:
        """Return the times of some members as arrays, which call each member a node.

        The times of members alone have one element a measurement, and so have those of pairs.

        Args:
            names: of the members, which get numbers in this order.
        """
        number_of = {name: number for number, name in enumerate(names)}
        alone = [time for time in self.alone if time.member in number_of]
        pairs = [time for time in self.pairs if {time.first, time.second} <= number_of.keys()]
        # The lower number of each pair comes first, in whichever order the round named its nodes.
        ends = [sorted((number_of[time.first], number_of[time.second])) for time in pairs]
        return Measurements(
            num_nodes=len(names),
            alone_node=np.array([number_of[time.member] for time in alone], np.int64),
            alone_round=np.array([time.round_number for time in alone], np.int64),
            alone_s=np.array([time.seconds for time in alone], np.float64),
            first=np.array([lower for lower, _ in ends], np.int64),
            second=np.array([higher for _, higher in ends], np.int64),
            pair_round=np.array([time.round_number for time in pairs], np.int64),
            pair_s=np.array([time.seconds for time in pairs], np.float64),
        )


def collect_times(evidence: Evidence, alone_phase: str) -> dict[str, Times]:
    """Return the times of each quantity, by its name.

    In a team the slowest rank counts. A window is a piece of a training that is timed as a whole;
    of other quantities, such as a copy, it is one repeat. Of the windows of a round only the median
    counts: they are measured by one process at one time, so that they differ less than rounds do.

    A quantity that was measured only in other phases has ``Times`` without any. ``judge_times``
    then judges nothing by it, but counts it among those that share the error rate.

    Args:
        evidence: ``results`` has the results of a team's ranks by phase, round and members.
        alone_phase: the phase in which members were measured alone: ``devices`` or ``nodes``.
    """
    times: dict[str, Times] = {}
    for (phase, round_number, members), results in evidence.results.items():
        for quantity in _list_common_quantities(results):
            quantity_times = times.setdefault(quantity, Times(alone=[], pairs=[]))
            seconds = _compute_slowest_rank_s(results, quantity)
            if phase == alone_phase:  # each team of this phase is one member
                quantity_times.alone.append(AloneTime(round_number, members[0], seconds))
            # The results of other phases are judged elsewhere.
            elif phase == "pairs":
                first, second = members
                quantity_times.pairs.append(PairTime(round_number, first, second, seconds))
    return times


def _compute_slowest_rank_s(results: Sequence[RankResult], quantity: str) -> float:
    """Return the median time of a team's windows; the time of a window is its slowest rank's.

    A window is a piece of a training that is timed as a whole, or one repeat of a copy, for
    instance.

    Args:
        results: of the ranks of a team in one round; all of them measured the quantity, in the same
            number of windows.
    """
    seconds_by_rank = [result.seconds[quantity] for result in results]
    slowest_by_window = [max(seconds) for seconds in zip(*seconds_by_rank, strict=True)]
    return float(median(slowest_by_window))


def find_slowest_rank_s(results: Sequence[RankResult], quantity: str) -> float | None:
    """Return the time of a team in a round: the median of its windows, by the slowest rank.

    A window is a piece of a training that is timed as a whole, or one repeat of a copy, for
    instance. None unless all ranks measured the quantity, the same number of times.

    Args:
        results: of the ranks of the team in this round.
    """
    if quantity not in _list_common_quantities(results):
        return None
    return _compute_slowest_rank_s(results, quantity)


def _list_common_quantities(results: Sequence[RankResult]) -> list[str]:
    """Return the quantities that all ranks measured, the same number of times.

    A rank has one time for each window, a piece of the training that is timed as a whole, in their
    order. So the slowest rank of every window is known only if all ranks have the same number of
    times.

    Args:
        results: of the ranks of a team in one round; ``seconds`` has their times by quantity.
    """
    common = []
    for name, seconds in results[0].seconds.items():
        counts = {len(result.seconds.get(name, [])) for result in results}
        if seconds and counts == {len(seconds)}:
            common.append(name)
    return common


def judge_times(
    assessment: Assessment,
    times: dict[str, Times],
    groups: Sequence[Sequence[str]],
    *,
    worse_by: float,
    rates_worse_by: float,
    find_baseline: FindBaseline | None = None,
) -> list[tuple[str, str]]:
    """Judge every quantity within each peer group, which is members of the same product.

    Only the training step decides whether a member is undecided: other quantities can only make
    it fail.

    Args:
        assessment: gets the findings, intervals and doubts.
        times: of members alone and of pairs, by the name of the quantity; ``STEP`` is the training
            step.
        groups: names of the members of each peer group.
        worse_by: slowdown of the training step up to which a member passes.
        rates_worse_by: slowdown of every other quantity up to which a member passes.
        find_baseline: returns the baseline of a product and a quantity; None: there is none.

    Returns:
        The pairs that are to be measured again; a pair that is to be measured several times is
        listed as often.
    """
    _note_step_times(assessment, times)
    pairs_again: Counter[tuple[str, str]] = Counter()
    for quantity, quantity_times in sorted(times.items()):
        max_slowdown = worse_by if quantity == STEP else rates_worse_by
        for names in groups:
            measured = quantity_times.make_measurements(names)
            baseline = None
            if find_baseline is not None:
                # Any member stands for its group: peers have the same product.
                baseline = find_baseline(assessment.product_of_member[names[0]], quantity)
            if len(names) < 2 and baseline is None:  # there is nothing to compare with
                if quantity == STEP:
                    assessment.doubts[names[0]] = DoubtOfMember("no_peers")
                continue
            if len(measured.alone_s) + len(measured.pair_s) == 0:  # members stay `not_measured`
                continue
            judgement = judge_measurements(
                measured,
                worse_by=max_slowdown,
                # Shared by all quantities and groups, so that it holds for all verdicts together.
                error_rate=ERROR_RATE / (len(times) * len(groups)),
                baseline=baseline,
            )
            _note_members(assessment, judgement, names, quantity)
            _note_links(assessment, judgement, names, quantity)
            assessment.quantities.append(_describe_quantity(quantity, max_slowdown, judgement))
            # Of the numbers that two quantities ask for, the larger one (``|=``), not the sum: one
            # round measures all quantities.
            pairs_again |= _count_pairs_to_measure_again(judgement, names)
    return list(pairs_again.elements())


def _count_pairs_to_measure_again(
    judgement: Judgement, names: Sequence[str]
) -> Counter[tuple[str, str]]:
    """Return how many times each pair of members is to be measured again.

    Args:
        judgement: the verdicts on the members and their links.
        names: of the members, in the order of their numbers in the judgement.
    """
    pairs = choose_pairs_to_measure_again(judgement)
    return Counter((names[first], names[second]) for first, second in pairs)


def _note_step_times(assessment: Assessment, times: dict[str, Times]) -> None:
    """Add the median step time of each member alone.

    Args:
        assessment: gets it in ``step_s``; its ``product_of_member`` has the names of all members.
        times: by the name of the quantity; ``STEP`` is that of a training step.
    """
    if STEP not in times:
        return
    seconds_of: dict[str, list[float]] = defaultdict(list)
    for time in times[STEP].alone:
        seconds_of[time.member].append(time.seconds)
    for name in assessment.product_of_member:
        if name in seconds_of:
            assessment.step_s[name] = median(seconds_of[name])


def _note_members(
    assessment: Assessment, judgement: Judgement, names: Sequence[str], quantity: str
) -> None:
    """Add what the times of one quantity show of the members, which a judgement calls nodes.

    Args:
        assessment: gets findings about slow members, and what the step shows of each member.
        judgement: ``nodes`` has arrays with one element a member.
        names: of the members, in the order of their numbers in the judgement.
        quantity: what was timed, such as ``step`` or ``matmul``.
    """
    nodes = judgement.nodes
    for number, name in enumerate(names):
        interval = _make_interval(nodes, number)
        if interval is None:
            # It was measured, but the noise of so few measurements is not known.
            if quantity == STEP and isfinite(nodes.slower[number]):
                assessment.doubts[name] = DoubtOfMember("too_few_rounds")
            continue
        cause = nodes.cause[number]
        if cause is not None:  # only slow nodes have a cause
            group: tuple[str, ...] = ()
            if cause is Cause.GROUP:  # all members that are slow with the same fault
                numbers = np.flatnonzero(nodes.group == nodes.group[number])
                group = tuple(names[int(member)] for member in numbers)
            assessment.findings[name].append(
                Finding(code=_CODES[cause], quantity=quantity, interval=interval, members=group)
            )
        if quantity == STEP:
            assessment.steps[name] = interval
            assessment.judged.add(name)
            if nodes.verdict[number] is Verdict.UNDECIDED:
                assessment.doubts[name] = _explain_undecided(int(nodes.more_rounds[number]))


def _explain_undecided(more_rounds: int) -> DoubtOfMember:
    """Return why a member is undecided although its slowdown and the interval of it are known.

    Args:
        more_rounds: number of further rounds that would decide; ``NO_ROUNDS``: no practical number
            would; ``UNKNOWN_ROUNDS``: after so few rounds the number is not known.
    """
    if more_rounds == UNKNOWN_ROUNDS:
        return DoubtOfMember("too_few_rounds")
    return DoubtOfMember("interval", more_rounds=None if more_rounds == NO_ROUNDS else more_rounds)


def _make_interval(verdicts: NodeVerdicts | LinkVerdicts, index: int) -> Interval | None:
    """Return by what share a node is slower than its peers, or a pair than its slower node.

    The share comes with the ends of its interval. None if the node or link was not
    measured, or too seldom to estimate its noise.

    Args:
        index: of the node or link in the arrays of ``verdicts``.
    """
    slower = float(verdicts.slower[index])
    low = float(verdicts.low[index])
    high = float(verdicts.high[index])
    # NaN: not measured. If the noise is unknown, the upper end is infinite.
    if not isfinite(slower) or not isfinite(high):
        return None
    return Interval(slower=slower, low=low, high=high)


def _note_links(
    assessment: Assessment, judgement: Judgement, names: Sequence[str], quantity: str
) -> None:
    """Add the verdicts on links that the times of one quantity give.

    Args:
        assessment: gets a ``Link`` for each.
        judgement: its ``links`` are arrays with one element a link; ``first`` and ``second`` are
            the numbers of the two members, ``rounds`` the number of rounds that measured it.
        names: of the members, in the order of their numbers in the judgement.
        quantity: what was timed, such as ``step`` or ``all_reduce``.
    """
    links = judgement.links
    for index, verdict in enumerate(links.verdict):
        interval = _make_interval(links, index)
        if interval is None:  # too few measurements to estimate their noise
            continue
        assessment.links.append(
            Link(
                members=(names[links.first[index]], names[links.second[index]]),
                quantity=quantity,
                decision=_DECISIONS[verdict],
                interval=interval,
                rounds=int(links.rounds[index]),
            )
        )


def _describe_quantity(name: str, max_slowdown: float, judgement: Judgement) -> Quantity:
    """Return how precisely one kind of time was measured, as the result file lists it.

    Args:
        name: of what was timed, such as ``step``.
        max_slowdown: slowdown up to which a member passes.
        judgement: has the noise of the times, their trend over the rounds, and the smallest
            slowdown of a link that would be noticed.
    """
    detectable_slowdown = judgement.links.detectable
    return Quantity(
        name=name,
        worse_by=max_slowdown,
        noise=judgement.noise_alone,
        noise_of_pairs=judgement.noise_pairs,
        trend=judgement.trend,
        # NaN: there are no links.
        detectable_link=detectable_slowdown if isfinite(detectable_slowdown) else None,
    )


def judge_bits(
    assessment: Assessment,
    evidence: Evidence,
    member_of: dict[str, str],
    groups: Sequence[set[str]],
) -> None:
    """Compare the control trainings of the devices of each group, bit by bit.

    Args:
        assessment: gets a summary of each group, and findings and doubts about its members.
        evidence: ``results`` has the results of a team's ranks by phase, round and members.
        member_of: the member to which each device belongs: the device itself, or its node.
        groups: names of the devices of each peer group: those of one product and software.
    """
    # Digests of each step of a device's control trainings: two trainings from the same seed. In the
    # phase ``devices`` a team is one device with one rank. Only its first round has control
    # trainings, so that each device has one result here.
    trainings = {
        members[0]: results[0].trainings
        for (phase, _, members), results in evidence.results.items()
        if phase == "devices" and results[0].trainings
    }
    for devices in groups:
        group_trainings = {name: trainings[name] for name in trainings if name in devices}
        comparison = compare_devices(group_trainings)
        # Peers have the same product, so that any device of the group shows it.
        any_member = member_of[min(devices)]
        assessment.bits.append(
            Bits(
                product=assessment.product_of_member[any_member],
                # Whether each device computed the same twice, and most devices the same.
                control=comparison.control,
                devices=len(group_trainings),
            )
        )
        for deviation in comparison.deviations:
            # ``part`` is what differs first: the loss, or the gradient or weight ``tensor``.
            tensor = f" of {deviation.tensor}" if deviation.tensor else ""
            text = f"{deviation.device}: {deviation.part}{tensor} in step {deviation.step}"
            # Here ``members`` has no names of members, but with whom the device was compared:
            # `itself` or `peers`.
            assessment.findings[member_of[deviation.device]].append(
                Finding(code="computes_differently", members=(deviation.compared_with,), text=text)
            )
        # Devices that differ from each other; no result is that of more than half of them.
        for name in comparison.unclear:
            # An earlier doubt about the member stays.
            doubt = DoubtOfMember("differs_without_majority")
            assessment.doubts.setdefault(member_of[name], doubt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BadRound:
    """A round of a team that failed, or a wrong result in it: several ranks may have one each.

    Args:
        number: of the round in its phase.
        members: names of the devices or nodes of the team.
        code: of the finding that follows.
        text: what a rank or node reported.
        quantity: whose result was wrong; None: the round failed.
    """

    phase: str
    number: int
    members: tuple[str, ...]
    code: Code
    text: str
    quantity: str | None = None


def note_bad_rounds(
    assessment: Assessment, evidence: Evidence, member_of: dict[str, str]
) -> list[str]:
    """Add findings for rounds that failed, or whose results were wrong.

    Args:
        assessment: gets the findings.
        evidence: the results and failures of all rounds.
        member_of: the member to which each device and node belongs: itself, or its node.

    Returns:
        The rounds that failed and what was reported of each, in words.
    """
    bad_rounds = [*_list_wrong_results(evidence), *_list_failed_rounds(evidence)]
    for bad_round in bad_rounds:
        # If the members are the devices of one machine, the team of all of them has the name of the
        # machine, which is no member. `_blame_whole_machine` handles it.
        owners = {member_of.get(name, name) for name in bad_round.members}
        # A team with several owners does not show which of them is at fault. `_blame_bad_pairs`
        # handles pairs.
        if bad_round.phase != "pairs" and len(owners) == 1 and owners <= member_of.keys():
            (owner,) = owners
            assessment.findings[owner].append(_make_finding(bad_round))
    bad_pair_rounds = [bad_round for bad_round in bad_rounds if bad_round.phase == "pairs"]
    _blame_bad_pairs(assessment, evidence, bad_pair_rounds)
    _blame_whole_machine(assessment, bad_rounds)
    return [
        f"{phase}, round {number + 1}, {_format_members(members)}: {failure.error}"
        for (phase, number, members), failure in evidence.failures.items()
    ]


def _make_finding(bad_round: _BadRound) -> Finding:
    """Return the finding that excludes the member to which a bad round belongs."""
    return Finding(code=bad_round.code, quantity=bad_round.quantity, text=bad_round.text)


def _blame_whole_machine(assessment: Assessment, bad_rounds: Sequence[_BadRound]) -> None:
    """Add findings for a bad round in which all devices of one machine trained together.

    Any of the devices may be at fault. If none of them has a finding yet, from its rounds alone or
    from pairs, all of them get that of this round.

    If the members are nodes, nothing is added here: a bad round of a node is the node's own.

    Args:
        assessment: gets the findings; its ``product_of_member`` has the names of all members.
        bad_rounds: of all phases.
    """
    member_names = assessment.product_of_member.keys()
    for bad_round in bad_rounds:
        # The team of all devices has the name of the machine. If devices are the members, the
        # machine is not one of them.
        is_of_machine = bad_round.phase == "nodes" and member_names.isdisjoint(bad_round.members)
        if is_of_machine and not any(assessment.findings.get(name) for name in member_names):
            for name in member_names:
                assessment.findings[name].append(_make_finding(bad_round))


def _format_members(members: Sequence[str]) -> str:
    """Return the names of a team; of a large one the first, the last and their number."""
    if len(members) <= _MAX_NAMED:
        return " and ".join(members)
    return f"{members[0]} to {members[-1]} ({len(members)} members)"


def _list_wrong_results(evidence: Evidence) -> list[_BadRound]:
    """Return the wrong results of matmuls, copies and collectives that ranks found.

    A round is listed once for each rank and each quantity whose result was wrong.
    """
    return [
        _BadRound(
            phase=phase,
            number=number,
            members=members,
            code="wrong_result",
            text=text,
            quantity=quantity,
        )
        for (phase, number, members), results in evidence.results.items()
        for result in results
        for quantity, text in result.faults.items()
    ]


def _list_failed_rounds(evidence: Evidence) -> list[_BadRound]:
    """Return the rounds that failed by themselves.

    A round that a signal stopped, or to which a node did not come (``absent`` is its name), is no
    fault of its members.
    """
    return [
        _BadRound(
            phase=phase,
            number=number,
            members=members,
            text=failure.error,
            code="no_answer" if failure.reason == "deadline" else "failed",
        )
        for (phase, number, members), failure in evidence.failures.items()
        if failure.reason != "stopped" and failure.absent is None
    ]


def _blame_bad_pairs(
    assessment: Assessment, evidence: Evidence, bad_pair_rounds: Sequence[_BadRound]
) -> None:
    """Add findings for bad rounds of pairs.

    If most pairs of a member are bad, the member is at fault, and gets a finding. If neither end of
    a bad pair has a finding of any kind, their link is at fault. Its end with more bad pairs gets
    the finding.

    Args:
        assessment: gets the findings.
        evidence: all rounds of pairs, also the good ones, which are counted.
        bad_pair_rounds: rounds of pairs that failed by themselves, and wrong results in rounds.
    """
    # Each round once, however many of its ranks found a wrong result.
    bad_pairs = {(bad_round.number, bad_round.members) for bad_round in bad_pair_rounds}
    # Rounds that a signal stopped, or to which a node did not come, have no results and are not
    # bad. They say nothing of their members, so they are not counted.
    pairs = bad_pairs | {
        (number, members) for phase, number, members in evidence.results if phase == "pairs"
    }
    num_pairs = Counter(name for _, members in pairs for name in members)
    num_bad_pairs = Counter(name for _, members in bad_pairs for name in members)
    for member in assessment.product_of_member:
        # A single pair does not show which of its ends is at fault.
        if num_pairs[member] > 1 and 2 * num_bad_pairs[member] > num_pairs[member]:
            # One finding is enough: the first bad round of the member stands for all.
            bad_round = next(x for x in bad_pair_rounds if member in x.members)
            assessment.findings[member].append(_make_finding(bad_round))
    for bad_round in bad_pair_rounds:
        # An excluded end settles all its bad pairs, also one that this loop has just excluded.
        if not any(assessment.findings.get(name) for name in bad_round.members):
            worse_end = max(bad_round.members, key=lambda name: num_bad_pairs[name])
            assessment.findings[worse_end].append(
                Finding(
                    code="link_failed",
                    quantity=bad_round.quantity,
                    members=bad_round.members,
                    text=bad_round.text,
                )
            )
