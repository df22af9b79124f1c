"""Find the members at fault for rounds that failed or had wrong results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.acceptance.result import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.acceptance.assessment import Assessment
    from trainmark.acceptance.evidence import Evidence
    from trainmark.acceptance.result import Code

_MAX_NAMED = 4  # members of a team that are all named in a text


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


def note_bad_rounds(assessment: Assessment, evidence: Evidence, member_of: dict[str, str]) -> None:
    """Add findings for rounds that failed, or whose results were wrong.

    Args:
        assessment: gets the findings.
        evidence: the results and failures of all rounds.
        member_of: the member to which each device and node belongs: itself, or its node.
    """
    bad_rounds = [*_list_wrong_results(evidence), *_list_failed_rounds(evidence)]
    for bad_round in bad_rounds:
        # If the members are the devices of one machine, the team of all of them has the name of the
        # machine, which is no member. `_blame_whole_machine` handles it.
        owners = {member_of.get(name, name) for name in bad_round.members}
        # A team with several owners does not show which of them is at fault. `_blame_bad_pairs`
        # handles pairs, the search for groups (`wholes`) sets of nodes that train together.
        if bad_round.phase != "pairs" and len(owners) == 1 and owners <= member_of.keys():
            (owner,) = owners
            assessment.findings[owner].append(_make_finding(bad_round))
    bad_pair_rounds = [bad_round for bad_round in bad_rounds if bad_round.phase == "pairs"]
    _blame_bad_pairs(assessment, evidence, bad_pair_rounds)
    _blame_whole_machine(assessment, bad_rounds)


def describe_failed_rounds(evidence: Evidence) -> list[str]:
    """Return the rounds that failed and what was reported of each, in words.

    Rounds that a signal stopped, or to which a node did not come, are among them.
    """
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
    """Add findings for bad rounds of pairs; a pair with a bad round is a bad pair.

    If most pairs of a member are bad, the member is at fault, and gets a finding. If neither end of
    a bad pair has a finding of any kind, their link is at fault. Its end with more bad pairs gets
    the finding.

    Args:
        assessment: gets the findings.
        evidence: all rounds of pairs, also the good ones, which are counted.
        bad_pair_rounds: rounds of pairs that failed by themselves, and wrong results in rounds.
    """
    # Each pair once, however many of its rounds were bad: many bad rounds of one pair do not show
    # which of its ends is at fault.
    bad_pairs = {bad_round.members for bad_round in bad_pair_rounds}
    # Rounds that a signal stopped, or to which a node did not come, have no results and are not
    # bad. They say nothing of their members, so they are not counted.
    pairs = bad_pairs | {members for phase, _, members in evidence.results if phase == "pairs"}
    num_pairs = Counter(name for members in pairs for name in members)
    num_bad_pairs = Counter(name for members in bad_pairs for name in members)
    for member in assessment.product_of_member:
        # A single partner does not show which of its ends is at fault.
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
