"""The results of a plan file: a table for people, a JSON document for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from trainmark.errors import EXIT_USAGE
from trainmark.pages import cells
from trainmark.pages.document import Block, Code, Paragraph, Table, table
from trainmark.pages.phrases import sentence, trust_line
from trainmark.pages.terminal import Screen, show
from trainmark.pages.texts import say
from trainmark.record.stats import Launches, over_launches
from trainmark.record.trust import trust_of, verification_of
from trainmark.record.work import exit_code as code_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.record.record import Record
    from trainmark.record.work import Outcome

_QUALITY = "quality"


def series_table(outcomes: Sequence[Outcome], *, screen: Screen | None = None) -> str:
    """Return a table with a row an entry, then reasons, remarks and folders.

    Figures are those of runs that passed, over several launches their geometric mean, with its
    interval for the result; ``/`` where there is none, and no column without any. What holds for
    several entries is said once. No line is wider than the screen, but for one with a folder.
    """
    said: dict[str, list[str]] = {}
    for words, name in (pair for outcome in outcomes for pair in _said(outcome)):
        said.setdefault(words, []).append(name)
    rows = [_row(outcome) for outcome in outcomes]
    heads = [head for head in rows[0] if any(row[head] not in ("", "/", None) for row in rows)]
    blocks: list[Block] = [
        table(heads, ([row[head] or None for head in heads] for row in rows)),
        *(Paragraph(f"{', '.join(names)}: {words}") for words, names in said.items()),
        *(Code(_place(outcome)) for outcome in outcomes if outcome.run_dir is not None),
    ]
    if code_of(outcomes) == EXIT_USAGE:
        blocks.append(Paragraph("nothing could run here: every run of the plan was skipped"))
    return show(blocks, screen)


def launch_table(records: Iterable[Record]) -> Table:
    """Return a row a launch: what ran, how it ended, how far it can be believed, the result."""
    rows = []
    for record in records:
        result, quality = record.figures["final_result"], record.quality
        shown = f"{cells.number(result.value)} {'' if result.value is None else result.unit}"
        reached = cells.quality_and_target(quality.value, quality.target)
        world = f"{record.plan.nnodes}x{record.plan.nproc}"
        ended = (record.status, record.trust.grade, record.verification)
        rows.append((record.run_id, record.plan.case, world, *ended, shown.strip(), reached))
    heads = ("run", "case", "ranks", "status", "trust", "evidence", "final_result", "quality")
    return table(heads, rows)


def _said(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yield the remarks on an entry, each once, with its name."""
    if outcome.state == "to run":
        return
    if outcome.reason:
        yield f"{outcome.state}: {outcome.reason}", outcome.name
    if outcome.fallen:
        yield f"did not pass before: {', '.join(_fallen(outcome))}", outcome.name
    trust = trust_of(outcome.records)
    if trust is not None:
        yield (
            f"trust: {say(trust_line(trust, verification_of(outcome.records)), 'en')}",
            outcome.name,
        )
    said = (words for record in outcome.records for words in _remarks(record))
    yield from ((words, outcome.name) for words in dict.fromkeys(said))


def _remarks(record: Record) -> Iterator[str]:
    """Yield why a launch that passed has no result, and what makes its figures doubtful."""
    why = _no_result(record)
    if why is not None:
        yield f"no final_result: {why}"
    for kind, items in (("finding", record.findings), ("note", record.notes)):
        for item in items:
            yield f"{kind}: {say(sentence(record, item), 'en')}"


def _no_result(record: Record) -> str | None:
    """Return the record's reason for the lack of a result; the status says it if it failed."""
    entry = record.figures.get("final_result")
    if not record.passed or entry is None or entry.value is not None:
        return None
    return say(sentence(record, entry.reason), "en")


def _place(outcome: Outcome) -> str:
    """Return the line with an entry's folder; in a dry run, also what would run."""
    if outcome.state == "to run":
        return f"{outcome.name}: to run in {outcome.run_dir}: {outcome.reason}"
    return f"{outcome.name}: {outcome.run_dir}"


def _row(outcome: Outcome) -> dict[str, str]:
    """Return the cells of a row by their headers."""
    document = _entry(outcome)
    result, loss, interval = document["final_result"], document["final_loss"], _interval(outcome)
    ends = ""
    if interval is not None:
        kind = " (range)" if interval.is_range else ""
        ends = f"{cells.number(interval.low)} – {cells.number(interval.high)}{kind}"
    passed = document["statuses"].count("passed")
    unit = document["final_result_unit"]
    return {
        "run": outcome.name,
        "status": outcome.state,
        "launches": f"{passed}/{outcome.planned}" if outcome.planned > 1 else "",
        "final_result": "" if result is None else f"{cells.number(result)} {unit}",
        "interval": ends,
        "quality": cells.quality_and_target(document["quality"], document["quality_target"]),
        "token/p/s": cells.number(document["tokens_per_s_per_device"]),
        "final_loss": "" if loss is None else f"{loss:.3f}",
        "mem": cells.memory(document["mem_bytes"], _over(outcome, "mem_total")),
    }


def series_json(outcomes: Sequence[Outcome], *, name: str, exit_code: int) -> dict[str, Any]:
    """Return all outcomes as one JSON document."""
    return {"plan": name, "exit_code": exit_code, "runs": [_entry(x) for x in outcomes]}


def _fallen(outcome: Outcome) -> list[str]:
    """Return the folders of launches that did not pass: ``toy``, in a series ``toy/r2``."""
    depth = 2 if outcome.planned > 1 else 1
    return ["/".join(folder.parts[-depth:]) for folder in outcome.fallen]


def _entry(outcome: Outcome) -> dict[str, Any]:
    records, result = outcome.records, _over(outcome, "final_result")
    return {
        "name": outcome.name,
        "status": outcome.state,
        "reason": outcome.reason,
        "run_dir": None if outcome.run_dir is None else str(outcome.run_dir),
        "launches": outcome.planned,
        "run_ids": [record.run_id for record in records],
        "statuses": [record.status for record in records],
        "did_not_pass_before": _fallen(outcome),
        "final_result": result,
        "final_result_unit": None if result is None else records[0].figures["final_result"].unit,
        "final_result_interval": to_jsonable_python(_interval(outcome)),
        "quality": _over(outcome, _QUALITY),
        "quality_target": records[0].quality.target if records else None,
        "tokens_per_s_per_device": _over(outcome, "token/p/s"),
        "final_result_reason": next(filter(None, map(_no_result, records)), None),
        "final_loss": _over(outcome, "final_loss"),
        "mem_bytes": _over(outcome, "mem"),
        "findings": _once(x.as_dict() for record in records for x in record.findings),
        "trust": to_jsonable_python(trust_of(records)),
        "verification": verification_of(records),
        "notes": _once(note.as_dict() for record in records for note in record.notes),
    }


def _once(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in items:
        found += [] if item in found else [item]
    return found


def _values(outcome: Outcome, name: str) -> list[float]:
    """Return a figure, or the quality, of an entry's launches; none unless all of them passed."""
    if outcome.state not in ("passed", "kept"):
        return []
    found = [x.quality.value if name == _QUALITY else x.figure(name) for x in outcome.records]
    return [value for value in found if value is not None]


def _over(outcome: Outcome, name: str) -> float | None:
    """Return the mean over an entry's launches."""
    values = _values(outcome, name)
    return over_launches(values).mean if values else None


def _interval(outcome: Outcome) -> Launches | None:
    """Return the result over several launches."""
    values = _values(outcome, "final_result")
    return over_launches(values) if len(values) > 1 else None
