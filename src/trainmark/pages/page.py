"""The pages of records: one for each piece of work, and the files beside the records.

Owns the order of a page. ``document`` is pure: the same records always give the same page, byte
by byte, whichever cases are installed here.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING

from trainmark.data.documents import written_whole
from trainmark.errors import EnvironmentFault, RecordError
from trainmark.library.importers.table import published
from trainmark.pages import charts, summary
from trainmark.pages.document import Block, Document, Section, folded
from trainmark.pages.rendering import to_markdown
from trainmark.pages.sections import figures, limits, provenance
from trainmark.pages.texts import LANGUAGES, t
from trainmark.record.record import RECORD_FILE, read
from trainmark.record.trust import verification_of
from trainmark.record.verify import checked
from trainmark.record.work import groups, printed_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainmark.launch.series import Outcome
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
    lead: list[Block | None] = [summary.cause_facts(record)] if record.cause else [
        summary.tiles(records, price),
        None if against is None else limits.ruler(records, against), limits.bar(record),
        limits.strip(record),
    ]  # fmt: skip
    steps, over_time = charts.of_record(record)
    sections: list[Section | None] = [
        provenance.cause(record),
        folded("performance", provenance.performance_table(records)),
        folded("repeats", *summary.repeats(summary.summary(records))) if len(records) > 1 else None,
        steps,
        figures.ranks(record),
        over_time,
        figures.figures(summary.averaged(records), summary.cost(records, price), len(records)),
        figures.evaluations(record, address),
        figures.doubts(records),
        provenance.published(record),
        provenance.run(record),
        provenance.environment(record),
        provenance.provenance(records),
    ]
    badge, tone = summary.badge(records)
    return Document(
        title=summary.title(record), badge=badge, tone=tone,
        verification=t(f"trust.{verification_of(records)}"),
        sentence=summary.first_sentence(records), doubts=summary.doubts(records),
        key_figures=summary.key_figures(records), reasons=summary.reasons(records),
        lead=tuple(one for one in lead if one is not None),
        sections=tuple(one for one in sections if one and one.blocks), ident=ident,
    )  # fmt: skip


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
        raise RecordError("no record to show", remedy="name one run or more")
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
    """Return the performance tables of several works, one for each case, and how they scale."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.plan.case, []).append(record)
    sections = (
        Section(of[0].plan.about.title, f"table{place}", (provenance.performance_table(of),))
        for place, of in enumerate(found.values(), start=1)
    )
    badge, tone = summary.badge(*works)
    return Document(
        title=t("section.performance"), verification=t(f"trust.{verification_of(records)}"),
        badge=badge, tone=tone, sentence="",
        sections=(*sections, *figures.scaling(works)), ident="all-",
    )  # fmt: skip


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
        [sys.executable, "-P", "-m", "trainmark.pages.rendering"], capture_output=True,
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


def write_summary(outcome: Outcome) -> None:
    """Write the page of a series beside its newest launches: of all, those that failed too."""
    place = outcome.run_dir
    if outcome.planned > 1 and place and place.exists() and not (place / HTML_PAGE).exists():
        fallen = [checked(read(x), x) for x in outcome.fallen if (x / RECORD_FILE).exists()]
        write_pages([*outcome.records, *fallen], place)
