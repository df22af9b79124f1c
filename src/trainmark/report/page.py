"""The result page in the founding form, as Markdown and as one HTML file.

Owns the order of the page and the two templates. ``compose`` is pure: the same records
always give the same page, byte by byte, whichever cases are installed here.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from trainmark.errors import RecordError, UsageError, escaped, nearest
from trainmark.report import cells, conditions, environment, evaluations, outcome, telemetry
from trainmark.report.declared import declared
from trainmark.report.document import Page, Section
from trainmark.report.listing import TONES, tone_of, trust_line
from trainmark.report.tables import column_set, device_configuration, quality_header
from trainmark.report.texts import LANGUAGES, text
from trainmark.results.trust import trust_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Environment

    from trainmark.report.document import Block, Tone
    from trainmark.results.record import Record

__all__ = ["LANGUAGES", "compose", "html_page", "markdown_page", "to_html", "to_markdown"]

_NUMBER = re.compile(r"(\[\d+\] )?[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?|/|[\d.]+/[\d./]+")
_WORST_FIRST: tuple[Tone, ...] = ("bad", "warn", "good")


def compose(records: Sequence[Record], *, lang: str = "en") -> Page:
    """Return the page of ``records``: one or more, all of one case.

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
            remedy="make a page for each case, or use --format csv",
        )
    about = records[0].plan.about
    columns = column_set(about.references)
    metric = quality_header(about.references, metric=records[0].quality.metric)
    several = len(records) > 1
    causes = [
        conditions.cause(record, lang, number=f" [{place}]" if several else "")
        for place, record in enumerate(records, start=1)
    ]
    sections: list[Section | None] = [
        *causes,
        outcome.performance(records, lang, columns=columns, metric=metric),
        conditions.columns_meaning(records, about, lang, columns=columns, metric=metric),
        *outcome.per_record(records, lang),
        *outcome.repeats(records, lang),
        Section(text("section.figures", lang), 2, "figures"),
        outcome.further(records, lang, columns=columns),
        evaluations.quality(records, lang),
        outcome.counts(records, lang),
        *telemetry.sections(records, lang),
        outcome.references(records, about, lang),
        Section(text("section.run", lang), 2, "run"),
        conditions.facts(records, lang),
        *declared(records, lang),
        conditions.general(records, about, lang),
        *environment.environment(records, lang),
        outcome.footer(records, lang),
        outcome.glossary(lang),
    ]
    lead: tuple[Block, ...] = ()
    if not several or outcome.same_launches(records):
        lead = (outcome.tiles(records, lang, columns=columns, metric=metric),)
    badge, tone = _badge(records, lang)
    trust, trust_tone = _trust(records, lang)
    return Page(
        title=text("page.title", lang, title=about.title.in_language(lang)),
        lang=lang,
        badge=badge,
        tone=tone,
        verdict=_subtitle(records, lang),
        trust=trust,
        trust_tone=trust_tone,
        lead=lead,
        sections=tuple(section for section in sections if section is not None),
    )


def _badge(records: Sequence[Record], lang: str) -> tuple[str, Tone]:
    """Return the status in a word, or how many passed, with the worst tone."""
    tones = {tone_of(record) for record in records}
    tone = next(tone for tone in _WORST_FIRST if tone in tones)
    if len(records) == 1:
        return text(f"status.{records[0].status}", lang), tone
    passed = sum(record.passed for record in records)
    return text("repeats.counted", lang, passed=passed, all=len(records)), tone


def _trust(records: Sequence[Record], lang: str) -> tuple[str, Tone]:
    """Return how far the figures can be trusted: over launches of the same work together."""
    together = len(records) == 1 or outcome.same_launches(records)
    members = [records] if together else [[record] for record in records]
    trusts = [found for group in members if (found := trust_of(group)) is not None]
    lines = [trust_line(trust, lang) for trust in trusts]
    if len(lines) > 1:
        lines = [f"[{place}] {line}" for place, line in enumerate(lines, start=1)]
    tone = min((TONES[trust.grade] for trust in trusts), key=_WORST_FIRST.index)
    label = text("trust.label", lang) + text("sep.colon", lang)
    return label + text("sep.semicolon", lang).join(lines), tone


def _subtitle(records: Sequence[Record], lang: str) -> str:
    """Return configuration and verdict of one record, or all configurations."""
    names = dict.fromkeys(device_configuration(record, lang=lang) for record in records)
    joined = text("sep.semicolon", lang).join(names)
    if len(records) > 1:
        return joined
    return joined + text("sep.colon", lang) + conditions.verdict(records[0], lang)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trainmark.report"),
        # Markdown escapes by its own filter; everything else is HTML or goes into HTML.
        autoescape=lambda name: name is None or not name.endswith(".md.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": cells.markdown, "fence": cells.fence, "clean": cells.clean}
    environment.tests["numeric"] = lambda cell: _NUMBER.fullmatch(cell) is not None
    return environment


def to_markdown(page: Page) -> str:
    """Return the page as GitHub-flavoured Markdown."""
    written = _templates().get_template("page.md.j2").render(page=page)
    return escaped(re.sub(r"\n{3,}", "\n\n", written).strip()) + "\n"


def to_html(page: Page) -> str:
    """Return the page as one HTML file that loads nothing else."""
    return escaped(_templates().get_template("page.html.j2").render(page=page))


def markdown_page(records: Sequence[Record], lang: str = "en") -> str:
    """Return the result page of records of one case as Markdown.

    Raises:
        RecordError: no record, or records of several cases.
        UsageError: no such language.
    """
    return to_markdown(_of_case(records, lang))


def html_page(records: Sequence[Record], lang: str = "en") -> str:
    """Return the result page of records of one case as one HTML file; raises as Markdown does."""
    return to_html(_of_case(records, lang))


def _of_case(records: Sequence[Record], lang: str) -> Page:
    if not records:
        raise RecordError("no record to show", remedy="name one run or more")
    return compose(records, lang=lang)
