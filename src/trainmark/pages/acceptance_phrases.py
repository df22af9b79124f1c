"""Say in words what an acceptance found: why a member fails, and how much slower something is.

A member is a device or a node. The page, its section about links, and the terminal use these words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.acceptance.request import MAX_REPEATS
from trainmark.pages.texts import Phrase, join, phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.acceptance.result import Finding, Interval, Member

_MAX_NAMED = 5  # members that a sentence names
_MAX_SHARE = 10.0  # larger shares are shown as ">1000%"


def explain_verdict(member: Member) -> Phrase:
    """Return why a member fails or is undecided; an empty text if it passes."""
    if member.findings:
        return join(map(describe_finding, member.findings), "semicolon")
    if member.doubt is None:
        return ""
    reason = phrase(f"accept_doubt.{member.doubt}")
    if member.doubt != "interval":
        return reason
    # The interval of the slowdown contains the limit. More rounds of measurements would make the
    # interval narrower, so the reason also says how many of them would decide.
    # None: no number of rounds would decide. More than ``MAX_REPEATS`` cannot be asked for.
    if member.more_rounds is None or member.more_rounds > MAX_REPEATS:
        remedy = phrase("accept.no_rounds")
    else:
        remedy = phrase("accept.more_rounds", n=member.more_rounds)
    return join((reason, remedy), "semicolon")


def describe_finding(finding: Finding) -> Phrase:
    """Return a finding in words: a reason why a device or node fails.

    ``code`` says which kind of reason it is, such as ``slow`` or ``slow_link``.
    """
    # A finding has some of these values, and the text of its code shows those.
    # ``quantity``: what was measured, such as ``step``. ``interval``: by how much it is slower.
    # ``text``: the error, or what differed. ``members``: the ends of a link, or all of a group.
    return phrase(
        f"accept_finding.{finding.code}",
        quantity=finding.quantity or "",
        share=_describe_interval(finding.interval),
        text=finding.text,
        members=join(finding.members),
    )


def _describe_interval(interval: Interval | None) -> Phrase:
    """Return by what share something is slower, with the ends of the confidence interval.

    An empty text for None.
    """
    if interval is None:
        return ""
    return phrase(
        "accept.slower_by",
        slower=format_share(interval.slower),
        low=format_share(interval.low),
        high=format_share(interval.high),
    )


def join_first_names(names: Sequence[Phrase]) -> Phrase:
    """Join names with commas: the first ``_MAX_NAMED``, then the number of those left out."""
    shown = list(names[:_MAX_NAMED])
    if len(names) > _MAX_NAMED:
        shown.append(phrase("accept.and_more", n=len(names) - _MAX_NAMED))
    return join(shown)


def format_share(share: float, *, sign: bool = False) -> str:
    """Return a share in percent, ``4.2%``; a share above ``_MAX_SHARE`` as ``>1000%``.

    Args:
        sign: whether a positive share begins with a plus.
    """
    if share > _MAX_SHARE:
        return f"{'+' if sign else ''}>{_MAX_SHARE:.0%}"
    return f"{share:+.1%}" if sign else f"{share:.1%}"


def describe_slowdown(share: float) -> Phrase:
    """Return how much slower something is in words; a negative share is a speedup."""
    name = "faster" if share < 0 else "slower"
    return phrase(f"accept.{name}", share=format_share(abs(share)))


def format_interval(interval: Interval) -> str:
    """Return the ends of the confidence interval of a slowdown: ``+1.2% – +4.0%``."""
    return f"{format_share(interval.low, sign=True)} – {format_share(interval.high, sign=True)}"


def describe_member_set(members: Sequence[str]) -> Phrase:
    """Return the names of up to ``_MAX_NAMED`` members; of more, the first, the last and how many.

    A member is a device or a node.
    """
    if len(members) <= _MAX_NAMED:
        return join(members)
    return phrase("accept_whole.range", first=members[0], last=members[-1], n=len(members))
