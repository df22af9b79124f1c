"""Turn a raw download into the npz form, whole or not at all.

Owns the steps from sources to files; how they are kept and gone on with is
``trainmark.data.prepared``'s.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from trainmark.data import prepared

from .sources import Source, find_source, raw_files
from .unpack import is_archive, unpack
from .weights import WEIGHTS

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished

FORMAT = 1
# Row counts of the published SST-2, https://huggingface.co/datasets/stanfordnlp/sst2
PUBLISHED_ROWS = {"train": 67_349, "validation": 872}


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write ``data`` from ``raw``: a folder or an archive with SST-2 and a model folder.

    Calling again with the same sources keeps every finished file whose sha256 still fits.

    Args:
        say: called with one line for each thing done, kept or found.

    Raises:
        DataError: something is missing or damaged, or ``data`` is not this call's to write.
        EnvironmentFault: no room to unpack.
    """
    with prepared.alone(data) as folder:
        _prepare(raw.resolve(), folder, say)


def _prepare(raw: Path, data: Path, say: Say) -> None:
    prepared.refuse_inside(data, raw)
    sources = prepared.fingerprints(raw_files(raw))
    made_of = {"format": FORMAT, "case": "distilbert_sst2", "sources": sources}
    unfinished = prepared.resume(data, made_of=made_of, fresh={"counts": {}}, say=say)
    if unfinished is None:
        return
    unpacked = unfinished.partial / "raw"
    with unfinished.worth_keeping():
        source = find_source(_unpacked(raw, unpacked, say))
    if not any(source.model.joinpath(name).exists() for name in WEIGHTS):
        say("no weights in the model folder: only init=random will run on this data")
    for relative in source.outputs():
        _write(source, relative, unfinished, say)
    _tell_counts(unfinished.manifest["counts"], say)
    shutil.rmtree(unpacked, ignore_errors=True)
    unfinished.finish()
    say(f"done: {data}")


def _write(source: Source, relative: str, unfinished: Unfinished, say: Say) -> None:
    """Write one output unless an earlier call finished it."""
    if relative in unfinished.files:
        say(f"kept {relative}: finished before, its sha256 fits")
        return
    say(f"writing {relative}")
    found = unfinished.write(relative, lambda staging: source.write(relative, staging))
    if found is not None:
        unfinished.manifest["counts"][found[0]] = found[1]
    unfinished.save()


def _unpacked(raw: Path, folder: Path, say: Say) -> list[Path]:
    """Return the folders to look in: ``raw`` itself and what its archives hold."""
    shutil.rmtree(folder, ignore_errors=True)
    places = [raw] if raw.is_dir() else []
    archives = [file for _, file in sorted(raw_files(raw).items()) if is_archive(file)]
    for number, archive in enumerate(archives):
        say(f"unpacking {archive.name}")
        place = folder / str(number)
        place.mkdir(parents=True)
        unpack(archive, place)
        places.append(place)
    return places


def _tell_counts(counts: dict[str, Any], say: Say) -> None:
    for split, published in PUBLISHED_ROWS.items():
        found = counts[split]
        line = f"{split}: {found['rows']:,} rows, longest {found['longest']} tokens"
        if found["truncated"]:
            line += f", {found['truncated']} cut to fit the model"
        if found["rows"] != published:
            line += f"; NOT the published SST-2, which has {published:,}"
        say(line)
