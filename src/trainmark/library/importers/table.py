"""Turn a table of others into rows, whatever file it stands in.

Owns which tables hold results and which of their lines are rows; what the columns of a row say
together: labels such as ``A100单机8卡（1x8）``, names of configuration files such as
``config_A100x1x8``, changed hyper-parameters, contradictions; and the published rows that cases
ship. Must not know Markdown, CSV or files of others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from trainmark import cases
from trainmark.judge.audit.subject import workload_of
from trainmark.library.importers import cells
from trainmark.library.importers.cells import WORDS, CellError, columns, folded, nothing, plain
from trainmark.plan import reference
from trainmark.record.figures import FIGURES
from trainmark.record.work import Row, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Literal

    from trainmark.library.importers.cells import Column
    from trainmark.plan.reference import EvidenceLevel
    from trainmark.record.work import Reading
    from trainmark.spec import Message

_NUMERALS: dict[str, int] = WORDS["world"]["numerals"]
_MACHINES, _CARDS = WORDS["world"]["machines"], WORDS["world"]["cards"]
_COUNT = rf"[0-9]{{1,6}}|[{''.join(_NUMERALS)}]"
_WORLD = re.compile(r"\(\s*([0-9]{1,6})\s*[xX*]\s*([0-9]{1,6})\s*(?:\*\s*[0-9]+\s*G[iB]*)?\)")
_BARE = re.compile(r"(?:^|\s)([0-9]{1,2}) ?[xX] ?([0-9]{1,3})\s*$")  # `H100 1x8`; not `4090 x8`
_NUMBERED = re.compile(r"^\[[0-9]+\]\s+")  # rows of our own pages: `[1] A100 1 node x 2 (1x2)`
_ZEROS = re.compile(r"\.0*$")  # of counts that were written as floating-point numbers
_WORDS = re.compile(rf"({_COUNT}){_MACHINES}({_COUNT}){_CARDS}")
_ALL_CARDS = re.compile(rf"(?<![0-9A-Za-z])()([0-9]{{1,5}}){_CARDS}")
_ENGLISH = re.compile(r"\s([0-9]{1,6}) nodes? x ([0-9]{1,6})\s*$")
_FILE = re.compile(r"(?:config_)?(.*?)x([0-9]{1,6})x([0-9]{1,6})(?:\.?py)?")
_PRODUCT = re.compile(r"[A-Za-z]{0,6}[-_]?[A-Z]?[0-9]{2,5}")  # not `TP1PP1SH2SP8A10080G`
_MARK = re.compile(r"\[([^\[\]]+)\]")  # of our own pages: `H100 (1x8) [diverged]`
_STATUSES = {word: code for code, words in WORDS["status"].items() for word in words}
_CHANGE = re.compile(r"(\w[\w .-]{0,60}?) ?= ?(\"[^\"]*\"|[^\s,;()]+)")
_LABELS = ("configuration", "device")  # one of them says what a row is of
_FIGURES = FIGURES.keys() | WORDS["columns"]["figure"].keys()
_OF_MACHINE = 8  # cards; more than that are those of all machines
_RULE = re.compile(r"-{2,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What holds for every row of a file; ``notes`` are added to each."""

    file: str
    form: str
    model: str = ""
    framework: str = ""
    vendor: str | None = None
    device: str | None = None
    precision: str | None = None
    evidence: EvidenceLevel = "unverified"
    notes: tuple[Message, ...] = ()

    def unread(
        self, line: int, kind: Literal["file", "table", "row", "cell"], why: Message, raw: str = ""
    ) -> Unread:
        """Return what could not be read of this file."""
        return Unread(file=self.file, line=line, kind=kind, reason=why, raw=raw)


class Line(NamedTuple):
    """A line of a table: its number in the file, its cells, its text."""

    number: int
    cells: Sequence[str]
    raw: str


class Label(NamedTuple):
    """What a label says; None where it does not."""

    device: str | None
    nnodes: int | None
    nproc: int | None
    notes: list[Message]


def read(
    head: Line, body: Sequence[Line], page: Page, *, unknown: str = "ignored"
) -> Iterator[Row | Unread]:
    """Yield the rows of a table, and what cannot be read of it.

    Args:
        head: the headers; its number is that of the table, 0: each line is a row.
        unknown: role of headers that nobody knows, as of ``columns``.
    """
    known = columns(head.cells, unknown=unknown)
    if why := _no_results(known):
        yield page.unread(head.number, "table", why, head.raw)
        return
    whole = [line.cells for line in body if len(line.cells) >= len(known)]
    known = cells.with_commas(known, whole)
    for line in body:
        if head.number and (why := _no_row(line.cells, known)):
            if why.code == "row_is_heading":
                page = replace(page, model=plain(str(why.args["text"])))
            yield page.unread(line.number, "row", why, line.raw)
        else:
            yield from _row(line, known, page, head.number)


def _no_results(known: Sequence[Column]) -> Message | None:
    """Return why a table has no results: which column is missing; None: it has."""
    roles, shown = {column.role for column in known}, ", ".join(c.header for c in known)[:120]
    # One with figures of units alone may be of machines.
    if "target" not in roles and not any(c.name in _FIGURES for c in known):
        return message("table_without_results", columns=shown)
    if not roles & {*_LABELS, "nnodes", "nproc", "model"}:
        return message("table_without_configuration", columns=shown)
    return None


def _no_row(printed: Sequence[str], known: Sequence[Column]) -> Message | None:
    """Return why a line is no row: a heading between rows, a sentence, other cells than headers."""
    pairs = list(zip(known, printed, strict=False))
    labels = [cell for column, cell in pairs if column.role in _LABELS]
    others = [cell.strip() for column, cell in pairs if column.role not in _LABELS]
    ruled = any(map(_RULE.fullmatch, others))
    told = any(not nothing(cell) and not _RULE.fullmatch(cell) for cell in others)
    if labels and not told and not any(read_label(cell).nnodes for cell in labels):
        text = " ".join(labels).strip()[:120]
        return message("row_is_heading" if ruled else "row_is_text", text=text)
    if len(printed) < len(known) or any(cell.strip() for cell in printed[len(known) :]):
        return message("row_has_other_cells", cells=len(printed), columns=len(known))
    return None


def _row(line: Line, known: Sequence[Column], page: Page, table: int) -> list[Row | Unread]:
    """Return a row, then those of its cells that cannot be read."""
    pairs = list(zip(known, line.cells, strict=False))
    facts: dict[str, str] = {}
    for column, cell in pairs:
        if not column.is_figure and not nothing(cell):
            facts[column.role] = ", ".join(filter(None, (facts.get(column.role), cell.strip())))
    figures, unread = _figures(pairs, facts, page, line.number)
    metric = facts.get("metric") or next((c.name for c in known if c.role == "quality"), None)
    counts = [_ZEROS.sub("", facts[name]) for name in ("nnodes", "nproc") if name in facts]
    world = f"({'x'.join(counts)})" if len(counts) > 1 else ""
    device, model = facts.get("device"), facts.get("model") or page.model
    configuration = facts.get("configuration") or device or ""
    label = read_label(configuration, facts.get("config_file", ""), world)
    if "configuration" not in facts:
        device = label.device or device
        configuration = f"{device or model} {world}" if world else configuration
    changed = changes(facts.get("changes", ""))
    changed |= {"parallel": facts["parallel"]} if "parallel" in facts else {}
    named = next((changed[name] for name in WORDS["precision"] if name in changed), None)
    precision = facts.get("precision") or named or page.precision
    entry = Row(
        file=page.file, line=line.number, table=table, form=page.form, raw=line.raw,
        cells={column.header: cell for column, cell in pairs},
        configuration=configuration,
        case=_case_names().get(model.casefold()),
        model=model, framework=facts.get("framework") or page.framework,
        vendor=facts.get("vendor") or page.vendor, device=device or label.device or page.device,
        nnodes=label.nnodes, nproc=label.nproc,
        precision=precision and plain(precision).split(",")[0].strip().lower(),
        data_origin=facts.get("data_origin"), changes=changed, figures=figures,
        notes=[*page.notes, *label.notes, *_failures(facts)],
        evidence=page.evidence, metric=metric,
    )  # fmt: skip
    return [entry, *unread]


@cache
def _case_names() -> dict[str, str]:
    """Return the case of each name and alias, in lower case."""
    known, _ = cases.load_all()
    return {word.casefold(): case.name for case in known for word in (case.name, *case.aliases)}


def known_model(*names: str) -> str:
    """Return the first name that is a case's, or of a model that the audit knows; empty: none."""
    known = (x for x in names if x.casefold() in _case_names() or workload_of(None, x).names)
    return next(known, "")


def _failures(facts: dict[str, str]) -> list[Message]:
    """Return that the run did not pass, where its status or the mark behind its label says so."""
    words = [facts.get("status", ""), *_MARK.findall(plain(facts.get("configuration", "")))]
    codes = {_STATUSES[folded(word)] for word in words if folded(word) in _STATUSES}
    return [message(code) for code in sorted(codes)]


def _figures(
    pairs: Sequence[tuple[Column, str]], facts: dict[str, str], page: Page, line: int
) -> tuple[dict[str, Reading], list[Unread]]:
    """Return the figures of a row's cells, and the cells that cannot be read."""
    figures: dict[str, Reading] = {}
    unread = []
    for column, cell in pairs:
        if not column.is_figure:
            continue
        own = column
        if column.reads == "quality" and "metric" in facts:
            own = replace(column, name=facts["metric"])
        elif column.unit == "{work}/s":  # of our CSV, where a column of its own tells
            own = replace(column, unit=facts.get("unit", ""))
        try:
            found = cells.read(cell, own)
            # A target may stand in the cell of its quality and in a column of its own.
            if twice := [n for n in found if n in figures and figures[n].value != found[n].value]:
                raise CellError(message("figure_given_twice", name=twice[0]))
            figures |= found
        except CellError as error:
            unread.append(page.unread(line, "cell", error.reason, cell))
    return figures, unread


def read_label(label: str, config_file: str = "", columns: str = "") -> Label:
    """Return what a label and the name of its configuration file say, contradictions noted.

    ``columns`` is the world that other columns of the row tell, as a label prints it: ``(1x8)``.

    Words such as ``四机32卡`` count the cards of one machine up to 8, else those of all.
    """
    text = _NUMBERED.sub("", plain(label)).replace("×", "x")
    own, named = _WORLD.search(text) or _BARE.search(text), _FILE.fullmatch(plain(config_file))
    printed = own or _WORLD.fullmatch(columns)
    head = text[: own.start()].rstrip() if own else text
    # `H1004机32卡（4x8）`: the device's name ends where the number of machines begins.
    exact = printed and re.search(rf"({printed[1]}){_MACHINES}({_COUNT}){_CARDS}", head)
    words = exact or _WORDS.search(head) or _ENGLISH.search(head) or _ALL_CARDS.search(head)
    counted, nodes, cards = (0, 0), 0, 0
    if words:
        cards = _NUMERALS.get(words[2]) or int(words[2])
        nodes = _NUMERALS.get(words[1]) or int(words[1] or max(1, cards // _OF_MACHINE))
        of_all = cards > _OF_MACHINE and nodes and cards % nodes == 0
        counted = nodes, cards // nodes if of_all else cards
    if printed:
        world = int(printed[1]), int(printed[2])
    else:
        world = (int(named[2]), int(named[3])) if named else counted
    device = (head[: words.start()] if words else head).strip(" -/*\\,") if words or printed else ""
    if not device and named and _PRODUCT.fullmatch(named[1]):
        device = named[1]
    if 0 in world:
        return Label(device or None, None, None, [])
    notes = []
    all_ = cards == world[0] * world[1] and (nodes == world[0] or not (words and words[1]))
    if words and counted != world and not all_:
        shown = f"{world[0]}x{world[1]}"
        notes = [message("label_contradicts_itself", words=words[0].strip(), world=shown)]
    return Label(device or None, *world, notes)


def changes(text: str) -> dict[str, str]:
    """Return changed hyper-parameters by their printed names; ``bs=96,lr=0.00015``."""
    return {name.strip(): value for name, value in _CHANGE.findall(plain(text))}


def references(case: str) -> Iterator[Row]:
    """Yield each row of the ``reference.toml`` of ``case``, whose number is its line.

    Raises:
        UsageError: no such case.
        RecordError: its file is not valid.
    """
    of = cases.load(case)
    found = reference.of_case(of.name)
    head = Line(0, ["configuration", *found.columns], "")
    for number, entry in enumerate(found.rows, 1):
        page = Page(
            file=f"{reference.REFERENCE}{of.name}", form="reference", model=of.name,
            framework=of.framework, device=entry.device, precision=entry.precision,
            evidence=entry.source.evidence,
        )  # fmt: skip
        printed = [entry.configuration, *entry.cells.values()]
        line = Line(number, printed, " | ".join(printed))
        rows = read(head, [line], page, unknown="quality")
        yield from (one for one in rows if isinstance(one, Row))


def published(names: Iterable[str]) -> Iterator[Row]:
    """Yield the published rows of those cases that are here, each case's once."""
    here = cases.names()
    for name in dict.fromkeys(names):
        if name in here:
            yield from references(name)
