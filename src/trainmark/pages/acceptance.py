"""The page of an acceptance: summary, list to exclude, verdicts, links, how certain they are."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trainmark.acceptance.request import MAX_REPEATS
from trainmark.pages.cells import format_duration
from trainmark.pages.document import (
    Block,
    Code,
    Document,
    Facts,
    HeatMap,
    Paragraph,
    Section,
    Strip,
    build_table,
)
from trainmark.pages.texts import (
    Phrase,
    Tone,
    format_named_values,
    join,
    or_unknown,
    phrase,
    term,
    translate,
)
from trainmark.record.findings import BUSY_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.acceptance.groups import Outcome
    from trainmark.acceptance.result import (
        AcceptanceResult,
        Finding,
        Interval,
        Link,
        Member,
        Whole,
    )

_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "undecided": "warn"}
_WHOLE_TONES: dict[Outcome, Tone] = {
    "as_predicted": "good",
    "found": "bad",
    "evenly_slow": "warn",
    "cannot_tell": "warn",
    "unfinished": "warn",
}
_MAX_NAMED = 5  # members that the sentence names
_MAX_SHARE = 10.0  # larger shares are shown as ">1000%"
_MAX_HEAT_MAP = 128  # members; the links of more are only in the table
_MAX_LINKS = 200  # rows of the table, the slowest first


def build_acceptance_document(result: AcceptanceResult) -> Document:
    """Return the page of an acceptance, which decides for each device or node whether it passes.

    These devices or nodes are the members of the acceptance.
    """
    badge = _choose_badge(result)
    sections = [
        Section(
            phrase("accept.members"),
            "members",
            (
                *_list_peer_groups(result),
                _build_member_table(result.members),
                *_explain_columns(result.members),
            ),
        ),
        _build_links_section(result),
        # A whole is a training of all nodes of one product and software together.
        Section(
            phrase("accept.whole"), "whole", tuple(map(_describe_whole_cluster, result.wholes))
        ),
        # Whether devices compute the same training with the same bits.
        Section(phrase("accept.bits"), "bits", tuple(_describe_bits(result))),
        Section(phrase("accept.how_sure"), "how-sure", tuple(_describe_sensitivity(result))),
        Section(phrase("accept.measured"), "measured", (_list_measurement_facts(result),)),
        # A sentence for each round of measurements that failed.
        Section(
            phrase("accept.not_measured"),
            "not-measured",
            tuple(map(Paragraph, result.not_measured)),
        ),
    ]
    return Document(
        title=phrase("accept.title", n=len(result.members), unit=_name_unit(result)),
        badge=phrase(f"accept_badge.{badge}"),
        # `interrupted` is no verdict on a member, so `_TONES` has no tone for it.
        tone=_TONES.get(badge, "warn"),
        # A run's page says here whether its evidence was checked. This one says that the verdicts
        # are based on the evidence in the folder.
        verification=phrase("accept.checked"),
        sentence=summarize_acceptance(result),
        lead=tuple(_build_lead(result)),
        sections=tuple(section for section in sections if section.blocks),
    )


def _build_lead(result: AcceptanceResult) -> list[Block]:
    """Return what the page shows above its sections: warnings, failed members and the grid."""
    lead: list[Block] = []
    if result.interrupted:
        lead.append(Paragraph(phrase("accept.resume_page"), "warn"))
    busy = describe_busy_nodes(result)
    if busy:
        lead.append(Paragraph(busy, "warn"))
    failing = result.list_names("fail")
    if failing:
        # One line with a button that copies it, for the user to paste into a scheduler's command.
        exclude_list = Code(",".join(failing), copied=True)
        lead += [Paragraph(phrase("accept.exclude_list"), "heading"), exclude_list]
    lead.append(_build_member_grid(result))
    return lead


def list_acceptance_lines(result: AcceptanceResult, lang: str, *, folder: str) -> list[str]:
    """Return what a terminal shows: summary, tolerances, each member that fails or is undecided.

    If a signal stopped the measurement, the last line says how to resume it.

    Args:
        result: its members are the devices or nodes on which the acceptance decides.
        lang: ``en`` or ``zh``.
        folder: of the acceptance, as the user would write it.
    """
    lines: list[Phrase] = [summarize_acceptance(result), *_describe_tolerances(result)]
    lines += [
        (
            "  ",
            member.name,
            ": ",
            term("accept_decision", member.decision),
            "; ",
            explain_verdict(member),
        )
        for member in result.members
        if member.decision != "pass"
    ]
    busy = describe_busy_nodes(result)
    if busy:
        lines.append(busy)
    if result.interrupted:
        lines.append(phrase("accept.resume", folder=folder))
    return [translate(line, lang) for line in lines]


def _describe_tolerances(result: AcceptanceResult) -> list[Phrase]:
    """Return a line with the tolerances of the training step and of all other measured quantities.

    A tolerance is the share by which a member may be slower than others and still pass. There is
    no line if nothing was judged.
    """
    parts: dict[str, Phrase] = {}
    for quantity in result.quantities:
        # ``worse_by`` is the tolerance. All quantities besides the step have the same one, so the
        # last of them stands for all.
        kind = "step" if quantity.name == "step" else "others"
        parts[kind] = phrase(f"accept_tolerance.{kind}", share=_format_tolerance(quantity.worse_by))
    if not parts:
        return []
    ordered = [parts[kind] for kind in ("step", "others") if kind in parts]
    return [phrase("accept_tolerance.line", parts=join(ordered, "semicolon"))]


def _format_tolerance(share: float) -> str:
    """Return a tolerance in percent, with as many digits as it was given."""
    return f"{100 * share:g}%"


def summarize_acceptance(result: AcceptanceResult) -> Phrase:
    """Return a sentence: how many members pass, which ones to exclude, and which are undecided.

    A member is a device or a node. The sentence also says if the acceptance was interrupted.
    """
    num_passed = len(result.list_names("pass"))
    num_members = len(result.members)
    unit = _name_unit(result)
    parts: list[Phrase] = []
    if num_members == 0:
        parts.append(phrase("accept.none_measured"))
    elif num_members == 1:
        name = "one_passes" if num_passed else "one_does_not_pass"
        parts.append(phrase(f"accept.{name}", n=num_members, unit=unit))
    elif num_passed == num_members:
        parts.append(phrase("accept.all_pass", n=num_members, unit=unit))
    else:
        parts.append(phrase("accept.some_pass", passed=num_passed, n=num_members, unit=unit))
    failing = [member for member in result.members if member.decision == "fail"]
    if failing:
        named = [
            phrase("accept.named", name=member.name, why=explain_verdict(member))
            for member in failing
        ]
        parts.append(phrase("accept.exclude", names=join_first_names(named)))
    if result.list_names("undecided"):
        parts.append(
            phrase("accept.undecided", names=join_first_names(result.list_names("undecided")))
        )
    if result.interrupted:  # the name of the signal that ended it; None: it was not interrupted
        parts.append(phrase("accept.interrupted", signal=result.interrupted))
    return join(parts, "semicolon")


def describe_busy_nodes(result: AcceptanceResult) -> Phrase:
    """Return which nodes were busy with other programs while they measured; else an empty text."""
    facts = result.measurement
    shares = {} if facts is None else facts.others_cpu_share
    busy_nodes = [
        phrase("accept.named", name=node, why=f"{share:.0%}")
        for node, share in shares.items()
        if share > BUSY_SHARE
    ]
    return phrase("accept.busy", names=join_first_names(busy_nodes)) if busy_nodes else ""


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
        by=_describe_interval(finding.interval),
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
        "accept.by",
        slower=format_share(interval.slower),
        low=format_share(interval.low),
        high=format_share(interval.high),
    )


def _name_unit(result: AcceptanceResult) -> Phrase:
    """Return what the members are, in words: nodes or devices; singular if there is only one."""
    if len(result.members) == 1:
        is_device = result.unit == "device"
        return phrase("accept_unit.one_device" if is_device else "accept_unit.one_node")
    return phrase(f"accept_unit.{result.unit}")


def _choose_badge(result: AcceptanceResult) -> str:
    """Return the word for the whole acceptance: fail, interrupted, undecided or pass.

    The first of these that applies is chosen: one member that fails is enough for ``fail``, and one
    that is undecided for ``undecided``. Without members nothing was measured, which is no pass.
    """
    if result.list_names("fail"):
        return "fail"
    if result.interrupted:
        return "interrupted"
    if result.list_names("undecided") or not result.members:
        return "undecided"
    return "pass"


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


def _describe_slowdown(share: float) -> Phrase:
    """Return how much slower something is in words; a negative share is a speedup."""
    name = "faster" if share < 0 else "slower"
    return phrase(f"accept.{name}", share=format_share(abs(share)))


def _list_measurement_facts(result: AcceptanceResult) -> Facts:
    """Return what was measured, when and with which software, for whoever files the page."""
    items: list[tuple[Phrase, Phrase]] = [
        (phrase("accept_fact.case"), result.case),
        (phrase("accept_fact.recipe"), result.recipe),
        (phrase("accept_fact.overrides"), format_named_values(result.overrides)),
    ]
    facts = result.measurement
    if facts is not None:  # None: an earlier version wrote the result
        software = {"Trainmark": result.suite_version, **facts.software}
        rounds = format_named_values({name: str(count) for name, count in facts.rounds.items()})
        items += [
            (phrase("accept_fact.started"), or_unknown(facts.started)),
            (phrase("accept_fact.ended"), or_unknown(facts.ended)),
            (phrase("accept_fact.duration"), format_duration(facts.duration_s)),
            (phrase("accept_fact.sessions"), str(facts.sessions)),
            (phrase("accept_fact.rounds"), rounds),
            (phrase("accept_fact.devices"), _count_devices(result, facts.devices)),
            (phrase("accept_fact.software"), format_named_values(software)),
        ]
    return Facts(tuple(items))


def _count_devices(result: AcceptanceResult, num_devices: int) -> Phrase:
    """Return how many devices of each product were measured; of nodes, how many those have."""
    products = Counter(member.product for member in result.members if member.product)
    name = "accept_fact.node_count" if result.unit == "node" else "accept_fact.device_count"
    parts: list[Phrase] = [
        phrase(name, n=count, product=product) for product, count in products.items()
    ]
    if result.unit == "node":
        parts.append(phrase("accept_fact.devices_of_nodes", n=num_devices))
    return or_unknown(None) if not parts else join(parts)


def _build_member_grid(result: AcceptanceResult) -> Strip:
    """Return a coloured cell for each member, and how many members have each verdict.

    Hovering over a cell shows the member's verdict.
    """
    row = tuple((_TONES[member.decision], _describe_member(member)) for member in result.members)
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


def _build_member_table(members: Iterable[Member]) -> Block:
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
            None if member.step is None else _format_interval(member.step),
            member.product,
            explain_verdict(member),
        )
        for member in members
    )
    return build_table(headings, rows)


def _explain_columns(members: Iterable[Member]) -> list[Block]:
    """Return why the time of a step and the slowdown may order members differently.

    Nothing if no member was compared with others.
    """
    if all(member.step is None for member in members):
        return []
    return [Paragraph(phrase("accept.columns"), "muted")]


def _list_peer_groups(result: AcceptanceResult) -> list[Block]:
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
            _describe_member_set(group.members),
            ", ".join(group.products),
            # A package may be missing in a group.
            ", ".join(f"{name} {version or '—'}" for name, version in group.software.items()),
        )
        for group in result.peer_groups
    )
    # No fault, but a warning: members of different groups were not compared with each other.
    return [Paragraph(phrase("accept.peer_groups"), "warn"), build_table(headings, rows)]


def _format_interval(interval: Interval) -> str:
    return f"{format_share(interval.low, sign=True)} – {format_share(interval.high, sign=True)}"


def _build_links_section(result: AcceptanceResult) -> Section:
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
    slowdown = phrase("accept.heat_hover", a=a, b=b, slowdown=_describe_slowdown(share))
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
            _format_interval(link.interval),
            link.rounds,  # how many rounds measured the link
        )
        for link in worst_first[:_MAX_LINKS]
    )
    return build_table(headings, rows)


def _describe_whole_cluster(whole: Whole) -> Paragraph:
    """Return what was found when all nodes of one product and software trained together.

    Each outcome has a sentence of its own: ``as_predicted``: the training is as fast as the
    measurements of single nodes and pairs predict. ``found``: it is slower because of some groups
    of nodes, which have a fault. ``evenly_slow``: every part of the cluster is slower.
    ``cannot_tell``: it is slower although its parts are fast by themselves, and it cannot be
    decided which of them has the fault. ``unfinished``: there were too few measurements. A training
    that failed counts as slower.
    """
    # Two of the sentences name sets of nodes; all of these are fast by themselves. ``groups``, of
    # the outcome ``found``, are those that made other nodes slow when they trained with them.
    # ``parts``, of ``cannot_tell``, are all sets into which the cluster was divided.
    node_sets = whole.groups or whole.parts
    if whole.interval is None:  # the training failed, so it has no slowdown
        share = phrase("accept_whole.failed_share")
    else:
        share = phrase(
            "accept_whole.slower_share",
            slowdown=_describe_slowdown(whole.interval.slower),
            low=format_share(whole.interval.low, sign=True),
            high=format_share(whole.interval.high, sign=True),
        )
    text = phrase(
        f"accept_whole.{whole.outcome}",
        n=whole.num_members,
        share=share,
        groups=join(map(_describe_member_set, node_sets), "semicolon"),
    )
    return Paragraph(text, _WHOLE_TONES[whole.outcome])


def _describe_member_set(members: Sequence[str]) -> Phrase:
    """Return the names of up to ``_MAX_NAMED`` members; of more, the first, the last and how many.

    A member is a device or a node.
    """
    if len(members) <= _MAX_NAMED:
        return join(members)
    return phrase("accept_whole.range", first=members[0], last=members[-1], n=len(members))


def _describe_bits(result: AcceptanceResult) -> list[Block]:
    """Return for each product whether its software is deterministic, so that results must agree.

    Each device of a product trained more than once with the same seed. Devices whose results differ
    are not named here: the table of members has a finding of each.
    """
    return [
        # ``devices`` is their number. ``control`` is what the repeated trainings showed:
        # ``deterministic`` (most devices got one result, each time), ``not_deterministic`` (at
        # least half of the devices did not get their own result again), ``no_majority`` (no result
        # is that of most devices), or ``not_measured``.
        Paragraph(phrase(f"accept_bits.{bits.control}", product=bits.product, n=bits.devices))
        for bits in result.bits
    ]


def _describe_sensitivity(result: AcceptanceResult) -> list[Block]:
    """Return how sure the verdicts are: what times are compared with, and what slowdowns show.

    First comes the baseline, if there is one; then the noise and the tolerance of each quantity,
    and of the step also its trend and the detectable slowdown.

    The noise is the standard deviation of a measurement, as a share: of a member alone (``noise``),
    and of two members together (``noise_of_pairs``). The trend is the share by which all pairs
    became slower during the acceptance. A link between two members that is slower by the detectable
    slowdown (``detectable_link``) is found with a probability of 95%.
    """
    blocks: list[Block] = []
    # With a baseline, times of members measured alone are compared with it, not with their peers.
    if result.baseline is not None:
        blocks.append(Paragraph(phrase("accept.baseline", name=result.baseline)))
    for quantity in result.quantities:
        # Noise that was not measured is left out: a machine with two devices has no pairs.
        parts: list[Phrase] = []
        if quantity.noise is not None:
            share = format_share(quantity.noise)
            parts.append(phrase(f"accept_noise.{result.unit}", share=share))
        if quantity.noise_of_pairs is not None:
            share = format_share(quantity.noise_of_pairs)
            parts.append(phrase("accept_noise.pair", share=share))
        # ``worse_by`` is the share by which a member may be slower and still pass.
        parts.append(phrase("accept_noise.limit", share=_format_tolerance(quantity.worse_by)))
        blocks.append(Paragraph(join((quantity.name, join(parts, "semicolon")), "colon")))
        if quantity.name != "step":
            continue
        if quantity.trend is not None:
            # This text formats the share itself: by its sign it says faster or slower.
            blocks.append(Paragraph(phrase("accept.trend", share=quantity.trend)))
        if quantity.detectable_link is not None:
            share = format_share(quantity.detectable_link)
            blocks.append(Paragraph(phrase("accept.link_chance", share=share)))
    return blocks
