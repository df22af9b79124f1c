"""Put runs into a bundle: their evidence as it is, all else redacted, pages made anew."""

from __future__ import annotations

import re
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import __version__
from trainmark.data.json_documents import read_bytes, written_whole
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.library.bundle import archive
from trainmark.library.bundle.archive import BundleError, Manifest, PackedFile
from trainmark.library.bundle.signing import sign
from trainmark.pages.files import write_pages, write_repeats
from trainmark.record import evidence, record, trust
from trainmark.record.index_of_run import write_index
from trainmark.record.messages import render
from trainmark.record.record import RECORD_FILE, Suite
from trainmark.record.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmark.record.record import Record


def pack(
    runs: Sequence[Sequence[Path]], output: Path, *, key: Path | None = None, replace: bool = False
) -> Manifest:
    """Write a bundle, whole or not at all; the same input gives the same bytes.

    Args:
        runs: each as the run directories of its launches, as ``selection.runs`` finds them.
        key: file of the ssh key that signs.
        replace: whether ``output`` may exist.

    Raises:
        BundleError: a record that its evidence does not prove, or evidence that is not redacted.
        EnvironmentFault: it cannot be written or signed.
    """
    if not output.name.endswith(archive.ENDING) or (output.exists() and not replace):
        what, remedy = "not the name of a bundle", f"end it in {archive.ENDING}"
        if output.name.endswith(archive.ENDING):
            what, remedy = "exists already", "choose another -o, or --force"
        raise BundleError(what, where=str(output), remedy=remedy)
    try:
        with written_whole(output) as file, tempfile.TemporaryDirectory() as scratch:
            with zipfile.ZipFile(file, "w") as zipped:
                files: list[PackedFile] = []
                for number, launches in enumerate(runs, 1):
                    files += _add_run(zipped, number, launches, Path(scratch))
                file.flush()
                end = file.tell()
                with Path(file.name).open("rb") as written:
                    packed = archive.digest(written, end)
                manifest = Manifest.model_construct(
                    suite=Suite(version=__version__), files=files, packed_bytes=end,
                    packed_sha256=packed,
                )  # fmt: skip
                content = manifest.model_dump_json(indent=1).encode()
                archive.add(zipped, archive.MANIFEST_FILE, [content])
                if key is not None:
                    archive.add(zipped, archive.SIGNATURE_FILE, [sign(content, key)])
            file.flush()
            with archive.unpacked(Path(file.name)) as made:
                return made.manifest
    except OSError as error:
        place = str(error.filename or output)
        raise EnvironmentFault(f"cannot write: {error.strerror}", where=place) from error


def _add_run(
    zipped: zipfile.ZipFile, number: int, launches: Sequence[Path], scratch: Path
) -> Iterator[PackedFile]:
    """Add a run with its pages and yield what was added."""
    records = [_proven(path) for path in launches]
    top = f"{number}-{re.sub('[^a-z0-9_]', '_', records[0].plan.case.lower())[:64]}"
    repeated = len(launches) > 1
    places = [f"{top}/r{n}" if repeated else top for n in range(1, len(launches) + 1)]
    for place, path, found in zip(places, launches, records, strict=True):
        yield from _add_launch(zipped, place, path if path.is_dir() else path.parent, found)
    write_derived(dict(zip(places, records, strict=True)), scratch)
    for path in sorted(path for path in (scratch / top).rglob("*") if path.is_file()):
        yield archive.add(zipped, str(path.relative_to(scratch)), [path.read_bytes()])


def write_derived(records: Mapping[str, Record], folder: Path) -> None:
    """Write what follows from records alone, each at its place: pages, index lines, repeats.

    The page with charts is not among them: it also shows what evidence has, and its drawing
    follows from the versions of the libraries that draw.
    """
    runs: dict[str, list[Record]] = {}
    for place, found in records.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        write_pages([found], folder / place, html=False)
        with suppress(UsageError):  # of a mission that does not fit the form
            write_index(found, folder / place)
        if "/" in place:
            runs.setdefault(place.partition("/")[0], []).append(found)
    for top, launches in runs.items():
        write_repeats(launches, folder / top, html=False)


def _proven(path: Path) -> Record:
    """Return a record that its evidence does not contradict."""
    found = record.read(path)
    findings = verify(found, path if path.is_dir() else path.parent)
    for finding in findings:
        if finding.code == "evidence_absent" or trust.refuted(trust.graded([finding])):
            raise BundleError(f"cannot be verified: {render(finding, 'en')}", where=str(path))
    return found


def _add_launch(
    zipped: zipfile.ZipFile, place: str, folder: Path, found: Record
) -> Iterator[PackedFile]:
    redactor = evidence.redactor_of(found.plan, folder)
    told = found.model_dump(mode="json")
    if redactor.document(told) != told:
        raise _unredacted(folder / RECORD_FILE)
    yield archive.add(zipped, f"{place}/{RECORD_FILE}", [read_bytes(folder / RECORD_FILE)])
    digests = {entry.name: entry.sha256 for entry in found.evidence}
    for path in evidence.outputs(folder):
        packed = archive.add(zipped, f"{place}/{path.name}", evidence.redacted(path, redactor))
        if digests.get(path.name, packed.sha256) != packed.sha256:
            raise _unredacted(path)
        yield packed


def _unredacted(path: Path) -> BundleError:
    return BundleError(
        "holds what is redacted, so its digest in the record would not be that of the bundle",
        where=str(path),
        remedy=f"move {RECORD_FILE} away; `trainmark record RUN` redacts and records the run anew",
    )
