"""The members of an acceptance on its page: grid, groups that are compared, table of verdicts.

The members are the devices or the nodes on which the acceptance decides.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trainmark.pages.acceptance_phrases import (
    describe_member_set,
    explain_verdict,
    format_interval,
    format_share,
)
from trainmark.pages.document import Block, Paragraph, Strip, build_table
from trainmark.pages.texts import Phrase, Tone, join, phrase, term

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.acceptance.result import AcceptanceResult, Member

DECISION_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "undecided": "warn"}


def build_member_grid(result: AcceptanceResult) -> Strip:
    """Return a coloured cell for each member, and how many members have each verdict.

    Hovering over a cell shows the member's verdict.
    """
    row = tuple(
        (DECISION_TONES[member.decision], _describe_member(member)) for member in result.members
    )
    counts = Counter(member.decision for member in result.members)
    # Each tuple is one phrase of two parts, the verdict and how many members have it.
    counts_in_words = (
        (term("accept_decision", decision), f" {count}") for decision, count in counts.items()
    )
    # A strip has a title, groups of cells with gaps between the groups, and a sentence below. Here
    # all cells are in one group.
    return Strip(phrase("accept.members"), (row,), join(counts_in_words))


def _describe_member(member: Member) -> Phrase:
    """Return name and verdict of a device or node, with the reason unless it passes."""
    parts: list[Phrase] = [member.name, term("accept_decision", member.decision)]
    reason = explain_verdict(member)
    if reason:
        parts.append(reason)
    return join(parts, "colon")


def build_member_table(members: Iterable[Member]) -> Block:
    """Return a table with a row for each member, which is a device or a node.

    Its columns are name, verdict, time of a training step, by what share the step is slower than
    that of other members, the interval of that share, the product (the model of the hardware), and
    why the member does not pass.
    """
    headings = [
        phrase(f"accept_head.{name}")
        for name in ("name", "decision", "step", "slower", "interval", "product", "why")
    ]
    rows = (
        (
            member.name,
            term("accept_decision", member.decision),
            # ``step_s`` is the time of a step. ``step`` is the interval of its slowdown, with the
            # estimate ``slower``; None: not measured, or there is no other member to compare with.
            None if member.step_s is None else f"{member.step_s * 1000:.2f}",
            None if member.step is None else format_share(member.step.slower, sign=True),
            None if member.step is None else format_interval(member.step),
            member.product,
            explain_verdict(member),
        )
        for member in members
    )
    return build_table(headings, rows)


def explain_member_columns(members: Iterable[Member]) -> list[Block]:
    """Return why the time of a step and the slowdown may order members differently.

    Nothing if no member was compared with others.
    """
    if all(member.step is None for member in members):
        return []
    return [Paragraph(phrase("accept.columns"), "muted")]


def list_peer_groups(result: AcceptanceResult) -> list[Block]:
    """Return a table of the groups within which members are compared; nothing for a single group.

    A member is a device or a node. The members of a group have the same products and software, so
    that their speeds are comparable. The last column has the versions of those packages alone in
    which the groups differ.
    """
    if len(result.peer_groups) < 2:
        return []
    headings = [
        phrase("accept_head.group_members"),
        phrase("accept_head.product"),
        phrase("accept_head.software"),
    ]
    rows = (
        (
            describe_member_set(group.members),
            ", ".join(group.products),
            # A package may be missing in a group.
            ", ".join(f"{name} {version or '—'}" for name, version in group.software.items()),
        )
        for group in result.peer_groups
    )
    # No fault, but a warning: members of different groups were not compared with each other.
    return [Paragraph(phrase("accept.peer_groups"), "warn"), build_table(headings, rows)]
