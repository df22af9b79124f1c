"""The result page in the founding form, as Markdown and as one HTML file.

Owns the order of the page and the two templates. ``compose`` is pure: the same records
always give the same page, byte by byte, whichever cases are installed here.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from trainmark.errors import RecordError, UsageError, escaped, nearest
from trainmark.pages import (
    cells,
    conditions,
    drawing,
    embedding,
    environment,
    evaluations,
    outcome,
    provenance,
    published,
    telemetry,
)
from trainmark.pages.audited import audited
from trainmark.pages.charts import references
from trainmark.pages.declared import declared
from trainmark.pages.document import Chart, Page, Section
from trainmark.pages.listing import TONES, tone_of, trust_line
from trainmark.pages.tables import column_set, device_configuration, quality_header
from trainmark.pages.texts import LANGUAGES, text
from trainmark.record.messages import render
from trainmark.record.trust import trust_of
from trainmark.record.work import groups, printed_work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jinja2 import Environment

    from trainmark.judge.comparison.sides import Result
    from trainmark.pages.document import Block, Tone
    from trainmark.record.record import Record

__all__ = [
    "LANGUAGES", "body_html", "compose", "html_page", "markdown_page", "pages_of", "to_html",
    "to_markdown",
]  # fmt: skip

_NUMBER = re.compile(r"(\[\d+\] )?[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?|/|[\d.]+/[\d./]+")
_TAGS = {"en": "en", "zh": "zh-Hans"}  # of languages, as HTML has them
_WORST_FIRST: tuple[Tone, ...] = ("bad", "warn", "good")


def compose(
    records: Sequence[Record],
    *,
    lang: str = "en",
    ident: str = "",
    against: Sequence[Result] = (),
) -> Page:
    """Return the page of ``records``: one or more, all of one case.

    Args:
        ident: begins the page's anchors; another one for each page of a document.
        against: what the records are compared with: other records, rows that others published.

    Raises:
        RecordError: records of several cases.
        UsageError: no such language.
    """
    if lang not in LANGUAGES:
        raise UsageError(f"no page in {lang!r}", where="--lang", remedy=nearest(lang, LANGUAGES))
    found = dict.fromkeys(record.plan.case for record in records)
    if len(found) > 1:
        raise RecordError(
            f"records of {', '.join(found)}",
            rule="a page shows one case",
            remedy="make a page for each case",
        )
    about = records[0].plan.about
    columns = column_set(about.references)
    metric = quality_header(about.references, metric=records[0].quality.metric)
    several = len(records) > 1
    causes = [
        conditions.cause(record, lang, number=f" [{place}]" if several else "")
        for place, record in enumerate(records, start=1)
    ]
    beside = [*_beside(records, lang, against)]
    # Where nothing could be compared, that is no first thing to read.
    told = [one for one in beside if not any(isinstance(block, Chart) for block in one.blocks)]
    sections: list[Section | None] = [
        *causes,
        outcome.performance(records, lang, columns=columns, metric=metric),
        conditions.columns_meaning(records, about, lang, columns=columns, metric=metric),
        *(section for section in beside if section not in told),
        published.references(records, about, lang),
        *outcome.per_record(records, lang),
        *outcome.repeats(records, lang),
        Section(text("section.figures", lang), 2, "figures"),
        outcome.further(records, lang, columns=columns),
        evaluations.quality(records, lang),
        outcome.counts(records, lang),
        *telemetry.sections(records, lang),
        audited(records, lang),
        *told,
        Section(text("section.run", lang), 2, "run"),
        conditions.facts(records, lang),
        *declared(records, lang),
        conditions.general(records, about, lang),
        *environment.environment(records, lang, against),
        provenance.repeating(records, lang),
        provenance.footer(records, lang),
        provenance.glossary(lang),
    ]
    lead: tuple[Block, ...] = ()
    if not several or outcome.same_launches(records):
        lead = (outcome.tiles(records, lang, columns=columns, metric=metric),)
    badge, tone = _badge(records, lang)
    trust, reasons, trust_tone = _trust(records, lang)
    return Page(
        title=text("page.title", lang, title=about.title.in_language(lang)),
        lang=lang,
        badge=badge,
        tone=tone,
        verdict=_subtitle(records, lang),
        trust=trust,
        trust_tone=trust_tone,
        reasons=reasons,
        lead=lead,
        sections=tuple(section for section in sections if section is not None),
        ident=ident,
    )


def _beside(records: Sequence[Record], lang: str, against: Sequence[Result]) -> Iterator[Section]:
    """Yield each piece of work of the page beside what it is compared with."""
    works = groups(records) if against else []
    for place, members in enumerate(works, start=1):
        found = references.section(members, against, lang)
        if found is not None:
            yield found.of_several(f"work{place}-") if len(works) > 1 else found


def _badge(records: Sequence[Record], lang: str) -> tuple[str, Tone]:
    """Return the status in a word, or how many passed, with the worst tone."""
    tones = {tone_of(record) for record in records}
    tone = next(tone for tone in _WORST_FIRST if tone in tones)
    if len(records) == 1:
        return text(f"status.{records[0].status}", lang), tone
    passed = sum(record.passed for record in records)
    return text("repeats.counted", lang, passed=passed, all=len(records)), tone


def _trust(records: Sequence[Record], lang: str) -> tuple[str, tuple[str, ...], Tone]:
    """Return how far the figures can be trusted and why: over launches of one work together."""
    together = len(records) == 1 or outcome.same_launches(records)
    members = [records] if together else [[record] for record in records]
    trusts = [found for group in members if (found := trust_of(group)) is not None]
    label = text("trust.label", lang) + text("sep.colon", lang)
    tone = min((TONES[trust.grade] for trust in trusts), key=_WORST_FIRST.index)
    if len(trusts) == 1:
        reasons = tuple(cells.clean(render(reason, lang)) for reason in trusts[0].reasons)
        return label + text(f"trust.{trusts[0].grade}", lang), reasons, tone
    lines = [f"[{place}] {trust_line(trust, lang)}" for place, trust in enumerate(trusts, start=1)]
    return label + text("sep.semicolon", lang).join(lines), (), tone


def _subtitle(records: Sequence[Record], lang: str) -> str:
    """Return configuration and verdict of one record, or all configurations."""
    names = dict.fromkeys(device_configuration(record, lang=lang) for record in records)
    joined = text("sep.semicolon", lang).join(names)
    if len(records) > 1:
        return joined
    return joined + text("sep.colon", lang) + conditions.verdict(records[0], lang)


@cache
def templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trainmark.pages"),
        # Markdown escapes by its own filter; everything else is HTML or goes into HTML.
        autoescape=lambda name: name is None or not name.endswith(".md.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "md": cells.markdown,
        "fence": cells.fence,
        "clean": cells.clean,
        "svg": drawing.svg,
        "drawing": drawing.document,
    }
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.tests["numeric"] = lambda cell: _NUMBER.fullmatch(cell) is not None
    environment.globals |= {"text": text, "tags": _TAGS}
    return environment


def to_markdown(page: Page) -> str:
    """Return the page as GitHub-flavoured Markdown."""
    written = templates().get_template("page.md.j2").render(page=page)
    return escaped(re.sub(r"\n{3,}", "\n\n", written).strip()) + "\n"


def body_html(page: Page, *, static: bool) -> str:
    """Return head and sections of a page as HTML, to stand in a document of another.

    Args:
        static: charts are drawn; otherwise the script that is in the document draws them.
    """
    body = templates().get_template("body.html.j2")
    return escaped(body.render(page=page, static=static, live=not static))


def to_html(
    pages: Mapping[str, Sequence[Page]],
    lang: str,
    *,
    records: Sequence[Record] = (),
    scripts: bool = False,
) -> str:
    """Return pages as one HTML file in all their languages; it never asks for another.

    Args:
        pages: by language, one below the other.
        lang: which of the languages is shown first.
        records: that are in the file too, as JSON.
        scripts: whether charts answer the pointer, and what scripts add else.
    """
    embedded, left_out = embedding.records_within(records)
    sources = (embedding.shipped("report.js"), drawing.scripts()) if scripts else ()
    written = templates().get_template("page.html.j2").render(
        pages=pages, lang=lang, records=embedded, left_out=left_out, static=True, live=scripts,
        scripts=[embedding.script(source) for source in sources],
    )  # fmt: skip
    return escaped(written)


def markdown_page(records: Sequence[Record], lang: str = "en") -> str:
    """Return the result page of any records as Markdown: one case below the other.

    Raises:
        RecordError: no record.
        UsageError: no such language.
    """
    return "\n".join(to_markdown(compose(members, lang=lang)) for members in _by_case(records))


def html_page(
    records: Sequence[Record],
    lang: str = "en",
    *,
    against: Sequence[Result] = (),
    scripts: bool = True,
) -> str:
    """Return the result page of any records as one HTML file; raises as Markdown does.

    Args:
        lang: which of the languages is shown first.
        against: results to compare with, of which each case has its own.
        scripts: whether the file has scripts; without them it is small.
    """
    languages = dict.fromkeys((*LANGUAGES, lang))
    pages = pages_of(records, languages, against=against)
    shown = [record for members in _by_case(records) for record in members]
    return to_html(pages, lang, records=shown, scripts=scripts)


def pages_of(
    records: Sequence[Record],
    languages: Iterable[str],
    *,
    against: Sequence[Result] = (),
) -> dict[str, list[Page]]:
    """Return the pages of any records by language, one for each case; arguments as of HTML."""
    by_case = _by_case(records)
    beside = [_of_case(against, members[0].plan.case) for members in by_case]
    numbers = [f"{place}-" if len(by_case) > 1 else "" for place in range(1, len(by_case) + 1)]
    return {
        one: [
            compose(members, lang=one, ident=f"{one}-{number}", against=others)
            for members, number, others in zip(by_case, numbers, beside, strict=True)
        ]
        for one in languages
    }


def _of_case(against: Sequence[Result], case: str) -> list[Result]:
    """Return those results that are of ``case``, or of an unknown one."""
    return [one for one in against if printed_work(one).get("case", case) == case]


def _by_case(records: Sequence[Record]) -> list[list[Record]]:
    """Return the records of each page in order of first appearance, a run named twice once.

    Versions of a case that print other columns or another quality are cases of their own here.
    """
    if not records:
        raise RecordError("no record to show", remedy="name one run or more")
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        about = record.plan.about
        key = (record.plan.case, record.quality.metric, *about.references.columns)
        members = found.setdefault(key, [])
        if not any(_same_launch(record, known) for known in members):
            members.append(record)
    return [*found.values()]


def _same_launch(record: Record, other: Record) -> bool:
    return record.run_id == other.run_id and record.figures == other.figures
