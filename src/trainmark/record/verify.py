"""Check a record once, when it is loaded: against itself, and against its evidence files.

A record with its events beside it that gives the same when it is reduced again is verified; any
other is unverified, and its trust names why.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases
from trainmark.errors import RecordError
from trainmark.plan.plan import Plan
from trainmark.record import reduce
from trainmark.record.evidence import evidence
from trainmark.record.itself import Difference, identities
from trainmark.record.trust import refutes, with_findings
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.record.record import Record

# Tolerance for sums in another order, by another version of a library.
_RELATIVE = 1e-9
_LONGEST_SHOWN = 40
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
        for place, recorded, computed in identities(record):
            found += _differences(recorded, computed, place)
    except (LookupError, ArithmeticError, ValueError) as error:
        # A rank, span or bound that others name is absent or outside its domain.
        found.append(("record", type(error).__name__, "values that fit each other"))
    return [_disagrees(found)] if found else []


def verify(record: Record, folder: Path) -> list[Message]:
    """Return the contradictions between ``record`` and the evidence in ``folder``."""
    there = {entry.name: entry for entry in evidence(folder)}
    named = {entry.name: entry for entry in record.evidence}
    if not there:
        return [message("evidence_absent")]
    findings = [message("evidence_unnamed", file=name) for name in there if name not in named]
    for name, entry in named.items():
        if name not in there:
            findings.append(message("evidence_missing", file=name))
        elif there[name] != entry:
            findings.append(message("evidence_altered", file=name))
    return findings + _recomputed(record, folder)


def _recomputed(record: Record, folder: Path) -> list[Message]:
    """Return how the record differs from one reduced again from the same evidence."""
    try:
        # Ranks without a file count too, so a plan alone could ask for more than fit in memory.
        planned, ranks = Plan.read(folder).world_size, len(record.ranks)
        if planned != ranks:
            return [_disagrees([("ranks", ranks, planned)])]
        anew = reduce.reduce(folder)
    except (RecordError, OSError, ValueError) as error:
        return [message("evidence_unreadable", error=f"{type(error).__name__}: {error}"[:200])]
    # Equal fields are not converted to dicts: a million steps would be in memory four times.
    unlike = {
        name
        for name in set(type(record).model_fields) - {"suite", "evidence", "verification"}
        if getattr(record, name) != getattr(anew, name)
    }
    ours, theirs = (item.model_dump(mode="json", include=unlike) for item in (anew, record))
    found = list(_differences(theirs, ours, ""))
    if not found:
        return []
    if anew.plan.about.page.figures and anew.plan.case not in cases.names():
        return [message("evidence_case_absent", case=anew.plan.case)]
    # The plan has the version too, so that editing it in the record alone has no effect.
    writers = {tuple(_series(text)) for text in (record.suite.version, anew.plan.suite_version)}
    if len(writers) == 1 and _series(record.suite.version) != _series(__version__):
        return [message("evidence_other_version", version=record.suite.version)]
    return [_disagrees(found)]


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


def _series(version: str) -> list[str]:
    """Return Major.Minor: within it, the same events give the same record."""
    return version.split(".")[:2]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:_LONGEST_SHOWN]


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
