"""Judge the members of an acceptance by their times and by what they computed, bit by bit.

Members are the devices of one machine, or nodes. They are compared only with their peers: members
of the same product and software.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.acceptance.assessment import DoubtOfMember
from trainmark.acceptance.bits import compare_devices
from trainmark.acceptance.intervals import NO_ROUNDS, UNKNOWN_ROUNDS
from trainmark.acceptance.judgement import Cause, Judgement, LinkVerdicts, NodeVerdicts, Verdict
from trainmark.acceptance.model import ERROR_RATE, choose_pairs_to_measure_again, judge_measurements
from trainmark.acceptance.result import Bits, Finding, Interval, Link, Quantity
from trainmark.acceptance.tasks import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trainmark.acceptance.assessment import Assessment
    from trainmark.acceptance.evidence import Evidence
    from trainmark.acceptance.model import Baseline
    from trainmark.acceptance.result import Code, Decision
    from trainmark.acceptance.times import Times

    FindBaseline = Callable[[str, str], Baseline | None]  # of a product and a quantity

_CODES: dict[Cause, Code] = {
    Cause.NODE: "slow",
    Cause.NETWORK: "slow_network",
    Cause.GROUP: "slow_group",
    Cause.HOT: "slow_hot",
    Cause.UNKNOWN: "slow_unknown",
}
_DECISIONS: dict[Verdict, Decision] = {
    Verdict.PASS: "pass",
    Verdict.SLOW: "fail",
    Verdict.UNDECIDED: "undecided",
}


class TimeJudgement(NamedTuple):
    """What the times of one quantity show of the members of one peer group and of their links.

    Args:
        names: of the members, in the order of their numbers in the judgement.
        max_slowdown: slowdown up to which a member passes.
        judgement: None: the group has one member and no baseline, so that there is nothing to
            compare with.
    """

    quantity: str
    names: Sequence[str]
    max_slowdown: float
    judgement: Judgement | None


def judge_times(
    product_of_member: Mapping[str, str],
    times: dict[str, Times],
    groups: Sequence[Sequence[str]],
    *,
    worse_by: float,
    rates_worse_by: float,
    find_baseline: FindBaseline | None = None,
) -> list[TimeJudgement]:
    """Judge every quantity within each peer group, which is members of the same product.

    Args:
        product_of_member: product of each member by its name.
        times: of members alone and of pairs, by the name of the quantity; ``STEP`` is the training
            step.
        groups: names of the members of each peer group.
        worse_by: slowdown of the training step up to which a member passes.
        rates_worse_by: slowdown of every other quantity up to which a member passes.
        find_baseline: returns the baseline of a product and a quantity; None: there is none.

    Returns:
        A judgement of each quantity and group, in this order. A group of which a quantity was not
        measured has none of it.
    """
    judgements = []
    for quantity, quantity_times in sorted(times.items()):
        max_slowdown = worse_by if quantity == STEP else rates_worse_by
        for names in groups:
            measured = quantity_times.make_measurements(names)
            baseline = None
            if find_baseline is not None:
                # Any member stands for its group: peers have the same product.
                baseline = find_baseline(product_of_member[names[0]], quantity)
            if len(names) < 2 and baseline is None:  # there is nothing to compare with
                judgements.append(TimeJudgement(quantity, names, max_slowdown, judgement=None))
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
            judgements.append(TimeJudgement(quantity, names, max_slowdown, judgement))
    return judgements


def note_times(
    assessment: Assessment, times: dict[str, Times], judgements: Iterable[TimeJudgement]
) -> None:
    """Add what the times show of the members and their links.

    Only the training step decides whether a member is undecided: other quantities can only make
    it fail.

    Args:
        assessment: gets the findings, intervals and doubts.
        times: of members alone and of pairs, by the name of the quantity; ``STEP`` is the training
            step.
        judgements: of these times.
    """
    _note_step_times(assessment, times)
    for quantity, names, max_slowdown, judgement in judgements:
        if judgement is not None:
            _note_members(assessment, judgement, names, quantity)
            _note_links(assessment, judgement, names, quantity)
            assessment.quantities.append(_describe_quantity(quantity, max_slowdown, judgement))
        elif quantity == STEP:
            assessment.doubts[names[0]] = DoubtOfMember("no_peers")


def list_pairs_to_measure_again(judgements: Iterable[TimeJudgement]) -> list[tuple[str, str]]:
    """Return the pairs of members that are to be measured again.

    A pair that is to be measured several times is listed as often.
    """
    num_measurements: Counter[tuple[str, str]] = Counter()  # by the names of the pair
    for _quantity, names, _max_slowdown, judgement in judgements:
        if judgement is None:
            continue
        pairs = choose_pairs_to_measure_again(judgement)
        # Of the numbers that two quantities ask for, the larger one (``|=``), not the sum: one
        # round measures all quantities.
        num_measurements |= Counter((names[first], names[second]) for first, second in pairs)
    return list(num_measurements.elements())


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
            # It was measured, but so seldom that the noise of its measurements is not known.
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
            would; ``UNKNOWN_ROUNDS``: after so few rounds the noise is known only roughly, and the
            number is not known.
    """
    if more_rounds == UNKNOWN_ROUNDS:
        return DoubtOfMember("interval_after_few_rounds")
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
