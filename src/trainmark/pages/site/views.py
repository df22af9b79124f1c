"""The pages of the site, each as one HTML document, and their addresses.

An address is relative to the page that has it. Pages of the first language lie in the site's
folder, those of another in a folder named by the language. Data and the files that pages load are
not repeated for each language.
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
from trainmark.pages.comparison_charts import chart_overlays, chart_ratios
from trainmark.pages.document import (
    Block,
    Paragraph,
    Section,
    build_columns,
    build_table,
    find_charts,
)
from trainmark.pages.judgements import build_comparison, build_scaling
from trainmark.pages.page import build_document
from trainmark.pages.rendering import render_template, to_body_html
from trainmark.pages.texts import (
    LANGUAGES,
    Link,
    Phrase,
    describe_devices,
    describe_grade,
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
    from collections.abc import Iterable, Mapping, Sequence

    from trainmark.errors import TrainmarkError
    from trainmark.pages.document import Table
    from trainmark.record.record import Record
    from trainmark.results.store.index import Index

MAX_COMPARED = 6
# The folder of a launch of a run with several: its run's folder, then `r` and its number.
_REPEAT = re.compile(r"(.*/)r[0-9]{1,6}", re.DOTALL)
# Names that are safe as they are. Apart from the letters of the time they are in lower case, so
# that no two are the same file on systems that do not distinguish upper and lower case.
_SAFE_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z-|[a-z])[a-z0-9._-]{0,150}")


def make_safe_file_name(text: str) -> str:
    """Return a file's name for a name from a record: the name itself if it is safe, else a hash.

    A safe name is no path, is not too long for any file system, and differs from every other safe
    name also on a file system that does not distinguish upper and lower case.
    """
    if _SAFE_NAME.fullmatch(text):
        return text
    return blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()


def get_run_path(run_id: str) -> str:
    """Return the path of a run's page in the folder of a language."""
    return f"runs/{make_safe_file_name(run_id)}.html"


@dataclass(frozen=True, slots=True)
class Links:
    """The addresses of the site, relative to one page.

    Args:
        path: of the page, below its language's folder: ``cases/toy.html``.
        lang: language of the page.
        served: whether a server sends the page, which can compare runs.
    """

    path: str
    lang: str = LANGUAGES[0]
    served: bool = False

    @property
    def file(self) -> str:
        """Return where the page is in the site's folder.

        ``path`` is below the folder of the page's language. The first language has no folder of its
        own: its pages lie in the site's folder itself.
        """
        return self.path if self.lang == LANGUAGES[0] else f"{self.lang}/{self.path}"

    @property
    def own_address(self) -> str:
        """Return the address of this page relative to itself, such as ``../runs/x.html``.

        Links to other pages of the language are written in the same way, so that a template can
        compare them with it.
        """
        return self.get_page_address(self.path)

    @property
    def translations(self) -> list[tuple[str, str]]:
        """Return each language with the address of this page in it, relative to this page."""
        # ``self.path`` is the page's path below the folder of any language.
        return [(lang, self.get_file_address(Links(self.path, lang).file)) for lang in LANGUAGES]

    def get_page_address(self, path: str) -> str:
        """Return the address of another page of the same language, relative to this page.

        Args:
            path: of that page, below the language's folder.
        """
        # ``self.path`` is this page's own path below the language's folder. The address leads up
        # to that folder, once for each folder of the path, and from there down to the other page.
        return "../" * self.path.count("/") + path

    def get_file_address(self, path: str) -> str:
        """Return the address of a file, relative to this page.

        Args:
            path: of the file, below the site's folder.
        """
        # ``self.file`` is this page's own path below the site's folder. The address leads up to
        # that folder, once for each folder of the path, and from there down to the file.
        return "../" * self.file.count("/") + path

    def get_case_address(self, case: str) -> str:
        """Return the address of a case's page."""
        return self.get_page_address(f"cases/{make_safe_file_name(case)}.html")

    def get_run_address(self, run_id: str) -> str:
        """Return the address of a run's page."""
        return self.get_page_address(get_run_path(run_id))

    def get_record_address(self, run_id: str) -> str:
        """Return the address of a run's record, which lies beside the run's page."""
        return self.get_file_address(get_run_path(run_id).removesuffix("html") + "json")


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
    """Return a page as HTML, of sections or with the body of a report.

    Args:
        links: the addresses of the site relative to this page, and the page's language.
        lead: blocks above the sections, none of them charts.
        trail: links of the pages above this one, without the list of runs, which is always first.
        actions: links that stand beside the title.
        body: HTML of a report, which is not escaped; None: the page has only sections.
    """
    # The page loads the script that draws charts only if it may have charts: ``charts`` below. The
    # HTML of a report is not searched for them.
    blocks = [block for section in sections for block in section.blocks]
    has_charts = body is not None or any(find_charts(block) for block in blocks)
    list_of_runs = Link(phrase("site.runs"), links.get_page_address("index.html"))
    return render_template(
        "site/page.html.j2",
        links.lang,
        links=links,
        title=title,
        sections=sections,
        lead=lead,
        trail=[list_of_runs, *trail],
        actions=actions,
        body=None if body is None else Markup(body),
        charts=has_charts,
        script_draws_charts=True,  # else the template would draw them as static pictures
        anchor_prefix="",  # the only document of the page: its anchors need no prefix
    )


def build_run_page(record: Record, launch_ids: Sequence[str], links: Links) -> str:
    """Return the page of a launch: its report, with links to all launches of the run.

    Args:
        record: of the launch.
        launch_ids: run ids of all launches of the run; each launch has one.
        links: the addresses of the site relative to this page, and the page's language.
    """
    # Compared with published rows, not with other runs, because the page is not written again if
    # other runs are added.
    published_rows = list(read_published([record.plan.case]))
    # Names in the record may have control characters. The index of runs has them escaped, and the
    # site's files are named after its entries, so links must be made from escaped names too.
    run_id = escape_controls(record.run_id)
    case = escape_controls(record.plan.case)
    document = build_document([record], published_rows, address=links.get_record_address(run_id))
    actions = []
    if len(launch_ids) > 1:
        for number, launch_id in enumerate(launch_ids, start=1):
            address = links.get_run_address(launch_id)
            actions.append(Link(phrase("site.launch", n=number), address))
    actions.append(Link("record.json", links.get_record_address(run_id)))
    return build_page(
        links,
        run_id,
        trail=[Link(case, links.get_case_address(case))],
        actions=actions,
        body=to_body_html(document, links.lang, script_draws_charts=True),
    )


def build_comparison_page(
    database: Index, run_ids: Sequence[str], *, allow: Sequence[str] = (), lang: str = "en"
) -> str:
    """Return the page that compares the first run with each of the others.

    A run counts with all its launches. The page calls each run a side and names it by a letter: A
    is the first. The work of a run is what must be equal to compare it with another, by keys:
    ``device_products``, for example, are the names of the devices.

    Args:
        database: the index of the runs.
        run_ids: of each run the id of any of its launches.
        allow: keys of the work in which the runs may differ.

    Raises:
        UsageError: there are fewer than two runs, or more than six.
        RecordError: there is no such run, or it cannot be read.
    """
    chosen = list(dict.fromkeys(run_ids))  # without duplicates, in the same order
    links = Links(_build_comparison_path(chosen, allow), lang, served=True)
    _refuse_number_of_runs(len(chosen))
    sides = _read_launches(database, chosen)  # of each run the records of its launches
    side_a, *other_sides = sides
    sections: list[Section] = []
    verdicts: list[Block] = []
    comparisons: dict[str, Comparison] = {}
    # Keys because of which a comparison was refused and that a reader may allow. Only the keys of
    # the dictionary count: it is a set that keeps its order.
    refused_keys: dict[str, None] = {}
    for letter, side in zip(ascii_uppercase[1:], other_sides, strict=False):
        # All launches of a run are of the same work, so the first one stands for them.
        differing_keys = find_differences(describe_work(side_a[0]), describe_work(side[0]))
        forbidden_keys = [key for key in differing_keys if key not in allow]
        blocks: list[Block]
        if forbidden_keys:
            # A link to allow some of the keys would help nobody if another can never be allowed.
            if not set(forbidden_keys) & set(NEVER_ALLOWED):
                refused_keys |= dict.fromkeys(forbidden_keys)
            words = phrase("site.refused", side=letter, keys=_translate_work_keys(forbidden_keys))
            blocks = [Paragraph(words, "warn")]
            # Sides that differ in the number of ranks may show how the work scales.
            scaling = find_scaling_of_sides(side_a, side)
            if scaling:
                blocks += build_scaling(scaling)
        else:
            # No key is forbidden, so the reader allowed all keys that differ.
            comparisons[letter] = compare(side_a, side, allow=differing_keys)
            # The verdict stands above all sections.
            verdict, *blocks = build_comparison(comparisons[letter], letter)
            verdicts.append(verdict)
        # The heading ``B/A`` says that figures of B are relative to those of A.
        sections.append(Section(f"{letter}/A", f"over-{letter}", tuple(blocks)))
    charts = _chart_sides(sides, comparisons)
    if charts:
        sections.insert(0, Section(phrase("site.charts"), "charts", charts))
    lead = [*verdicts, _build_compared_table(chosen, sides, links)]
    actions = []
    if refused_keys:
        path = _build_comparison_path(chosen, [*allow, *refused_keys])
        label = phrase("site.allow", keys=_translate_work_keys(refused_keys))
        actions.append(Link(label, links.get_page_address(path)))
    return build_page(links, phrase("site.side_by_side"), sections, lead=lead, actions=actions)


def _chart_sides(
    sides: Sequence[Sequence[Record]], comparisons: Mapping[str, Comparison]
) -> tuple[Block, ...]:
    """Return the chart of the ratios of figures, and those of the curves; empty if there are none.

    Args:
        sides: the launches of each run, in the order of the letters; side A is the first.
        comparisons: the comparison of a side with side A, by the side's letter. A side that must
            not be compared has none.
    """
    # The curves of sides that have the case of A can be drawn in one chart.
    case = sides[0][0].plan.case
    sides_of_case: dict[str, Sequence[Record]] = {}
    for letter, side in zip(ascii_uppercase, sides, strict=False):
        if side[0].plan.case == case:
            sides_of_case[letter] = side
    charts = [chart_ratios(comparisons), build_columns(*chart_overlays(sides_of_case))]
    return tuple(chart for chart in charts if chart is not None)


def _refuse_number_of_runs(number: int) -> None:
    """Refuse too few or too many runs to compare.

    Raises:
        UsageError: there are fewer than two runs, or more than six.
    """
    if not 2 <= number <= MAX_COMPARED:
        runs = "1 run" if number == 1 else f"{number} runs"
        rule = f"a comparison needs 2 to {MAX_COMPARED} runs"
        raise UsageError(f"{runs} cannot be compared", rule=rule, fix="choose runs from the list")


def _build_compared_table(
    run_ids: Sequence[str], sides: Sequence[Sequence[Record]], links: Links
) -> Table:
    """Return a row for each run that is compared, with the letter by which the page names it.

    Args:
        run_ids: of each run the id of one of its launches, to which its row links.
        sides: of each run, in the same order, the records of all its launches.
    """
    names = ("run_id", "case", "device", "launches", "trust")
    rows: list[list[Phrase]] = []
    for letter, run_id, side in zip(ascii_uppercase, run_ids, sides, strict=False):
        case = escape_controls(side[0].plan.case)
        rows.append(
            [
                letter,
                Link(run_id, links.get_run_address(run_id)),
                Link(case, links.get_case_address(case)),
                describe_devices(side[0]),
                len(side),
                describe_grade(grade_repeats(side), combine_verifications(side)),
            ]
        )
    return build_table(["", *(phrase(f"site.{name}") for name in names)], rows)


def _build_comparison_path(run_ids: Sequence[str], allow: Iterable[str]) -> str:
    """Return the path of a comparison's page, with its query.

    Args:
        run_ids: of each run the id of one of its launches.
        allow: keys of the work in which the runs may differ.
    """
    fields = [("run", run_id) for run_id in run_ids] + [("allow", key) for key in allow]
    return f"compare?{urlencode(fields)}"


def _translate_work_keys(keys: Iterable[str]) -> Phrase:
    """Return keys of the work in plain words."""
    return join(term("work", key) for key in keys)


def list_all_runs(database: Index, extra_columns: Sequence[str] = ()) -> list[list[dict[str, Any]]]:
    """Return all runs, each as a list of its launches; the run with the newest launch is first.

    A launch is a row of the index: its values by column name. Copies of a launch in other folders
    are left out: they have the same ``run_id``, but each row has an ``id`` of its own.

    Args:
        database: the index.
        extra_columns: columns to read besides those by which launches are grouped into runs.
    """
    runs: dict[Any, list[dict[str, Any]]] = {}
    listed_ids = set()
    columns = ("id", "run_id", "path", "repeat_index", *extra_columns)
    for launch in list_runs(database, columns=columns).as_dicts():  # the newest first
        if launch["run_id"] in listed_ids:  # a copy in another folder
            continue
        listed_ids.add(launch["run_id"])
        repeat = _REPEAT.fullmatch(launch["path"])
        # The folder that the launches of a repeated run share; the launch itself if it is alone.
        run_key = repeat[1] if repeat else launch["id"]
        runs.setdefault(run_key, []).append(launch)
    # ``repeat_index`` is the launch's number in its run; None for figures that others
    # published, which are rows of the index too.
    return [sorted(run, key=lambda launch: launch["repeat_index"] or 0) for run in runs.values()]


def read_record_for_site(path: Path) -> Record:
    """Return the record of a launch, checked, and redacted.

    Secrets and names of persons, machines and folders are replaced in it. It is checked against
    its evidence, the other files of the run, only if they are small: a page must not wait until
    large files are read.

    Args:
        path: the run directory.

    Raises:
        RecordError: the record is gone or cannot be read.
    """
    return redact_record(check_record(read_record(path), path, max_bytes=MAX_BYTES))


def _read_launches(database: Index, run_ids: Sequence[str]) -> list[list[Record]]:
    """Return the records of all launches of each run, as one list for each of ``run_ids``.

    Args:
        database: the index of the runs.
        run_ids: of each run the id of any of its launches.

    Raises:
        RecordError: there is no such run, or it cannot be read.
    """
    # The run of each launch, as the list of its launches.
    run_of_launch = {launch["run_id"]: run for run in list_all_runs(database) for launch in run}
    for run_id in run_ids:
        if run_id not in run_of_launch:
            # An id from an address may have any length.
            raise RecordError(
                f"no run {run_id[:200]!r} on this server", fix="choose runs from the list"
            )
    records_of_runs = []
    for run_id in run_ids:
        launches = run_of_launch[run_id]
        records_of_runs.append([read_record_for_site(Path(launch["path"])) for launch in launches])
    return records_of_runs


def build_not_found_page(path: str) -> str:
    """Return the page for an address at which there is none, in the language of the address.

    Args:
        path: of the address, below the site's folder. No link of the page contains it, because it
            may be anything.
    """
    # Pages of the first language are not in a folder of their own, those of others are.
    lang = LANGUAGES[0]
    path_in_language = path
    for language in LANGUAGES[1:]:
        if path.startswith(f"{language}/"):
            lang = language
            path_in_language = path.removeprefix(f"{language}/")
    # Links are relative, so the page's own path must have as many folders as the address. Their
    # names do not matter.
    links = Links("-/" * path_in_language.count("/") + "404.html", lang, served=True)
    runs = Link(phrase("site.to_runs"), links.get_page_address("index.html"))
    return build_page(
        links, phrase("site.not_found"), lead=[Paragraph(phrase("site.no_page")), Paragraph(runs)]
    )


def build_error_page(error: TrainmarkError, links: Links) -> str:
    """Return a page that says what is wrong, where, and what to do.

    It stands in the place of a page that cannot be made.

    Args:
        error: ``what`` is wrong and, if they are known: ``where``, the ``rule`` that says what is
            valid there, and the ``fix``.
        links: the addresses of the site relative to this page, and the page's language.
    """
    where = f"{error.where}: " if error.where else ""
    sentences = [f"{where}{error.what}", error.rule, error.fix]
    return build_page(
        links, phrase("site.fault"), lead=[Paragraph(x, "bad") for x in sentences if x]
    )
