"""The pages of records: one for each piece of work, and their files in the folders of runs.

The order of a page is defined here. The same records always give the same page, byte by byte,
regardless of the cases that are installed here.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trainmark.documents import write_atomically
from trainmark.errors import EnvironmentFault, RecordError
from trainmark.pages import cells, charts, repeats, summary, tiles
from trainmark.pages.comparison_charts import chart_overlays
from trainmark.pages.document import (
    Block,
    Chart,
    Columns,
    Document,
    Section,
    build_columns,
    build_folded_section,
)
from trainmark.pages.rendering import to_html, to_markdown
from trainmark.pages.sections import figures, limits, provenance
from trainmark.pages.sections.cause import build_cause
from trainmark.pages.sections.comparisons import compare_speed, compare_with_bound
from trainmark.pages.sections.key_facts import build_key_facts
from trainmark.pages.sections.performance_table import build_performance_table
from trainmark.pages.sections.published_rows import build_published_rows
from trainmark.pages.sections.ranks import build_rank_strip
from trainmark.pages.telemetry_charts import build_telemetry
from trainmark.pages.texts import LANGUAGES, Phrase, describe_devices, join, phrase
from trainmark.plan.recipes import format_fix_hp
from trainmark.record.record import RECORD_FILE, read_record
from trainmark.record.trust import combine_verifications
from trainmark.record.verify import check_record
from trainmark.record.work import describe_printed_work, find_differing_settings, group_by_work
from trainmark.results.earlier_runs import find_default_comparisons

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.launch.series import SeriesEntry
    from trainmark.pages.tiles import Price
    from trainmark.record.record import Record
    from trainmark.record.work import Result

HTML_PAGE = "page.html"
_MAX_ERROR_CHARACTERS = 300  # of an error of vl-convert, which may contain a whole specification
# V8 reserves so much address space when it starts (64 to 80 GiB with vl-convert 1.9, measured
# 2026-11), and ends the whole process if it gets less.
_MIN_ADDRESS_SPACE_BYTES = 96 * 1024**3


def build_document(
    records: Sequence[Record],
    comparisons: Sequence[Result] | None = None,
    anchor_prefix: str = "",
    *,
    siblings: Sequence[Record] = (),
    price: Price | None = None,
    address: str = "",
) -> Document:
    """Return the page of one run, or of several launches of the same work.

    Its badge is a short verdict on all launches, such as their grade or that they failed, and
    ``tone`` is the badge's colour. ``doubts`` are the reasons why the figures may not be trusted,
    the most serious first. ``reasons`` are the same in two lines, as a terminal shows them.
    ``verification`` says whether the records agree with the events of their runs, and
    ``verified_by`` how that was checked. The ``lead`` is what stands above the sections.

    Args:
        records: one for each launch.
        comparisons: other records, and rows that others published, with which the page compares the
            speed. None: the page does not mention a comparison.
        siblings: records of other work that have pages in the same file. One of them may be the
            same training with equal work forced on all experts, with which the page compares it.
        anchor_prefix: prefix of the page's anchors if several pages are in one file.
        price: what an hour on all devices costs; None: not known, so the page has no costs.
        address: where the record is, relative to the page; empty: the page does not link to it.
    """
    badge, tone = summary.choose_badge(records)
    verification = combine_verifications(records)
    return Document(
        title=summary.build_title(repeats.find_median_launch(records)),
        badge=badge,
        tone=tone,
        verification=phrase(f"trust.{verification}"),
        verified_by=phrase(f"verified_by.{verification}"),
        sentence=summary.build_first_sentence(records),
        doubts=summary.list_doubts(records),
        key_figures=summary.describe_key_figures(records),
        reasons=summary.list_reasons(records),
        lead=_build_lead(records, comparisons, siblings, price),
        sections=_build_sections(records, price, address),
        anchor_prefix=anchor_prefix,
    )


def _chart_median_launch(record: Record, records: Sequence[Record]) -> Block | None:
    """Return the charts of loss and step time; of several launches, the titles say of which one.

    Args:
        record: the median launch, whose curves stand for all.
        records: all launches of the page.
    """
    curves = charts.chart_curves(record)
    if len(records) == 1 or not isinstance(curves, Columns):
        return curves
    numbers = {launch.plan.repeat_index for launch in records}
    # Launches that are no repeats of one run may have the same number.
    has_numbers = len(numbers) == len(records)
    name = str(record.plan.repeat_index) if has_numbers else record.run_id
    named_curves = [
        replace(curve, title=phrase("chart.of_launch", title=curve.title, launch=name))
        for curve in curves.blocks
        if isinstance(curve, Chart)
    ]
    return Columns(tuple(named_curves))


def _build_lead(
    records: Sequence[Record],
    comparisons: Sequence[Result] | None,
    siblings: Sequence[Record],
    price: Price | None,
) -> tuple[Block, ...]:
    """Return the blocks above the sections; for a run that failed, what to do about it first.

    Args:
        records: launches of one work, which the page shows.
        comparisons: other records, and rows that others published, with which the speed is
            compared. None: the page does not mention a comparison.
        siblings: records of other work that have pages in the same file.
        price: what an hour on all devices costs; None: not known.
    """
    record = repeats.find_median_launch(records)  # its facts and curves stand for all launches
    blocks: list[Block | None]
    if record.cause:  # why the launch failed; None: it did not
        # Without tiles and comparisons, because the figures of a failed run do not count.
        curves = _chart_median_launch(record, records)
        blocks = [summary.suggest_fix(record), build_key_facts(record), curves]
    else:
        comparison = None
        if comparisons is not None:
            comparison = compare_speed(records, comparisons)
        blocks = [
            build_key_facts(record),
            tiles.build_tiles(records, price),
            # For a mixture of experts: the same training with its experts given equal work is the
            # bound of its speed. The two are different work, so if this page shows one of them, the
            # other is often among the siblings.
            compare_with_bound(records, [*siblings, *(comparisons or ())]),
            build_columns(limits.build_time_bar(record), build_rank_strip(record), comparison),
            _chart_median_launch(record, records),
        ]
    return tuple(block for block in blocks if block is not None)


def _build_sections(
    records: Sequence[Record], price: Price | None, address: str
) -> tuple[Section, ...]:
    """Return the sections of a page in their order, without those that are empty.

    Args:
        records: launches of one work, which the page shows.
        price: what an hour on all devices costs; None: not known, so no cost is shown.
        address: where the record is, relative to the page; empty: there is no link to it.
    """
    record = repeats.find_median_launch(records)  # its facts and curves stand for all launches
    sections = [
        build_cause(record),
        build_folded_section("performance", build_performance_table(records), is_open=True),
        _build_repeats(records),
        figures.build_ranks(record),
        build_telemetry(record),
        figures.build_figures(
            repeats.average_figures(records),
            tiles.describe_cost(records, price),
            launches=len(repeats.select_counted(records)),  # only these are averaged
        ),
        figures.build_evaluations(record, address),
        figures.build_printed_speeds(record),
        # The findings of all launches, but the limits of the speed of the median launch alone.
        figures.build_findings(records, record),
        build_published_rows(record),
        provenance.build_run_facts(record),
        provenance.build_environment(record),
        provenance.build_provenance(records),
    ]
    return tuple(section for section in sections if section is not None and section.blocks)


def _build_repeats(records: Sequence[Record]) -> Section | None:
    """Return the figures over several launches and their curves; None for one launch.

    Args:
        records: launches of the same work, in the order of the rows of the performance table.
    """
    if len(records) == 1:
        return None
    repeat_summary = repeats.build_summary(records)
    # The records of each curve, and its text in the legend, by the curve's label. Each launch is a
    # curve of its own, so that its list has one record. The label is its row in the table, `[1]`.
    curve_records: dict[str, list[Record]] = {}
    legend: dict[str, Phrase] = {}
    for number, record in enumerate(records, start=1):
        label = f"[{number}]"
        curve_records[label] = [record]
        legend[label] = record.run_id
    curves = chart_overlays(curve_records, legend)
    passed_text = phrase("repeats.counted", passed=len(repeat_summary.passed), all=len(records))
    return build_folded_section(
        "repeats", *repeats.build_repeats(repeat_summary), build_columns(*curves), gist=passed_text
    )


def build_documents(
    records: Sequence[Record],
    comparisons: Sequence[Result] | None = None,
    *,
    price: Price | None = None,
) -> list[Document]:
    """Return a page for each piece of work in order of first appearance.

    Launches are of the same work if they have the same case, settings, devices and data. If there
    are several works, a page with their tables comes first: a row for each launch, a table for each
    case. A launch that is given twice appears once. The page of one record alone links to the file
    of that record, which it expects in its own folder.

    Args:
        records: one for each launch, of one work or of several.
        comparisons: other records, and rows that others published; each page compares its work with
            those of the same case. None: no page mentions a comparison.
        price: what an hour on all devices costs; None: not known, so the pages have no costs.

    Raises:
        RecordError: no record.
    """
    if not records:
        raise RecordError("no record to show", fix="choose at least one run")
    # A launch that is given twice has the same run id and the same figures. If copies differ in
    # their figures, all are shown.
    unique = {(record.run_id, str(record.figures)): record for record in records}
    works = group_by_work(list(unique.values()))
    has_several = len(works) > 1
    pages = []
    if has_several:
        pages.append(_build_overview(list(unique.values()), works))
    for number, launches in enumerate(works, start=1):
        case = launches[0].plan.case
        # None: the page mentions no comparison. An empty list: it says that there is none.
        same_case = None
        if comparisons is not None:
            # ``describe_printed_work`` returns what published tables print of a work, and the same
            # facts of a record, without those that are not known. A record always has the key
            # "case". A published row that names neither case nor model has none: it may be of this
            # case.
            same_case = [
                x for x in comparisons if describe_printed_work(x).get("case", case) == case
            ]
        anchor_prefix = f"{number}-" if has_several else ""
        # The address of the record for the page's links. Several records are in different folders,
        # none of which is known here, so their pages have no such link.
        address = RECORD_FILE if len(unique) == 1 else ""
        # Records of the other works: one of them may show the upper bound of this work's speed.
        siblings = [record for record in unique.values() if record not in launches]
        pages.append(
            build_document(
                launches, same_case, anchor_prefix, siblings=siblings, price=price, address=address
            )
        )
    return pages


def _build_overview(records: Sequence[Record], works: Sequence[Sequence[Record]]) -> Document:
    """Return the page with the performance tables and curves of several works, and how they scale.

    It has a section for each case, then sections on works that differ only in their number of
    ranks.

    Args:
        records: all launches.
        works: the same launches, grouped by work: same case, settings, devices and data.
    """
    by_case: dict[str, list[Record]] = {}
    for record in records:
        by_case.setdefault(record.plan.case, []).append(record)
    sections = []
    for number, (case, case_records) in enumerate(by_case.items(), start=1):
        case_works = [work for work in works if work[0].plan.case == case]
        blocks: list[Block] = [build_performance_table(case_records)]
        curves = build_columns(*_overlay_works(case_works, case_records, f"table{number}"))
        if curves is not None:
            blocks.append(curves)
        title = case_records[0].plan.about.title
        sections.append(Section(title, f"table{number}", tuple(blocks)))
    badge, tone = summary.choose_badge(*works)  # a short verdict on all launches, and its colour
    # The worst over all records: whether their events agree with them, or were not checked.
    verification = combine_verifications(records)
    return Document(
        title=phrase("overview.title", works=len(works), launches=len(records)),
        sentence="",  # each work's own page has a sentence
        badge=badge,
        tone=tone,
        verification=phrase(f"trust.{verification}"),
        verified_by=phrase(f"verified_by.{verification}"),
        sections=(*sections, *figures.build_scaling_sections(works)),
        anchor_prefix="all-",  # begins the anchors, as a number does on the pages of the works
    )


def _overlay_works(
    works: Sequence[Sequence[Record]], rows: Sequence[Record], prefix: str
) -> list[Chart]:
    """Return the curves of several works of a case in one chart for each quantity.

    Each work has one curve, that of its median launch. The legend names it by its row of the
    performance table, its devices, and the settings in which the works differ.

    Args:
        works: the launches of each work, all of the same case.
        rows: records in the order of the rows of that table.
        prefix: begins the names of the charts, which must be unique on the page.
    """
    if len(works) < 2:  # the work's own page has its curves
        return []
    launches = [repeats.find_median_launch(work) for work in works]
    case = launches[0].plan.case
    # Settings are compared only between runs of one case: all of these are.
    differing = find_differing_settings((case, record.plan.recipe) for record in launches)
    # The records of each curve, here one, and its text in the legend, by the curve's label.
    curve_records: dict[str, list[Record]] = {}
    legend: dict[str, Phrase] = {}
    for record in launches:
        label = f"[{rows.index(record) + 1}]"
        recipe = record.plan.recipe
        settings = {name: recipe[name] for name in differing if name in recipe}
        parts = [describe_devices(record)]
        if settings:
            parts.append(format_fix_hp(settings))  # as `bs=8,lr=0.1`
        curve_records[label] = [record]
        legend[label] = join(parts)
    return chart_overlays(curve_records, legend, prefix=prefix)


def write_pages(records: Sequence[Record], folder: Path) -> None:
    """Write the result pages of one run, or of several together; the page with charts last.

    Args:
        records: one for each launch.
        folder: of the run; the pages are written into it, and the runs beside it are those with
            which the page with charts compares the records.

    Raises:
        EnvironmentFault: the page with charts cannot be drawn here.
        OSError: a page cannot be written.
    """
    # The Markdown pages come first: they have no charts, so they are written even if charts cannot
    # be drawn. They show the records alone; only the page with charts compares them with others.
    markdown_pages = build_documents(records)
    for lang in LANGUAGES:
        with write_atomically(folder / f"page.{lang}.md") as file:
            file.write(to_markdown(markdown_pages, lang).encode())
    _check_drawing()
    pages = build_documents(records, find_default_comparisons(records, folder))
    try:
        html = to_html(pages)
    except ValueError as error:  # vl-convert cannot draw a chart
        reason = " ".join(str(error).split())[:_MAX_ERROR_CHARACTERS]
        raise EnvironmentFault(f"{HTML_PAGE} was not written: {reason}") from error
    with write_atomically(folder / HTML_PAGE) as file:
        file.write(html.encode())


def _check_drawing() -> None:
    """Check that charts can be drawn in this process.

    Raises:
        EnvironmentFault: vl-convert is not installed, or its engine would get too little memory.
    """
    if find_spec("vl_convert") is None:
        raise EnvironmentFault("vl_convert is not installed: pip install 'trainmark[pages]'")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)  # the soft limit is the one that counts
    if limit != resource.RLIM_INFINITY and limit < _MIN_ADDRESS_SPACE_BYTES:
        raise EnvironmentFault(
            f"{HTML_PAGE} was not written: charts need {_MIN_ADDRESS_SPACE_BYTES // cells.GIB} GiB "
            f"of address space, but this process may use only {limit / cells.GIB:.0f} GiB "
            "(ulimit -v)"
        )


def write_entry_pages(entry: SeriesEntry) -> None:
    """Write the pages of all launches of an entry of a plan file, earlier failures included.

    Each call of the plan file that runs launches of the entry is an attempt, with a folder of its
    own. The pages are written into the folder of the newest attempt, once: no later call adds
    launches to that folder. Nothing is written for an entry of one launch, because that launch has
    its own pages.

    Args:
        entry: a run that the plan file asks for. ``run_dir`` is the folder of the newest attempt;
            None: there is none. ``records`` has one for each launch that passed in an earlier call
            or ended in this one. ``earlier_failures`` are folders of launches of earlier calls that
            did not pass or have no record.
    """
    folder = entry.run_dir
    # The folder of a new attempt does not exist if not even its first launch could begin.
    if entry.num_launches == 1 or folder is None or not folder.exists():
        return
    # An earlier call has written the page: a new attempt has a new folder, which has no page yet.
    if (folder / HTML_PAGE).exists():
        return
    # Compared with their events, as the entry's own records were when they were read.
    failures = [
        check_record(read_record(launch), launch)
        for launch in entry.earlier_failures
        if (launch / RECORD_FILE).exists()
    ]
    write_pages([*entry.records, *failures], folder)
