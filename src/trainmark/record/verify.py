"""Check a record once, when it is loaded: against itself, and against its evidence files.

A record with its events beside it that gives the same when it is reduced again is verified; any
other is unverified, and its trust names why. Of a record alone, figures, counts, spans, quality,
findings and trust are computed again, by the functions that made them, from the sums of ranks and
the series of steps. What ranks measured and nothing repeats, a matmul rate say, can only have a
wrong sign.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases
from trainmark.errors import CaseError, RecordError, UsageError
from trainmark.record import figures as figures_of
from trainmark.record import reduce
from trainmark.record.measured_checks import check_measured
from trainmark.record.plan_checks import check_plan
from trainmark.record.run import findings
from trainmark.record.run.cause import FIGURES_PLACE
from trainmark.record.trust import graded, of_launch, refutes, with_findings
from trainmark.record.work import major_minor
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from trainmark.record.record import Evidence, Record
    from trainmark.spec import OwnFigures

Difference = tuple[str, Any, Any]  # path of the value, as recorded, as computed again
# Tolerance for sums in another order, by another version of a library.
_RELATIVE = 1e-9
_LONGEST_SHOWN = 80
MOST_BYTES = 32 << 20  # of evidence: a list or a page is no place to wait for more


def checked(record: Record, folder: Path, *, most_bytes: int | None = None) -> Record:
    """Return ``record`` verified, or with what contradicts it or is missing in its trust.

    Args:
        folder: where its events would be.
        most_bytes: of evidence; more of it is not read.
    """
    large = most_bytes is not None and sum(x.bytes for x in record.evidence) > most_bytes
    found = [message("evidence_unchecked")] if large else verify(record, folder)
    if not any(refutes(one.code) for one in found):
        found = [*check_itself(record), *found]
    word = "unverified" if found else "verified"
    return with_findings(record, found).model_copy(update={"verification": word})


def check_itself(record: Record) -> list[Message]:
    """Return how values of a record contradict each other, as one message."""
    found: list[Difference] = []
    try:
        every = (*_computed_again(record), *check_measured(record), *check_plan(record))
        for place, recorded, expected in every:
            found += _differences(recorded, expected, place)
    except (LookupError, ArithmeticError, ValueError, TypeError, CaseError, UsageError) as error:
        # A rank, span, bound or field that others name is absent, or is no such value.
        found.append(("record", type(error).__name__, "values that fit each other"))
    return [_disagrees(found)] if found else []


def verify(record: Record, folder: Path) -> list[Message]:
    """Return the contradictions between ``record`` and the evidence in ``folder``."""
    files = {path.name: path for path in reduce.evidence_files(folder)}
    recorded = {entry.name: entry for entry in record.evidence}
    if not files:
        return [message("evidence_absent")]
    contradictions = []
    for name in sorted(recorded.keys() | files.keys()):
        if name not in files:
            contradictions.append(message("evidence_missing", file=name))
        elif name not in recorded or _is_altered(files[name], recorded[name]):
            contradictions.append(message("evidence_altered", file=name))
    return contradictions + _recomputed(record, folder)


def _is_altered(file: Path, recorded: Evidence) -> bool:
    """Return whether a file is not the recorded one; of another size it is not hashed."""
    return file.stat().st_size != recorded.bytes or reduce.describe_evidence(file) != recorded


def _recomputed(record: Record, folder: Path) -> list[Message]:
    """Return how the record differs from one reduced again from the same evidence."""
    try:
        anew = reduce.reduce(folder, files=record.evidence)
    except (RecordError, OSError, ValueError) as error:
        return [message("evidence_unreadable", error=f"{type(error).__name__}: {error}"[:200])]
    names = set(type(record).model_fields) - {"suite", "evidence", "verification"}
    found = _between(record, anew, names)
    if not found:
        return []
    failed_in_figures = record.cause is not None and record.cause.place == FIGURES_PLACE
    follows_from_case = bool(anew.plan.about.page.figures) or failed_in_figures
    if follows_from_case and anew.plan.case not in cases.names():
        return [message("evidence_case_absent", case=anew.plan.case)]
    # The plan has the version too, so that editing it in the record alone has no effect.
    writers = {major_minor(x) for x in (record.suite.version, anew.plan.suite_version)}
    if len(writers) == 1 and major_minor(__version__) not in writers:
        return [message("evidence_other_version", version=record.suite.version)]
    return [_disagrees(found)]


def _between(record: Record, anew: Record, names: set[str]) -> list[Difference]:
    """Return the differences between fields of two records.

    Equal fields are not converted to dicts: a million steps would be in memory four times.
    """
    unlike = {name for name in names if getattr(record, name) != getattr(anew, name)}
    theirs, ours = (item.model_dump(mode="json", include=unlike) for item in (record, anew))
    return list(_differences(theirs, ours, ""))


def _disagrees(found: list[Difference]) -> Message:
    """Return the first difference, of status, figures or quality if there is one."""
    first = min(found, key=lambda item: not item[0].startswith(("status", "figures", "quality")))
    place, recorded, recomputed = first
    return message(
        "evidence_disagrees",
        field=place,
        recorded=_shown(recorded),
        recomputed=_shown(recomputed),
        fields=len(found),
    )


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _differences(recorded: Any, recomputed: Any, place: str) -> Iterator[Difference]:
    """Yield every path at which two documents differ, with both values."""
    if recorded == recomputed:
        return
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for name in sorted(recorded.keys() | recomputed.keys()):
            below = f"{place}.{name}" if place else name
            yield from _differences(recorded.get(name), recomputed.get(name), below)
        return
    both_lists = isinstance(recorded, list) and isinstance(recomputed, list)
    if both_lists and len(recorded) == len(recomputed):
        for index, pair in enumerate(zip(recorded, recomputed, strict=True)):
            yield from _differences(*pair, f"{place}[{index}]")
        return
    if not _alike(recorded, recomputed):
        yield place, recorded, recomputed


def _alike(recorded: Any, recomputed: Any) -> bool:
    numbers = isinstance(recorded, int | float) and isinstance(recomputed, int | float)
    if not numbers or isinstance(recorded, bool) or isinstance(recomputed, bool):
        return bool(recorded == recomputed)
    return isclose(recorded, recomputed, rel_tol=_RELATIVE)


def _computed_again(record: Record) -> Iterator[Difference]:
    """Yield what follows from plan, ranks, series and evaluations, made by what made it."""
    yield from _between(record, reduce.completed(record), reduce.DERIVED)
    own = reduce.figures_of_case(record) if cases.is_shipped(record.plan.case) else None
    yield from _figures(record, own)
    yield from _findings(record, own)
    reasons = [one for one in record.trust.reasons if not one.code.startswith("evidence_")]
    expected = of_launch(record).reasons
    yield "trust.reasons", _codes(reasons), _codes(expected)
    for one in expected:
        given = next((reason for reason in reasons if reason.code == one.code), one)
        yield f"trust.reasons.{one.code}", given.args, one.args
    yield "trust.grade", record.trust.grade, graded(record.trust.reasons).grade


def _figures(record: Record, own: OwnFigures | None) -> Iterator[Difference]:
    """Yield figures that are not those computed again.

    Args:
        own: those of the case; None: it is not one of ours.
    """
    page, work_unit = record.plan.about.page, record.plan.about.work_unit
    specs, computed = figures_of.specs(page), figures_of.compute(record)
    expected = computed | (dict(own.figures) if own else {})
    for name, entry in record.figures.items():
        yield f"figures.{name}.reason", entry.reason is None, entry.value is not None
        if name in specs:
            yield f"figures.{name}.unit", entry.unit, specs[name].unit.replace("{work}", work_unit)
        if name not in expected:
            if own is not None:
                yield f"figures.{name}", entry.value, None
            continue
        found = expected[name]
        # Of others' cases: their case may have replaced it by None.
        if entry.value is not None or own is not None:
            yield f"figures.{name}", entry.value, found.value
        if own is not None:
            yield f"figures.{name}.reason", _code(entry.reason), _code(found.reason)
            yield f"figures.{name}.note", _code(entry.note), _code(found.note)
    for name, found in expected.items():
        if name not in record.figures:
            yield f"figures.{name}", None, found.value


def _findings(record: Record, own: OwnFigures | None) -> Iterator[Difference]:
    """Yield findings that the record's own values contradict, or that are missing."""
    recorded: dict[str, Message] = {}
    for one in record.findings:
        recorded.setdefault(one.code, one)
    expected: dict[str, Message] = {}
    for one in (*findings.of_record(record), *(own.notes if own else ())):
        expected.setdefault(one.code, one)
    for code, one in expected.items():
        given = recorded.get(code)
        yield f"findings.{code}", None if given is None else given.as_dict(), one.as_dict()
    for code in recorded.keys() - expected.keys() - findings.OF_EVENTS:
        known = code in findings.OF_RECORD or own is not None
        yield f"findings.{code}", True, not known


def _code(said: Message | None) -> str | None:
    return None if said is None else said.code


def _codes(reasons: Iterable[Message]) -> str:
    return ", ".join(sorted({one.code for one in reasons})) or "none"
