"""The page of records: which sections there are, in which order, and what stands above them.

Owns the order. ``document`` is pure: the same records always give the same page, byte by byte,
whichever cases are installed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.pages.charts import references
from trainmark.pages.document import Block, Chart, Document, Section, Tone
from trainmark.pages.phrases import (
    TONES,
    device_configuration,
    grade_line,
    numbers,
    status_tone,
    trust_line,
    verdict,
)
from trainmark.pages.rendering import to_html, to_markdown
from trainmark.pages.sections import conditions, environment, figures, performance
from trainmark.pages.texts import Phrase, join, say, t
from trainmark.record.messages import in_short
from trainmark.record.trust import trust_of, verification_of
from trainmark.record.work import groups, printed_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.judge.comparison.sides import Result
    from trainmark.record.record import Record

_WORST_FIRST: tuple[Tone, ...] = ("bad", "warn", "good")


def document(
    records: Sequence[Record], against: Sequence[Result] = (), ident: str = ""
) -> Document:
    """Return the page of ``records``: one or more, all of one case.

    Args:
        against: what the records are compared with: other records, rows that others published.
        ident: begins the page's anchors where several pages are in one file.

    Raises:
        RecordError: records of several cases.
    """
    found = dict.fromkeys(record.plan.case for record in records)
    if len(found) > 1:
        what, remedy = f"records of {', '.join(found)}", "make a page for each case"
        raise RecordError(what, rule="a page shows one case", remedy=remedy)
    about = records[0].plan.about
    columns = performance.column_set(about.references)
    metric = performance.quality_header(records[0])
    numbered = enumerate(zip(records, numbers(records), strict=True), start=1)
    beside = [*_beside(records, against)]
    # Where nothing could be compared, that is no first thing to read.
    told = [one for one in beside if not any(isinstance(block, Chart) for block in one.blocks)]
    sections: list[Section | None] = [
        *(conditions.cause(record, number, place) for place, (record, number) in numbered),
        performance.performance(records, columns, metric),
        performance.columns_meaning(records, columns, metric),
        *(section for section in beside if section not in told),
        performance.published(records),
        *figures.per_record(records),
        *figures.repeats(records),
        Section(t("section.figures"), "figures"),
        figures.further(records, columns),
        figures.quality(records),
        figures.counts(records),
        *figures.telemetry(records),
        figures.audited(records),
        *told,
        Section(t("section.run"), "run"),
        conditions.facts(records),
        *conditions.declared(records),
        conditions.general(records),
        *environment.environment(records, against),
        environment.repeating(records),
        environment.provenance(records),
        environment.glossary(),
    ]
    lead: tuple[Block, ...] = ()
    if len(records) == 1 or figures.same_launches(records):
        lead = (performance.tiles(records, columns, metric),)
    badge, tone = _badge(records)
    trust, reasons, trust_tone = _trust(records)
    return Document(
        title=t("page.title", title=about.title), badge=badge, tone=tone,
        verdict=_subtitle(records), trust=trust, trust_tone=trust_tone, reasons=reasons,
        lead=lead, sections=tuple(one for one in sections if one is not None), ident=ident,
    )  # fmt: skip


def _beside(records: Sequence[Record], against: Sequence[Result]) -> Iterator[Section]:
    """Yield each piece of work of the page beside what it is compared with."""
    works = groups(records) if against else []
    for place, members in enumerate(works, start=1):
        found = references.section(members, against)
        if found is not None:
            yield found.of_several(f"work{place}-" if len(works) > 1 else "", "")


def _badge(records: Sequence[Record]) -> tuple[Phrase, Tone]:
    """Return the status in a word, or how many passed, with the worst tone."""
    tone = min((status_tone(record.status) for record in records), key=_WORST_FIRST.index)
    if len(records) == 1:
        return t(f"status.{records[0].status}"), tone
    passed = sum(record.passed for record in records)
    return t("repeats.counted", passed=passed, all=len(records)), tone


def _trust(records: Sequence[Record]) -> tuple[Phrase, tuple[Phrase, ...], Tone]:
    """Return how far the figures can be trusted and why: over launches of one work together."""
    together = len(records) == 1 or figures.same_launches(records)
    members = [records] if together else [[record] for record in records]
    trusts = [(found, verification_of(group)) for group in members if (found := trust_of(group))]
    tone = min((TONES[trust.grade] for trust, _ in trusts), key=_WORST_FIRST.index)
    if len(trusts) == 1:
        grade = join((t("trust.label"), grade_line(*trusts[0])), "colon")
        return grade, tuple(map(in_short, trusts[0][0].reasons)), tone
    lines = ((f"[{place}] ", trust_line(*one)) for place, one in enumerate(trusts, start=1))
    return join((t("trust.label"), join(lines, "semicolon")), "colon"), (), tone


def _subtitle(records: Sequence[Record]) -> Phrase:
    """Return configuration and verdict of one record, or all configurations."""
    names = {say(name, "en"): name for name in map(device_configuration, records)}
    joined = join(names.values(), "semicolon")
    return joined if len(records) > 1 else join((joined, verdict(records[0])), "colon")


def markdown_page(records: Sequence[Record], lang: str = "en") -> str:
    """Return the result page of any records as Markdown: one case below the other.

    Raises:
        RecordError: no record.
        UsageError: no such language.
    """
    return "\n".join(to_markdown(page, lang) for page in documents(records))


def html_page(
    records: Sequence[Record], lang: str = "en", *, against: Sequence[Result] = ()
) -> str:
    """Return the result page of any records as one HTML file; raises as Markdown does.

    Args:
        lang: which of the languages is shown first.
        against: results to compare with, of which each case has its own.
    """
    return to_html(documents(records, against), lang)


def documents(records: Sequence[Record], against: Sequence[Result] = ()) -> list[Document]:
    """Return the pages of any records, one for each case in order of first appearance.

    A run that is named twice is there once. Versions of a case that print other columns or another
    quality are cases of their own here.

    Raises:
        RecordError: no record.
    """
    if not records:
        raise RecordError("no record to show", remedy="name one run or more")
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        key = (record.plan.case, record.quality.metric, *record.plan.about.references.columns)
        members = found.setdefault(key, [])
        if not any((record.run_id, record.figures) == (x.run_id, x.figures) for x in members):
            members.append(record)
    pages = []
    for place, members in enumerate(found.values(), start=1):
        case = members[0].plan.case
        others = [one for one in against if printed_work(one).get("case", case) == case]
        pages.append(document(members, others, f"{place}-" if len(found) > 1 else ""))
    return pages
