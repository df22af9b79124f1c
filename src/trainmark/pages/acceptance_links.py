"""The section of an acceptance's page about the links between pairs of devices or nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages.acceptance_phrases import describe_slowdown, format_interval, format_share
from trainmark.pages.document import Block, HeatMap, Paragraph, Section, build_table
from trainmark.pages.texts import Phrase, Tone, join, phrase, term

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.acceptance.result import AcceptanceResult, Link

_MAX_HEAT_MAP = 128  # members; the links of more are only in the table
_MAX_LINKS = 200  # rows of the table, the slowest first


def build_links_section(result: AcceptanceResult) -> Section:
    """Return the links between pairs of members: a sentence, a table, and a map if it fits a page.

    A link is slow if both members together are slower than is expected from the slower of the two.
    The section has no blocks if no link was measured.
    """
    if not result.links:
        return Section(phrase("accept.links"), "links")
    blocks: list[Block] = []
    num_bad = sum(link.decision == "fail" for link in result.links)
    if num_bad:
        blocks.append(Paragraph(phrase("accept.bad_links", n=num_bad), "bad"))
    else:
        blocks.append(Paragraph(phrase("accept.no_bad_links"), "good"))
    if len(result.members) <= _MAX_HEAT_MAP:
        blocks.append(_build_heat_map(result))
    blocks.append(_build_link_table(result.links))
    return Section(phrase("accept.links"), "links", tuple(blocks))


def _build_heat_map(result: AcceptanceResult) -> HeatMap:
    """Return the links between members as a square of cells, a row and a column for each member.

    ``result.links`` has a link of the same pair for each quantity that was measured in pairs: the
    training step, and others such as a collective. The cell of a pair shows one of these links: one
    that fails, if there is any; else that of the step; else, if the step was not measured, the last
    one. So each pair with a failing link has a red cell. If several fail, it does not matter which
    of them the cell shows, because the table below the map lists the links of all quantities.
    """
    names = [member.name for member in result.members]
    link_of_pair: dict[frozenset[str], Link] = {}
    # The links of the step come last, because a later link replaces an earlier one that did not
    # fail. (False sorts before True.)
    step_last = sorted(result.links, key=lambda link: link.quantity == "step")
    for link in step_last:
        pair = frozenset(link.members)
        earlier_link = link_of_pair.get(pair)
        if earlier_link is None or earlier_link.decision != "fail":
            link_of_pair[pair] = link
    rows = []
    for a in names:
        row = [_build_heat_cell(a, b, link_of_pair.get(frozenset((a, b)))) for b in names]
        rows.append(tuple(row))
    return HeatMap(phrase("accept.links"), tuple(names), tuple(rows))


def _build_heat_cell(a: str, b: str, link: Link | None) -> tuple[float | None, Tone, Phrase]:
    """Return slowdown as a share, tone and text on hover of the cell of two members.

    Args:
        a: name of one member.
        b: name of the other member.
        link: what was measured between both; None: nothing, or both are the same member. Then the
            cell is grey and has no slowdown.
    """
    if link is None:
        return None, "muted", join((a, b))
    share = link.interval.slower
    slowdown = phrase("accept.heat_hover", a=a, b=b, slowdown=describe_slowdown(share))
    tone: Tone = "bad" if link.decision == "fail" else "plain"
    return share, tone, (link.quantity, " ", slowdown)


def _build_link_table(links: Iterable[Link]) -> Block:
    """Return a table of the worst links between two members, at most ``_MAX_LINKS``.

    Those that fail come first, then those that are undecided, then those that pass; among each of
    these the slowest comes first.
    """
    headings = [
        phrase(f"accept_head.{name}")
        for name in ("name", "quantity", "decision", "slower", "interval", "rounds")
    ]
    order = {"fail": 0, "undecided": 1, "pass": 2}
    worst_first = sorted(links, key=lambda link: (order[link.decision], -link.interval.slower))
    rows = (
        (
            " – ".join(link.members),
            link.quantity,
            term("accept_decision", link.decision),
            format_share(link.interval.slower, sign=True),
            format_interval(link.interval),
            link.rounds,  # how many rounds measured the link
        )
        for link in worst_first[:_MAX_LINKS]
    )
    return build_table(headings, rows)
