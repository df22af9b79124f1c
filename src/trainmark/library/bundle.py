"""Bundles: runs in one file that others can verify without a network.

Owns what goes into a bundle, redacted copies and the records that they give; and the checks of
bundles and runs: bytes, records recomputed, audit.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainmark import cases
from trainmark.data.documents import written_whole
from trainmark.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_USAGE,
    EnvironmentFault,
)
from trainmark.judge.audit import audit
from trainmark.judge.audit.subject import view_record
from trainmark.library import archive, redaction
from trainmark.library.archive import AlteredError, BundleError, unpacked
from trainmark.plan.plan import PLAN_FILE, read_plan
from trainmark.record import record, reduce, trust
from trainmark.record.messages import render
from trainmark.record.record import RECORD_FILE
from trainmark.record.verify import verify_evidence as verify_record
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.library.archive import Manifest, Unpacked
    from trainmark.record.record import Record

State = Literal["held", "noted", "unverifiable", "broken"]
_EXIT_CODES = {"broken": EXIT_FAILED, "unverifiable": EXIT_USAGE}


def pack(runs: Sequence[Sequence[Path]], output: Path) -> Manifest:
    """Write or replace a bundle, whole or not at all; the same input gives the same bytes.

    Args:
        runs: each as the run directories of its launches, as ``find_runs`` finds them.

    Raises:
        BundleError: a run without its evidence or contradicted by it, or of a case that is not
            installed.
        EnvironmentFault: it cannot be written.
    """
    if not output.name.endswith(archive.ENDING):
        fix = f"end it in {archive.ENDING}"
        raise BundleError("not the name of a bundle", where=str(output), fix=fix)
    try:
        with tempfile.TemporaryDirectory() as place, written_whole(output) as file:
            for number, launches in enumerate(runs, 1):
                for launch, path in enumerate(launches, 1):
                    below = f"r{launch}" if len(launches) > 1 else ""
                    _add(path if path.is_dir() else path.parent, Path(place), number, below)
            return archive.write(file, Path(place))
    except OSError as error:
        where = str(error.filename or output)
        raise EnvironmentFault(f"cannot write: {error.strerror}", where=where) from error


def _add(folder: Path, place: Path, number: int, below: str) -> None:
    """Write the redacted copies of a launch's files, and the record that they give."""
    for path in reduce.outputs(folder):
        size = path.stat().st_size
        if size > archive.MAX_FILE_BYTES:
            raise BundleError(
                f"{size:,} bytes",
                where=str(path),
                rule=f"a file of a bundle has at most {archive.MAX_FILE_BYTES:,} bytes",
                fix="shorten the file, or move it out of the run's folder if it is not the "
                "run's own",
            )
    if not (folder / PLAN_FILE).exists() or len(reduce.evidence_files(folder)) < 2:
        what, fix = "its evidence is not there", "bundle the run where it was made"
        raise BundleError(what, where=str(folder), fix=fix)
    plan = read_plan(folder)
    if plan.about.page.figures and plan.case not in cases.names():
        what = f"the case {plan.case} is not installed, whose figures could not be computed"
        raise BundleError(what, where=str(folder))
    checked = _recomputed(record.read_record(folder), folder, "")
    if checked.state == "broken":
        what = f"contradicted by its evidence: {render(checked.said[0], 'en')}"
        fix = "bundle the run as it was made; `trainmark verify` tells all that differs"
        raise BundleError(what, where=str(folder), fix=fix)
    name = f"{number}-{re.sub('[^a-z0-9_]', '_', plan.case.lower())[:64]}"
    target = place / name / below
    target.mkdir(parents=True)
    redactor = redaction.of_run(plan, folder)
    for path in reduce.outputs(folder):
        with (target / path.name).open("wb") as out:
            out.writelines(redaction.redacted_file(path, redactor))
    record.write_record(reduce.reduce(target), target)


@dataclass(frozen=True, slots=True)
class Check:
    """One check and what it found.

    Args:
        name: ``archive``, ``record``, ``audit`` or ``trust``.
        place: folder of the launch in a bundle; empty: the whole.
        state: ``held``; ``noted``: nothing was asked for; ``unverifiable``: nothing contradicts,
            but something that the check needs is missing; ``broken``: contradicted.
    """

    name: str
    state: State
    said: tuple[Message, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """All checks of one path."""

    path: str
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """Return 0: verified, 1: contradicted, 2: it cannot be verified."""
        states = {check.state for check in self.checks}
        return next((code for s, code in _EXIT_CODES.items() if s in states), EXIT_PASSED)

    def as_dict(self) -> dict[str, Any]:
        """Return it as the JSON that ``trainmark verify`` prints."""
        return asdict(self) | {"exit_code": self.exit_code}


def verify(path: Path | str) -> Verification:
    """Verify a bundle, a run directory or the ``record.json`` in one.

    Raises:
        RecordError: it is none of them, or a bundle beyond what one may hold.
        EnvironmentFault: it cannot be unpacked here.
    """
    path = Path(path)
    if path.is_dir() or path.name == RECORD_FILE:
        folder = path if path.is_dir() else path.parent
        return Verification(str(path), tuple(_of_records(folder, [""])))
    try:
        with unpacked(path) as bundle:
            return Verification(str(path), tuple(checks(bundle)))
    except AlteredError as error:
        said = message("bundle_altered", where=error.where, what=error.what)
        return Verification(str(path), (Check("archive", "broken", (said,)),))


def checks(bundle: Unpacked) -> Iterator[Check]:
    """Yield the checks of a bundle that is unpacked."""
    files = bundle.manifest.files
    size = sum(file.bytes for file in files)
    yield Check("archive", "held", (message("bundle_whole", files=len(files), bytes=size),))
    yield from _of_records(bundle.folder, bundle.launches)


def _of_records(folder: Path, places: Sequence[str]) -> Iterator[Check]:
    """Yield the checks of the records in folders below ``folder``."""
    records = {place: record.read_record(folder / place) for place in places}
    for place, one in records.items():
        yield _recomputed(one, folder / place, place)
    # Held together against the audit's rules: none may be a copy of another.
    hits = audit([view_record(one, place) for place, one in records.items()])
    for hit in hits:
        yield Check("audit", "broken", (hit.message,), hit.subject.file)
    if not hits:
        yield Check("audit", "held", (message("bundle_audited"),))
    for place, one in records.items():  # whether figures may be quoted, which agreement leaves open
        said = (message(f"trust_grade_{one.trust.grade}"), *one.trust.reasons)
        yield Check("trust", "noted", said, place)


def _recomputed(found: Record, folder: Path, place: str) -> Check:
    """Compare a record with its evidence and what is computed from it."""
    if findings := verify_record(found, folder):
        refuted = trust.is_refuted(trust.add_reasons(found, findings).trust)
        return Check("record", "broken" if refuted else "unverifiable", tuple(findings), place)
    figures, steps = len(found.figures), len(found.steps.time_ns)
    agreed = message("bundle_recomputed", figures=figures, steps=steps)
    return Check("record", "held", (agreed,), place)
