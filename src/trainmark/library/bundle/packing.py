"""Put runs into a bundle: redacted copies of their files, and the records that these give."""

from __future__ import annotations

import re
import tempfile
import zipfile
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import __version__, cases
from trainmark.data.documents import written_whole
from trainmark.errors import EnvironmentFault
from trainmark.library import redaction
from trainmark.library.bundle import archive
from trainmark.library.bundle.archive import BundleError, Manifest, PackedFile, sign
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.record import evidence, record, reduce
from trainmark.record.record import Suite

if TYPE_CHECKING:
    from collections.abc import Sequence


def pack(runs: Sequence[Sequence[Path]], output: Path, *, key: Path | None = None) -> Manifest:
    """Write or replace a bundle, whole or not at all; the same input gives the same bytes.

    Args:
        runs: each as the run directories of its launches, as ``find_runs`` finds them.
        key: file of the ssh key that signs.

    Raises:
        BundleError: a run without its evidence, or of a case that is not installed.
        EnvironmentFault: it cannot be written or signed.
    """
    if not output.name.endswith(archive.ENDING):
        remedy = f"end it in {archive.ENDING}"
        raise BundleError("not the name of a bundle", where=str(output), remedy=remedy)
    try:
        with tempfile.TemporaryDirectory() as place, written_whole(output) as file:
            for number, launches in enumerate(runs, 1):
                _add_run(Path(place), number, launches)
            manifest = Manifest(suite=Suite(version=__version__), files=_listed(Path(place)))
            content = manifest.model_dump_json(indent=1).encode()
            with zipfile.ZipFile(file, "w") as zipped:
                archive.add(zipped, archive.MANIFEST_FILE, content)
                if key is not None:
                    archive.add(zipped, archive.SIGNATURE_FILE, sign(content, key))
                for packed in manifest.files:
                    archive.add(zipped, packed.name, Path(place) / packed.name)
        return manifest
    except OSError as error:
        where = str(error.filename or output)
        raise EnvironmentFault(f"cannot write: {error.strerror}", where=where) from error


def _listed(place: Path) -> list[PackedFile]:
    """Return all files below a folder, with their digests."""
    found = []
    for path in sorted(path for path in place.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        name = str(path.relative_to(place))
        found.append(PackedFile(name=name, bytes=path.stat().st_size, sha256=digest))
    return found


def _add_run(place: Path, number: int, launches: Sequence[Path]) -> None:
    """Write the redacted copies of a run's launches, each with the record that they give."""
    folders = [path if path.is_dir() else path.parent for path in launches]
    for launch, folder in enumerate(folders, 1):
        if not (folder / PLAN_FILE).exists() or len(evidence.evidence(folder)) < 2:
            what, remedy = "its evidence is not there", "bundle the run where it was made"
            raise BundleError(what, where=str(folder), remedy=remedy)
        plan = Plan.read(folder)
        if plan.about.page.figures and plan.case not in cases.names():
            what = f"the case {plan.case} is not installed, whose figures could not be computed"
            raise BundleError(what, where=str(folder))
        name = f"{number}-{re.sub('[^a-z0-9_]', '_', plan.case.lower())[:64]}"
        target = place / name / f"r{launch}" if len(folders) > 1 else place / name
        target.mkdir(parents=True)
        redactor = redaction.of_run(plan, folder)
        for path in evidence.outputs(folder):
            with (target / path.name).open("wb") as out:
                out.writelines(redaction.redacted_file(path, redactor))
        record.write(reduce.reduce(target), target)
