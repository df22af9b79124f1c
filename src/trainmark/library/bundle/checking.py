"""Verify bundles and runs without a network: bytes, signature, records recomputed, rules."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainmark.errors import EXIT_FAILED, EXIT_PASSED, EXIT_USAGE, UsageError
from trainmark.judge import compliance
from trainmark.judge.audit import audit
from trainmark.judge.audit.subject import of_record
from trainmark.library.bundle.archive import AlteredError, signer_of, unpacked
from trainmark.record import record, trust
from trainmark.record.record import RECORD_FILE
from trainmark.record.verify import verify as verify_record
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.library.bundle.archive import Unpacked
    from trainmark.record.record import Record

State = Literal["held", "noted", "unverifiable", "broken"]
_EXIT_CODES = {"broken": EXIT_FAILED, "unverifiable": EXIT_USAGE}


@dataclass(frozen=True, slots=True)
class Check:
    """One check and what it found.

    Args:
        name: ``archive``, ``signature``, ``record``, ``audit`` or ``rules``.
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


def verify(
    path: Path | str | Sequence[Path], *, allowed: Path | None = None, signer: str | None = None
) -> Verification:
    """Verify a bundle, a run directory or the ``record.json`` in one.

    Args:
        path: or the run directories of all launches of a run, which are judged together.
        allowed: file of allowed signers; with it, a bundle must be signed by one of them.
        signer: by whom of them.

    Raises:
        UsageError: a signer is asked for, and no file says whose key is whose.
        RecordError: it is none of them, or a bundle beyond what one may hold.
        EnvironmentFault: it cannot be unpacked here, or ``ssh-keygen`` is missing.
    """
    if signer is not None and allowed is None:
        raise UsageError(
            "nothing says which key is whose",
            where=f"signer {signer}",
            remedy="give the file of allowed signers too: --allowed-signers FILE",
        )
    launches = [Path(path)] if isinstance(path, Path | str) else path
    path = launches[0]
    if path.is_dir() or path.name == RECORD_FILE:
        folder = path if path.is_dir() else path.parent
        asked = [] if allowed is None else [_signature(None, allowed, signer)]
        records = {"": record.read(path)}
        if len(launches) > 1:
            path = folder = folder.parent
            records = {launch.name: record.read(launch) for launch in launches}
        return Verification(str(path), (*asked, *_of_run(records, folder), *_audited(records)))
    try:
        with unpacked(path) as bundle:
            return Verification(str(path), tuple(checks(bundle, allowed, signer)))
    except AlteredError as error:
        said = message("bundle_altered", where=error.where, what=error.what)
        return Verification(str(path), (Check("archive", "broken", (said,)),))


def checks(
    bundle: Unpacked, allowed: Path | None = None, signer: str | None = None
) -> Iterator[Check]:
    """Yield the checks of a bundle that is unpacked; arguments and errors as of ``verify``."""
    files = bundle.manifest.files
    size = sum(file.bytes for file in files)
    yield Check("archive", "held", (message("bundle_whole", files=len(files), bytes=size),))
    yield _signature(bundle, allowed, signer)
    records = {place: record.read(bundle.folder / place) for place in bundle.launches}
    runs: dict[str, dict[str, Record]] = {}
    for place, one in records.items():
        runs.setdefault(place.partition("/")[0], {})[place] = one
    for run in runs.values():
        yield from _of_run(run, bundle.folder)
    yield from _audited(records)


def _signature(bundle: Unpacked | None, allowed: Path | None, signer: str | None) -> Check:
    if bundle is not None and bundle.signature is not None:
        right, said = signer_of(bundle.content, bundle.signature, allowed, signer)
    else:
        right, said = allowed is None, message("bundle_unsigned")
    state: State = "broken" if not right else "noted" if allowed is None else "held"
    return Check("signature", state, (said,))


def _of_run(launches: dict[str, Record], folder: Path) -> Iterator[Check]:
    """Compare records with their evidence and what is computed from it; hold them against rules."""
    proven = []
    for place, found in launches.items():
        findings = verify_record(found, folder / place)
        proven.append(trust.with_findings(found, findings))
        figures, steps = len(found.figures), len(found.steps.time_ns)
        agreed = message("bundle_recomputed", figures=figures, steps=steps)
        state: State = "broken" if trust.refuted(proven[-1].trust) else "unverifiable"
        yield _judged("record", place, findings, state, agreed)
    rules = compliance.check(proven)
    unkept = [rule.found for rule in rules.divisions[rules.claimed] if not rule.kept]
    kept = message("bundle_rules_kept", division=rules.claimed)
    yield _judged("rules", os.path.commonpath(launches), unkept, "noted", kept)


def _audited(records: dict[str, Record]) -> Iterator[Check]:
    """Hold all records together against the audit's rules; only errors contradict them."""
    found = audit([of_record(item, place) for place, item in records.items()])
    hits = found
    for place in dict.fromkeys(hit.subject.file for hit in hits):
        here = [hit for hit in hits if hit.subject.file == place]
        state: State = "broken" if any(hit.severity == "error" for hit in here) else "noted"
        yield Check("audit", state, tuple(hit.message for hit in here), place)
    if not hits:
        yield Check("audit", "held", (message("bundle_audited"),))


def _judged(name: str, place: str, faults: list[Message], state: State, fine: Message) -> Check:
    return Check(name, state if faults else "held", tuple(faults) or (fine,), place)
