"""What is known so far of the members of an acceptance: findings, doubts, intervals, links.

The rules in other modules fill an ``Assessment``; it decides from them which members pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

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

if TYPE_CHECKING:
    from trainmark.acceptance.result import Decision


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
