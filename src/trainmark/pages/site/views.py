"""The pages of the site, each as one HTML document, and their addresses.

An address is relative to the page that has it. Pages of the first language lie in the site's
folder, those of others in a folder of the language's name; data and what pages load is there once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from markupsafe import Markup

from trainmark.errors import RecordError, UsageError, escape_controls
from trainmark.judge.comparison import Comparison, compare
from trainmark.judge.comparison.scaling import find_scaling_of_sides
from trainmark.judge.comparison.sides import NEVER_ALLOWED
from trainmark.pages.charts import chart_overlays, chart_ratios
from trainmark.pages.document import Block, Paragraph, Section, build_columns, build_table
from trainmark.pages.judgements import build_comparison, build_scaling
from trainmark.pages.page import build_document
from trainmark.pages.rendering import render_template, to_body_html
from trainmark.pages.texts import (
    LANGUAGES,
    Link,
    Phrase,
    describe_devices,
    grade_line,
    join,
    phrase,
    term,
)
from trainmark.published.importers.reference_rows import read_published
from trainmark.record.record import read_record
from trainmark.record.trust import combine_verifications, grade_repeats
from trainmark.record.verify import MAX_BYTES, check_record
from trainmark.record.work import describe_work, find_differences
from trainmark.results.redaction import redact_record
from trainmark.results.store.query import list_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.errors import TrainmarkError
    from trainmark.pages.document import Table
    from trainmark.record.record import Record
    from trainmark.results.store.index import Index

MOST_COMPARED = 6
_REPEAT = re.compile(r"(.*/)r[0-9]{1,6}", re.DOTALL)
# No two of them are the same file where upper and lower case are not told apart.
_PLAIN = re.compile(r"([0-9]{8}T[0-9]{6}Z-|[a-z])[a-z0-9._-]{0,150}")


def name(text: str) -> str:
    """Return a name out of a record as one of a file that is safe."""
    if _PLAIN.fullmatch(text):
        return text
    return blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()


def run_file(run_id: str) -> str:
    """Return where a run's page is."""
    return f"runs/{name(run_id)}.html"


@dataclass(frozen=True, slots=True)
class Links:
    """Every address, as one page has it.

    Args:
        path: of the page, below its language's folder: ``cases/toy.html``.
        served: the site is a server's, which compares runs.
    """

    path: str
    lang: str = LANGUAGES[0]
    served: bool = False

    @property
    def file(self) -> str:
        """Return where the page is in the site's folder."""
        return self.path if self.lang == LANGUAGES[0] else f"{self.lang}/{self.path}"

    @property
    def here(self) -> str:
        """Return the page's own address."""
        return self.to(self.path)

    @property
    def translations(self) -> list[tuple[str, str]]:
        """Return each language with the address of this page in it."""
        return [(lang, self.root(Links(self.path, lang).file)) for lang in LANGUAGES]

    def to(self, path: str) -> str:
        """Return the address of another page of the language."""
        return "../" * self.path.count("/") + path

    def root(self, path: str) -> str:
        """Return the address of a file of the site's folder."""
        return "../" * self.file.count("/") + path

    def case(self, case: str) -> str:
        """Return the address of a case's page."""
        return self.to(f"cases/{name(case)}.html")

    def run(self, run_id: str) -> str:
        """Return the address of a run's page."""
        return self.to(run_file(run_id))

    def record(self, run_id: str) -> str:
        """Return the address of a run's record."""
        return self.root(run_file(run_id).removesuffix("html") + "json")


def build_page(
    links: Links,
    title: Phrase,
    sections: Sequence[Section] = (),
    *,
    lead: Sequence[Block] = (),
    trail: Sequence[Link] = (),
    actions: Sequence[Link] = (),
    body: str | None = None,
) -> str:
    """Return a page of sections, or with the body of a report in it."""
    kinds = {block.kind for section in sections for block in section.blocks}
    charts = body is not None or bool(kinds & {"chart", "columns"})
    first = Link(phrase("site.runs"), links.to("index.html"))
    return render_template(
        "site/page.html.j2",
        links.lang,
        links=links,
        title=title,
        sections=sections,
        lead=lead,
        trail=[first, *trail],
        actions=actions,
        body=body and Markup(body),
        charts=charts,
        live=True,
        ident="",
    )


def run_page(record: Record, launches: Sequence[str], links: Links) -> str:
    """Return the page of a run: its report, with its other launches and its record."""
    rows = read_published([record.plan.case])
    document = build_document([record], [*rows], address=links.record(record.run_id))
    run_id, case = (
        escape_controls(record.run_id),
        escape_controls(record.plan.case),
    )  # by which they are found
    several = enumerate(launches if len(launches) > 1 else (), start=1)
    actions = [
        Link(phrase("site.launch", n=place), links.run(launch_id)) for place, launch_id in several
    ]
    actions.append(Link("record.json", links.record(run_id)))
    return build_page(
        links,
        run_id,
        trail=[Link(case, links.case(case))],
        actions=actions,
        body=to_body_html(document, links.lang, live=True),
    )


def compare_page(
    database: Index, run_ids: Sequence[str], *, allow: Sequence[str] = (), lang: str = "en"
) -> str:
    """Return runs with all their launches, each of the others compared with the first.

    Args:
        allow: keys of the work in which runs that are compared may differ.

    Raises:
        UsageError: not two to six runs.
        RecordError: there is no such run, or it cannot be read.
    """
    chosen = list(dict.fromkeys(run_ids))
    links = Links(_compare_path(chosen, allow), lang, served=True)
    _check_number_of_runs(len(chosen))
    first, *others = sides = _list_sides(database, chosen)
    sections, verdicts, compared = list[Section](), list[Block](), dict[str, Comparison]()
    refused, shown = dict[str, None](), {"A": first}  # shown: of one case, whose curves compare
    for letter, side in zip(ascii_uppercase[1:], others, strict=False):
        unlike = find_differences(describe_work(first[0]), describe_work(side[0]))
        if kept := [key for key in unlike if key not in allow]:
            refused |= {} if {*kept} & {*NEVER_ALLOWED} else dict.fromkeys(kept)
            words = phrase("site.refused", side=letter, keys=_translate_work_keys(kept))
            blocks: list[Block] = [Paragraph(words, "warn")]
            if scaling := find_scaling_of_sides(first, side):
                blocks += build_scaling(scaling)
        else:
            compared[letter] = compare(first, side, allow=unlike)
            verdict, *blocks = build_comparison(compared[letter], letter)
            verdicts.append(verdict)
        if side[0].plan.case == first[0].plan.case:
            shown[letter] = side
        sections.append(Section(f"{letter}/A", f"over-{letter}", tuple(blocks)))
    drawn = [chart_ratios(compared), build_columns(*chart_overlays(shown))]
    charts = tuple(block for block in drawn if block is not None)
    if charts:
        sections.insert(0, Section(phrase("site.charts"), "charts", charts))
    lead = [*verdicts, _build_compared_table(chosen, sides, links)]
    more = links.to(_compare_path(chosen, [*allow, *refused]))
    actions = (
        [Link(phrase("site.allow", keys=_translate_work_keys(refused)), more)] if refused else []
    )
    return build_page(links, phrase("site.side_by_side"), sections, lead=lead, actions=actions)


def _check_number_of_runs(number: int) -> None:
    """Refuse too few or too many runs to compare.

    Raises:
        UsageError: not two to six.
    """
    if not 2 <= number <= MOST_COMPARED:
        runs = "1 run" if number == 1 else f"{number} runs"
        rule = f"a comparison takes 2 to {MOST_COMPARED} runs"
        raise UsageError(f"{runs} cannot be compared", rule=rule, fix="choose runs from the list")


def _build_compared_table(
    run_ids: Sequence[str], sides: Sequence[Sequence[Record]], links: Links
) -> Table:
    """Return a row for each run that is compared, with the letter of its side."""
    names = ("run_id", "case", "device", "launches", "trust")
    rows: list[list[Phrase]] = []
    for letter, run_id, side in zip(ascii_uppercase, run_ids, sides, strict=False):
        case = escape_controls(side[0].plan.case)
        rows.append(
            [
                letter,
                Link(run_id, links.run(run_id)),
                Link(case, links.case(case)),
                describe_devices(side[0]),
                len(side),
                grade_line(grade_repeats(side), combine_verifications(side)),
            ]
        )
    return build_table(["", *(phrase(f"site.{name}") for name in names)], rows)


def _compare_path(run_ids: Sequence[str], allow: Iterable[str]) -> str:
    fields = [("run", run_id) for run_id in run_ids] + [("allow", key) for key in allow]
    return f"compare?{urlencode(fields)}"


def _translate_work_keys(keys: Iterable[str]) -> Phrase:
    """Return keys of the work in plain words."""
    return join(term("work", key) for key in keys)


def list_all_runs(database: Index, more: Sequence[str] = ()) -> list[list[dict[str, Any]]]:
    """Return all runs, the newest first: what the index has of each launch.

    Args:
        more: columns beside those that tell which launches are of one run.
    """
    runs: dict[Any, list[dict[str, Any]]] = {}
    seen = set()
    columns = ("id", "run_id", "path", "repeat_index", *more)
    for launch in list_runs(database, columns=columns).as_dicts():
        if launch["run_id"] in seen:  # a copy
            continue
        seen.add(launch["run_id"])
        repeat = _REPEAT.fullmatch(launch["path"])
        runs.setdefault(repeat[1] if repeat else launch["id"], []).append(launch)
    return [sorted(run, key=lambda launch: launch["repeat_index"] or 0) for run in runs.values()]


def open_record(path: Path) -> Record:
    """Return the record of a run, redacted, and held against its evidence where that is small.

    Args:
        path: a run directory.

    Raises:
        RecordError: the record is gone or cannot be read.
    """
    return redact_record(check_record(read_record(path), path, max_bytes=MAX_BYTES))


def _list_sides(database: Index, run_ids: Sequence[str]) -> list[list[Record]]:
    """Return the launches of each run.

    Raises:
        RecordError: there is no such run, or it cannot be read.
    """
    beside = {launch["run_id"]: run for run in list_all_runs(database) for launch in run}
    for run_id in run_ids:
        if run_id not in beside:
            raise RecordError(
                f"no run {run_id[:200]!r} on this server", fix="choose runs from the list"
            )
    return [[open_record(Path(launch["path"])) for launch in beside[run_id]] for run_id in run_ids]


def build_not_found_page(path: str) -> str:
    """Return the page for an address at which there is none, in the language of the address.

    Args:
        path: of the address, below the site's folder. It is in no link of the page.
    """
    lang = next(
        (language for language in LANGUAGES[1:] if path.startswith(f"{language}/")), LANGUAGES[0]
    )
    below = path if lang == LANGUAGES[0] else path.partition("/")[2]
    links = Links("-/" * below.count("/") + "404.html", lang, served=True)
    runs = Link(phrase("site.to_runs"), links.to("index.html"))
    return build_page(
        links, phrase("site.not_found"), lead=[Paragraph(phrase("site.no_page")), Paragraph(runs)]
    )


def build_error_page(error: TrainmarkError, links: Links) -> str:
    """Return the page that says what is wrong with an address."""
    where = f"{error.where}: " if error.where else ""
    sentences = [f"{where}{error.what}", error.rule, error.fix]
    return build_page(
        links, phrase("site.fault"), lead=[Paragraph(x, "bad") for x in sentences if x]
    )
