"""Verify a record against its evidence files: their digests, and the record recomputed from them.

The whole record is compared, except for the program that wrote it. Must not know pages.
"""

from __future__ import annotations

import re
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases
from trainmark.errors import RecordError
from trainmark.plan.plan import Plan
from trainmark.record import building
from trainmark.record.evidence import evidence
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.record import Record

# Tolerance for sums in another order, by another version of a library.
_RELATIVE = 1e-9
# Placeholders of redaction: in the record, but not in the evidence if the disk was full.
_STAND_IN = re.compile(
    r"<(?:secret|credentials|host|email|run|data|python|trainmark|path|address|user)>"
    r"|~|(?<!\w)\.(?!\w)"
)
_LONGEST_SHOWN = 40
# What computing ends with where a value is none that a run writes.
UNREADABLE = (
    RecordError, OSError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError,
    ValueError,
)  # fmt: skip


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
    """Return how the record differs from one recomputed from the same evidence."""
    try:
        # Ranks without a file count too, so a plan alone could ask for more than fit in memory.
        planned, ranks = Plan.read(folder).world_size, len(record.ranks)
        anew = building.compute(folder) if planned == ranks else None
    except UNREADABLE as error:
        return [message("evidence_unreadable", error=f"{type(error).__name__}: {error}"[:200])]
    if anew is None:
        values = {"recorded": ranks, "recomputed": planned}
        return [message("evidence_disagrees", field="ranks", fields=1, **values)]
    # Equal parts are not converted to dicts: a million steps would be in memory four times.
    unlike = {
        name
        for name in set(type(record).model_fields) - {"suite", "evidence"}
        if getattr(record, name) != getattr(anew, name)
    }
    ours, theirs = (item.model_dump(mode="json", include=unlike) for item in (anew, record))
    found = list(_differences(theirs, ours, ""))
    if Path(anew.plan.run_dir).is_absolute():  # the plan, redacted after the events, was not
        found = [item for item in found if not _redacted(*item[1:])]
    if not found:
        return []
    if anew.plan.about.page.figures and anew.plan.case not in cases.names():
        others = [item for item in found if not _of_case(item[0], record)]
        if not others:
            return [message("evidence_case_absent", case=anew.plan.case)]
        found = others
    # The plan has the version too, so that editing it in the record alone has no effect.
    writers = {tuple(_series(text)) for text in (record.suite.version, anew.plan.suite_version)}
    if len(writers) == 1 and _series(record.suite.version) != _series(__version__):
        return [message("evidence_other_version", version=record.suite.version)]
    found.sort(key=lambda item: not item[0].startswith(("status", "figures", "quality")))
    place, recorded, recomputed = found[0]
    return [
        message(
            "evidence_disagrees",
            field=place,
            recorded=_shown(recorded),
            recomputed=_shown(recomputed),
            fields=len(found),
        )
    ]


def _of_case(place: str, record: Record) -> bool:
    """Tell whether only the case can compute the value at ``place``.

    These are its own figures, common figures that it replaced by None, and its notes.
    """
    kind, _, below = place.partition(".")
    name = below.partition(".")[0]
    if kind == "figures":
        own = {spec.name for spec in record.plan.about.page.figures}
        return name in own or (name in record.figures and record.figures[name].value is None)
    return kind.partition("[")[0] in ("notes", "trust")


def _series(version: str) -> list[str]:
    """Return Major.Minor: within it, the same events give the same record."""
    return version.split(".")[:2]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:_LONGEST_SHOWN]


def _differences(recorded: Any, recomputed: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
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


def _redacted(recorded: Any, recomputed: Any) -> bool:
    """Tell whether a text is the other one with some of it replaced by placeholders."""
    if not isinstance(recorded, str) or not isinstance(recomputed, str):
        return False
    first, *parts = _STAND_IN.split(recorded)
    if not parts or not recomputed.startswith(first):
        return False
    place = len(first)
    for part in parts[:-1]:
        place = recomputed.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return recomputed[place:].endswith(parts[-1])


def _alike(recorded: Any, recomputed: Any) -> bool:
    numbers = isinstance(recorded, int | float) and isinstance(recomputed, int | float)
    if not numbers or isinstance(recorded, bool) or isinstance(recomputed, bool):
        return False
    return isclose(recorded, recomputed, rel_tol=_RELATIVE)
