"""Judge all comparable nodes in one training, the whole, and slow groups of nodes among them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from trainmark.acceptance.groups import SetTimes, fit_step_time_model, search_groups
from trainmark.acceptance.result import Finding, Interval, Whole
from trainmark.acceptance.tasks import STEP
from trainmark.acceptance.times import find_slowest_rank_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.acceptance.assessment import Assessment
    from trainmark.acceptance.evidence import Evidence
    from trainmark.acceptance.groups import GroupSearch, NodeSet, Slowdown, SlowGroup, StepTimeModel
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.acceptance.result import Code
    from trainmark.acceptance.times import Times


class WholeSearch(NamedTuple):
    """The search for slow groups among nodes of a peer group, the whole.

    Args:
        num_members: number of these nodes.
        search: what the search has found so far.
    """

    num_members: int
    search: GroupSearch


def search_wholes(
    assessment: Assessment,
    evidence: Evidence,
    times: Times,
    peer_groups: Sequence[Sequence[str]],
    request: AcceptRequest,
) -> list[WholeSearch]:
    """Search the nodes of each peer group for groups of nodes that are slow only with others.

    The training of all nodes of a peer group together is called a whole. If it is slow, its subsets
    are searched. Nodes that fail already take no part.

    Args:
        assessment: has the findings about the nodes so far, and the noise of their times.
        evidence: has the times of the node sets that were measured so far.
        times: step times of nodes alone and in pairs, from which those of larger sets are
            predicted.
        peer_groups: names of the nodes of each product and software.
        request: has the allowed slowdown, and how often each node set is measured.

    Returns:
        A search for each peer group of which enough was measured. The node sets that the searches
        need next, ``to_measure``, are disjoint.
    """
    measured = collect_set_times(evidence)
    searches = []
    for names in peer_groups:
        passing = [name for name in names if not assessment.findings.get(name)]
        model = _fit_model(assessment, times, passing)
        if model is None:  # too little was measured to predict the time of all nodes
            continue
        search = search_groups(
            passing, model, measured, repeats=request.repeats, worse_by=request.worse_by
        )
        searches.append(WholeSearch(num_members=len(passing), search=search))
    return searches


def note_wholes(assessment: Assessment, searches: Iterable[WholeSearch]) -> None:
    """Add the state of each whole, and findings for the members of slow groups."""
    for num_members, search in searches:
        # ``search.whole`` is how much slower the training of all nodes was than predicted; None: it
        # was not measured, or not often enough yet. Such a whole is left out with two outcomes:
        # ``unfinished``, and ``as_predicted``, which then means that so few nodes are not searched.
        if search.whole is not None or search.outcome not in ("as_predicted", "unfinished"):
            assessment.wholes.append(_make_whole(search, num_members))
        for group in search.groups:
            _add_findings(assessment, group)


def collect_set_times(evidence: Evidence) -> SetTimes:
    """Return what was measured of node sets, in the rounds of the phase ``groups``.

    A set has an error if it failed and never succeeded. A round that a signal stopped, or to which
    a node did not come (``absent`` is its name), is no error of the set.

    Args:
        evidence: the results and failures of all rounds, by phase, round and members.
    """
    seconds: dict[NodeSet, list[float]] = defaultdict(list)
    for (phase, _, members), results in evidence.results.items():
        if phase != "groups":
            continue
        # Each node wrote the results of its own ranks, and the file of one may not be there yet.
        num_ranks = sum(len(evidence.nodes[name].devices) for name in members)
        if len(results) == num_ranks:
            step_s = find_slowest_rank_s(results, STEP)
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


def _fit_model(assessment: Assessment, times: Times, names: Sequence[str]) -> StepTimeModel | None:
    """Return a model that predicts the step time of larger node sets from nodes alone and pairs.

    None if nodes alone or pairs were not measured, or if the noise of both is unknown.

    Args:
        assessment: has the noise of the measurements.
        times: step times of nodes alone and of pairs of nodes.
        names: of the nodes whose times count.
    """
    members = set(names)
    # The step has an entry for each peer group, with the noise of nodes alone and that of pairs.
    step_quantities = [quantity for quantity in assessment.quantities if quantity.name == STEP]
    noises = [quantity.noise for quantity in step_quantities]
    noises += [quantity.noise_of_pairs for quantity in step_quantities]
    known_noises = [noise for noise in noises if noise is not None]
    if not known_noises:
        return None
    # All measurements of nodes alone, which are few and come before the pairs. What heat adds later
    # counts as communication: more time is predicted of large sets, so fewer look slow.
    alone_s = [time.seconds for time in times.alone if time.member in members]
    # Sorted by the number of the round, which is the first field.
    pairs = sorted(pair for pair in times.pairs if {pair.first, pair.second} <= members)
    # Only the last third of the pairs: then devices are as hot as in the training of all nodes,
    # which follows.
    num_late = max(1, len(pairs) // 3)
    pair_s = [pair.seconds for pair in pairs[-num_late:]]
    # With the larger noise intervals are wider, and fewer groups are found by mistake.
    return fit_step_time_model(alone_s, pair_s, max(known_noises))


def _make_interval(slowdown: Slowdown | None) -> Interval | None:
    """Return a slowdown and its interval as the result file has them; None stays None."""
    if slowdown is None:
        return None
    return Interval(slower=slowdown.slower, low=slowdown.low, high=slowdown.high)


def _make_whole(search: GroupSearch, num_members: int) -> Whole:
    """Return how all nodes of a peer group trained together, as the result file has it.

    Args:
        search: what the search for slow groups among these nodes has found so far.
        num_members: number of these nodes.
    """
    return Whole(
        num_members=num_members,
        outcome=search.outcome,
        interval=_make_interval(search.whole),  # of the slowdown of all nodes together
        groups=tuple(group.members for group in search.groups),
        parts=search.parts,  # node sets that are fast by themselves
    )


def _add_findings(assessment: Assessment, group: SlowGroup) -> None:
    """Give a finding to every member of a group: that the group is slow, or failed to train.

    A group whose training failed has no slowdown, but an error.

    Args:
        assessment: gets the findings.
        group: nodes that are slow or fail together with others, and not by themselves.
    """
    code: Code = "group_failed" if group.slowdown is None else "slow_group"
    for name in group.members:
        assessment.findings[name].append(
            Finding(
                code=code,
                quantity=STEP,
                interval=_make_interval(group.slowdown),
                members=group.members,
                text=group.error,
            )
        )
