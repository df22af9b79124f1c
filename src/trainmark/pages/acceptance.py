"""The page of an acceptance, and the lines that a terminal shows of it.

Owns the summary, the list to exclude, the members' verdicts, and how certain these are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trainmark.pages.acceptance_links import build_links_section
from trainmark.pages.acceptance_members import (
    DECISION_TONES,
    build_member_grid,
    build_member_table,
    explain_member_columns,
    list_peer_groups,
)
from trainmark.pages.acceptance_phrases import (
    describe_member_set,
    describe_slowdown,
    explain_verdict,
    format_share,
    join_first_names,
)
from trainmark.pages.cells import format_duration
from trainmark.pages.document import Block, Code, Document, Facts, Paragraph, Section
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
    from trainmark.acceptance.groups import Outcome
    from trainmark.acceptance.result import AcceptanceResult, Whole

_WHOLE_TONES: dict[Outcome, Tone] = {
    "as_predicted": "good",
    "found": "bad",
    "evenly_slow": "warn",
    "cannot_tell": "warn",
    "unfinished": "warn",
}


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
                *list_peer_groups(result),
                build_member_table(result.members),
                *explain_member_columns(result.members),
            ),
        ),
        build_links_section(result),
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
        # `interrupted` is no verdict on a member, so `DECISION_TONES` has no tone for it.
        tone=DECISION_TONES.get(badge, "warn"),
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
    lead.append(build_member_grid(result))
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
            slowdown=describe_slowdown(whole.interval.slower),
            low=format_share(whole.interval.low, sign=True),
            high=format_share(whole.interval.high, sign=True),
        )
    text = phrase(
        f"accept_whole.{whole.outcome}",
        n=whole.num_members,
        share=share,
        groups=join(map(describe_member_set, node_sets), "semicolon"),
    )
    return Paragraph(text, _WHOLE_TONES[whole.outcome])


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
