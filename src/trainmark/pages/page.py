"""The pages of records: one for each piece of work, and the files beside the records.

Owns the order of a page. ``document`` is pure: the same records always give the same page, byte
by byte, whichever cases are installed here.
"""

from __future__ import annotations

import pickle
import re
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING

from trainmark.data.documents import written_whole
from trainmark.errors import EnvironmentFault, RecordError
from trainmark.launch.python_commands import module_command
from trainmark.library.importers.table import published
from trainmark.pages import charts, summary
from trainmark.pages.document import Block, Chart, Document, Section, folded, side_by_side
from trainmark.pages.rendering import to_markdown
from trainmark.pages.sections import figures, limits, provenance
from trainmark.pages.sections.key_facts import key_facts
from trainmark.pages.texts import LANGUAGES, Phrase, devices, join, t
from trainmark.plan.overrides import fix_hp_text
from trainmark.record.record import RECORD_FILE, read
from trainmark.record.trust import verification_of
from trainmark.record.verify import checked
from trainmark.record.work import differing_settings, groups, printed_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainmark.launch.series import SeriesEntry
    from trainmark.pages.summary import Price
    from trainmark.record.record import Record
    from trainmark.record.work import Result

HTML_PAGE = "page.html"
_EARLIER = 5  # runs that a page is compared with unasked
_SEARCHED = 40  # folders in which they are looked for


def document(
    records: Sequence[Record],
    against: Sequence[Result] | None = None,
    ident: str = "",
    *,
    price: Price | None = None,
    address: str = "",
) -> Document:
    """Return the page of one run, or of several launches of the same work.

    Args:
        against: what it is compared with: other records, rows that others published. None:
            nothing was looked for, and the page does not mention a comparison.
        ident: begins the page's anchors where several pages are in one file.
        price: of an hour on all devices.
        address: where the record is, as the page has it.
    """
    record = summary.shown_of(records)
    comparison = None if against is None else limits.ruler(records, against)
    lead: list[Block | None]
    if record.cause:
        lead = [summary.what_to_try(record), key_facts(record), charts.curves(record)]
    else:
        lead = [
            key_facts(record), summary.tiles(records, price),
            side_by_side(limits.bar(record), limits.strip(record), comparison),
            charts.curves(record),
        ]  # fmt: skip
    sections: list[Section | None] = [
        provenance.cause(record),
        folded("performance", provenance.performance_table(records), is_open=True),
        _repeats(records),
        figures.ranks(record),
        charts.telemetry(record),
        figures.figures(summary.averaged(records), summary.cost(records, price), len(records)),
        figures.evaluations(record, address),
        figures.findings(records),
        provenance.published(record),
        provenance.run(record),
        provenance.environment(record),
        provenance.provenance(records),
    ]
    badge, tone = summary.badge(records)
    verification = verification_of(records)
    return Document(
        title=summary.title(record), badge=badge, tone=tone,
        verification=t(f"trust.{verification}"), verified_by=t(f"verified_by.{verification}"),
        sentence=summary.first_sentence(records), doubts=summary.doubts(records),
        key_figures=summary.key_figures(records), reasons=summary.reasons(records),
        lead=tuple(one for one in lead if one is not None),
        sections=tuple(one for one in sections if one and one.blocks), ident=ident,
    )  # fmt: skip


def _repeats(records: Sequence[Record]) -> Section | None:
    """Return the figures over several launches and their curves; None of one launch."""
    if len(records) == 1:
        return None
    found = summary.summary(records)
    curves = charts.overlays(
        {f"[{place}]": [one] for place, one in enumerate(records, start=1)},
        {f"[{place}]": one.run_id for place, one in enumerate(records, start=1)},
    )
    passed = t("repeats.counted", passed=len(found.passed), all=len(records))
    return folded("repeats", *summary.repeats(found), side_by_side(*curves), gist=passed)


def documents(
    records: Sequence[Record],
    against: Sequence[Result] | None = None,
    *,
    price: Price | None = None,
) -> list[Document]:
    """Return a page for each piece of work in order of first appearance, of several a table first.

    A run that is named twice is there once. Tables have a row a run, one for each case. A page of
    one record alone has its place beside that.

    Raises:
        RecordError: no record.
    """
    if not records:
        raise RecordError("no record to show", fix="name one run or more")
    once = [*{(record.run_id, str(record.figures)): record for record in records}.values()]
    works = groups(once)
    pages = [_overview(once, works)] if len(works) > 1 else []
    for place, members in enumerate(works, start=1):
        case = members[0].plan.case
        others = None
        if against is not None:
            others = [one for one in against if printed_work(one).get("case", case) == case]
        ident = f"{place}-" if len(works) > 1 else ""
        address = RECORD_FILE if len(once) == 1 else ""
        pages.append(document(members, others, ident, price=price, address=address))
    return pages


def _overview(records: Sequence[Record], works: Sequence[Sequence[Record]]) -> Document:
    """Return the performance tables and curves of several works, by case, and how they scale."""
    of_cases: dict[str, list[Record]] = {}
    for record in records:
        of_cases.setdefault(record.plan.case, []).append(record)
    sections = []
    for place, members in enumerate(of_cases.values(), start=1):
        of_case = [work for work in works if work[0].plan.case == members[0].plan.case]
        blocks: list[Block] = [provenance.performance_table(members)]
        if curves := side_by_side(*_curves_of_works(of_case, members, f"table{place}")):
            blocks.append(curves)
        sections.append(Section(members[0].plan.about.title, f"table{place}", tuple(blocks)))
    badge, tone = summary.badge(*works)
    verification = verification_of(records)
    return Document(
        title=t("overview.title", works=len(works), launches=len(records)), sentence="",
        badge=badge, tone=tone,
        verification=t(f"trust.{verification}"), verified_by=t(f"verified_by.{verification}"),
        sections=(*sections, *figures.scaling(works)), ident="all-",
    )  # fmt: skip


def _curves_of_works(
    works: Sequence[Sequence[Record]], rows: Sequence[Record], prefix: str
) -> list[Chart]:
    """Return the curves of several works of a case in one chart each.

    A line is one launch of a work. It is named by its row of the table, and by the settings in
    which the works differ.

    Args:
        rows: of the table, in their order.
        prefix: begins the names of the charts.
    """
    if len(works) < 2:
        return []
    shown = [summary.shown_of(work) for work in works]
    case = shown[0].plan.case
    differing = differing_settings((case, record.plan.recipe) for record in shown)
    sides: dict[str, list[Record]] = {}
    names: dict[str, Phrase] = {}
    for record in shown:
        mark = f"[{rows.index(record) + 1}]"
        recipe = record.plan.recipe
        settings = {name: recipe[name] for name in differing if name in recipe}
        sides[mark] = [record]
        names[mark] = join((devices(record), *([fix_hp_text(settings)] if settings else ())))
    return charts.overlays(sides, names, prefix=prefix)


def write_pages(records: Sequence[Record], folder: Path) -> None:
    """Write the result pages of one run, or of several together, that with charts last.

    It is drawn in a process of its own: the engine ends its process where it gets no memory.

    Raises:
        EnvironmentFault: the page with charts was not drawn.
    """
    for lang in LANGUAGES:
        with written_whole(folder / f"page.{lang}.md") as file:
            file.write(to_markdown(documents(records), lang).encode())
    if find_spec("vl_convert") is None:
        raise EnvironmentFault("vl_convert is not installed: pip install 'trainmark[pages]'")
    done = subprocess.run(
        module_command("trainmark.pages.rendering"), capture_output=True,
        input=pickle.dumps(documents(records, beside(records, folder))),
        start_new_session=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        if done.returncode < 0:  # what the engine prints then are addresses
            said = [f"ended by signal {-done.returncode}, as where memory is limited"]
        raise EnvironmentFault(f"{HTML_PAGE} was not drawn: {'; '.join(said)[:300]}")
    with written_whole(folder / HTML_PAGE) as file:
        file.write(done.stdout)


def beside(records: Sequence[Record], folder: Path | None) -> list[Result]:
    """Return what runs are compared with unasked: published rows of their cases, earlier runs.

    Args:
        folder: of the first run.
    """
    rows = published(record.plan.case for record in records)
    return [*rows, *(_earlier(records[0], folder) if folder else ())]


def _earlier(record: Record, folder: Path) -> list[Record]:
    """Return the launches of the newest earlier runs of a record's case beside its folder."""
    folder = folder.resolve()
    folder = folder.parent if re.fullmatch(r"r\d+", folder.name) else folder  # of a repeat
    order = record.started, folder.name  # times may be equal, of copies for instance
    runs = (
        [x for x in launches
         if x.plan.case == record.plan.case and (x.started, name) < order]
        for name, launches in newest_runs(folder.parent) if name != folder.name
    )  # fmt: skip
    return [launch for run in islice(filter(None, runs), _EARLIER) for launch in run]


def newest_runs(store: Path) -> Iterator[tuple[str, list[Record]]]:
    """Yield name and records of the runs in a folder, the last written first.

    Only the first ``_SEARCHED`` are read; a record that cannot be read is left out.
    """
    folders = (run for run in store.iterdir() if run.is_dir()) if store.is_dir() else ()
    files = {run: [*run.glob(RECORD_FILE), *run.glob(f"r*/{RECORD_FILE}")] for run in folders}
    newest_first = sorted(
        (run for run in files if files[run]),
        key=lambda run: (max(file.stat().st_mtime_ns for file in files[run]), run.name),
        reverse=True,
    )
    for run in newest_first[:_SEARCHED]:
        launches = []
        for file in sorted(files[run]):
            with suppress(RecordError):  # a fault of another run
                launches.append(read(file))
        yield run.name, launches


def write_summary(outcome: SeriesEntry) -> None:
    """Write the page of a series beside its newest launches: of all, those that failed too."""
    place = outcome.run_dir
    if outcome.num_launches > 1 and place and place.exists() and not (place / HTML_PAGE).exists():
        fallen = [
            checked(read(x), x) for x in outcome.earlier_failures if (x / RECORD_FILE).exists()
        ]
        write_pages([*outcome.records, *fallen], place)
