"""Pack runs into a bundle, one file that others can verify without a network, and verify it.

Owns the content of a bundle: redacted copies of all files of the launches but their records (plans,
scripts, events, samples, logs and stacks), and the records computed from the copies; and the checks
of bundles and runs: bytes, recomputed records, audit. A run has one launch, or several if it was
repeated.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainmark import cases
from trainmark.documents import write_atomically
from trainmark.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_USAGE,
    EnvironmentFault,
)
from trainmark.plan.plan import PLAN_FILE, read_plan
from trainmark.published.audit import audit
from trainmark.published.audit.views import view_record
from trainmark.record import record, reduce, trust
from trainmark.record.messages import render
from trainmark.record.record import RECORD_FILE
from trainmark.record.verify import verify_evidence as verify_record
from trainmark.record.work import reject_duplicates
from trainmark.results import archive, redaction
from trainmark.results.archive import AlteredError, BundleError, unpack_temporarily
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record
    from trainmark.results.archive import Manifest, Unpacked

State = Literal["held", "noted", "unverifiable", "broken"]
_MIN_EVIDENCE_FILES = 2  # the plan and the events of the launcher
_EXIT_CODES = {"broken": EXIT_FAILED, "unverifiable": EXIT_USAGE}


def pack(runs: Sequence[Sequence[Path]], output: Path) -> Manifest:
    """Write or replace a bundle atomically; the same input gives the same bytes.

    Args:
        runs: each as the run directories of its launches, as ``find_runs`` finds them; only a run
            that was repeated has several launches.
        output: the bundle to write.

    Raises:
        BundleError: the name of ``output`` has not the ending of bundles; or a run lacks its
            evidence, is contradicted by it, has a file that is too large, or is of a case that is
            not installed.
        UsageError: a run is given twice, or together with a copy.
        EnvironmentFault: the bundle cannot be written.
    """
    if not output.name.endswith(archive.ENDING):
        fix = f"use a name that ends in {archive.ENDING}"
        raise BundleError("not a valid bundle name", where=str(output), fix=fix)
    try:
        # All launches are checked before the first one is copied.
        plans = {path: _check_launch_and_read_plan(path) for launches in runs for path in launches}
        paths = [path for launches in runs for path in launches]
        reject_duplicates((plans[path].run_id for path in paths), paths)
        with tempfile.TemporaryDirectory() as temporary, write_atomically(output) as file:
            for run_number, launches in enumerate(runs, 1):
                for launch_number, path in enumerate(launches, 1):
                    subfolder = f"r{launch_number}" if len(launches) > 1 else ""
                    _add_launch(path, plans[path], Path(temporary), run_number, subfolder)
            return archive.write_archive(file, Path(temporary))
    except OSError as error:
        where = str(error.filename or output)
        raise EnvironmentFault(f"cannot write: {error.strerror}", where=where) from error


def _get_run_dir(path: Path) -> Path:
    """Return the run directory that a path names; the path may be that of the record in it."""
    return path.parent if path.name == RECORD_FILE else path


def _refuse_large_files(folder: Path) -> None:
    """Raise a BundleError for a file of a launch that is too large for a bundle."""
    for path in reduce.list_run_files(folder):
        size = path.stat().st_size
        if size > archive.MAX_FILE_BYTES:
            raise BundleError(
                f"the file is {size:,} bytes long",
                where=str(path),
                rule=f"a file in a bundle may be at most {archive.MAX_FILE_BYTES:,} bytes long",
                fix=(
                    "shorten the file, or move it out of the run directory if it does not belong "
                    "to the run"
                ),
            )


def _check_launch_and_read_plan(path: Path) -> Plan:
    """Return the plan of a launch; refuse one that cannot be bundled, such as a contradicted one.

    Args:
        path: run directory of the launch, or the record in it.

    Raises:
        BundleError: evidence is missing, too large for a bundle or contradicts the record, or the
            case is not installed.
        RecordError: it is the folder of an acceptance test.
    """
    folder = _get_run_dir(path)
    if record.is_acceptance_folder(folder):
        raise record.make_acceptance_error(folder)
    _refuse_large_files(folder)  # first, because the files are read below
    # The plan and the events of the launcher are the least evidence.
    has_plan = (folder / PLAN_FILE).exists()
    if not has_plan or len(reduce.list_evidence_files(folder)) < _MIN_EVIDENCE_FILES:
        raise BundleError(
            "the plan or the event files of the run are missing",
            where=str(folder),
            fix="bundle the run on the machine where it was measured",
        )
    plan = read_plan(folder)
    # Figures of a case's own page are computed by code of the case; all others without it.
    if plan.about.page.figures and plan.case not in cases.list_names():
        what = f"the case {plan.case} is not installed, so its figures cannot be computed"
        raise BundleError(what, where=str(folder))
    check = _check_record(record.read_record(folder), folder, place="")
    # A record that cannot be verified, such as one of another version of the program, is accepted:
    # the bundle gets a new record, which is computed from the evidence.
    if check.state == "broken":
        what = f"the run's evidence contradicts the record: {render(check.sentences[0], 'en')}"
        fix = "bundle the run unmodified; `trainmark verify` lists all differences"
        raise BundleError(what, where=str(folder), fix=fix)
    return plan


def _add_launch(path: Path, plan: Plan, bundle: Path, number: int, subfolder: str) -> None:
    """Write the redacted copies of a launch's files, and the record computed from them.

    Args:
        path: run directory of the launch, or the record in it.
        plan: of the launch.
        bundle: folder whose files become the bundle.
        number: of the run in the bundle, from 1.
        subfolder: of the launch in its run; empty: it is the only launch.
    """
    folder = _get_run_dir(path)
    # The form of names that a manifest allows.
    name = f"{number}-{re.sub('[^a-z0-9_]', '_', plan.case.lower())[:64]}"
    target = bundle / name / subfolder
    target.mkdir(parents=True)
    redactor = redaction.make_run_redactor(plan, folder)
    # All that the run wrote but its record, which is computed from the copies.
    for file in reduce.list_run_files(folder):
        with (target / file.name).open("wb") as out:
            out.writelines(redaction.redact_file(file, redactor))
    record.write_record(reduce.reduce(target), target)


@dataclass(frozen=True, slots=True)
class Check:
    """One check with its result.

    Args:
        name: ``archive``, ``record``, ``audit`` or ``trust``.
        place: folder of the launch in a bundle; empty: the whole.
        state: ``held``: nothing contradicts it; ``noted``: for information only;
            ``unverifiable``: something that the check needs is missing; ``broken``: contradicted.
        sentences: the result.
    """

    name: str
    state: State
    sentences: tuple[Message, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """All checks of a bundle, or of one run directory.

    Args:
        path: as the user named it.
        checks: each with its result, its ``state``.
    """

    path: str
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """Return 0: verified, 1: contradicted, 2: it cannot be verified."""
        states = {check.state for check in self.checks}
        for state, code in _EXIT_CODES.items():  # the worst first
            if state in states:
                return code
        return EXIT_PASSED

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON that ``trainmark verify`` prints."""
        checks = [
            {
                "name": check.name,
                "state": check.state,
                "messages": [sentence.as_dict() for sentence in check.sentences],
                "place": check.place,
            }
            for check in self.checks
        ]
        return {"path": self.path, "checks": checks, "exit_code": self.exit_code}


def verify(path: Path | str) -> Verification:
    """Verify a bundle, a run directory or the ``record.json`` in a run directory.

    Raises:
        RecordError: it is none of them, or a bundle beyond the limits of size.
        EnvironmentFault: the bundle cannot be unpacked on this machine.
    """
    path = Path(path)
    if path.is_dir() or path.name == RECORD_FILE:
        # The empty place is the run directory itself.
        return Verification(str(path), tuple(_check_records(_get_run_dir(path), places=[""])))
    try:
        with unpack_temporarily(path) as bundle:
            return Verification(str(path), tuple(check_bundle(bundle)))
    except AlteredError as error:  # the result of a check, unlike an error that prevents checks
        # ``where`` is the bundle, with the name of the file in it if only one differs.
        reason = message("bundle_altered", where=error.where, what=error.what)
        return Verification(str(path), (Check("archive", "broken", (reason,)),))


def check_bundle(bundle: Unpacked) -> Iterator[Check]:
    """Yield the checks of an unpacked bundle.

    The first check is that the files agree with the manifest. It always holds here, because
    unpacking the bundle raises an error if they differ.
    """
    files = bundle.manifest.files
    size = sum(file.bytes for file in files)
    yield Check("archive", "held", (message("bundle_whole", files=len(files), bytes=size),))
    yield from _check_records(bundle.folder, bundle.launches)


def _check_records(folder: Path, places: Sequence[str]) -> Iterator[Check]:
    """Yield the checks of the records in folders below ``folder``.

    Args:
        places: these folders, relative to ``folder``; empty text: ``folder`` itself.
    """
    records = {place: record.read_record(folder / place) for place in places}
    for place, loaded in records.items():
        yield _check_record(loaded, folder / place, place)
    # The audit compares all records: one may have the step times of another run. Each record gets
    # its place as the name of its file, which a finding about it has in ``subject.file``.
    findings = audit([view_record(loaded, place) for place, loaded in records.items()])
    for finding in findings:
        yield Check("audit", "broken", (finding.message,), finding.subject.file)
    duplicates = list(_find_duplicates(records))  # the same run in two places
    for place, sentence in duplicates:
        yield Check("audit", "broken", (sentence,), place)
    if not findings and not duplicates:
        yield Check("audit", "held", (message("bundle_audited"),))
    # A record that agrees with its evidence may still be unfit to quote; its trust says so.
    for place, loaded in records.items():
        grade = message(f"trust_grade_{loaded.trust.grade}")
        yield Check("trust", "noted", (grade, *loaded.trust.reasons), place)


def _find_duplicates(records: Mapping[str, Record]) -> Iterator[tuple[str, Message]]:
    """Yield each place whose launch is also at an earlier place of the bundle, with a message.

    The audit does not report these: it compares step times of launches with different run ids.

    Args:
        records: by their places in the bundle.
    """
    first_place_by_id: dict[str, str] = {}
    for place, loaded in records.items():
        first_place = first_place_by_id.setdefault(loaded.run_id, place)
        if first_place != place:
            yield place, message("bundle_repeated", run_id=loaded.run_id, place=first_place)


def _check_record(loaded: Record, folder: Path, place: str) -> Check:
    """Compare a record with its evidence, the plan and events of the run.

    The figures of the record are recomputed from the evidence.

    Args:
        loaded: the record as it was read.
        folder: its run directory.
        place: what the result of the check names: the folder in the bundle; empty: there is none.
    """
    findings = verify_record(loaded, folder)
    # Contradictions, or reasons why the record cannot be compared; only contradictions refute it.
    if findings:
        is_refuted = trust.is_refuted(trust.add_reasons(loaded, findings).trust)
        return Check("record", "broken" if is_refuted else "unverifiable", tuple(findings), place)
    num_figures = len(loaded.figures)
    num_steps = len(loaded.steps.time_ns)
    agreement = message("bundle_recomputed", figures=num_figures, steps=num_steps)
    return Check("record", "held", (agreement,), place)
