"""Turn a raw download into the npz form, whole or not at all.

Owns the steps, the manifest, and what is kept when a call goes on where another stopped.
Every file is written under another name, synced and renamed; the folder takes its final
name last. The unfinished folder lies beside it, with a manifest of the files done so far.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from hashlib import file_digest
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError, EnvironmentFault, TrainmarkError

from .sources import Source, find_source, raw_files
from .unpack import is_archive, unpack
from .weights import WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Say = Callable[[str], None]

MANIFEST = "manifest.json"
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
    try:
        raw, data = raw.resolve(), data.resolve()
        with _alone(data):
            _prepare(raw, data, say)
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
        raise EnvironmentFault(
            f"cannot prepare: {getattr(error, 'strerror', None) or error}",
            where=str(getattr(error, "filename", None) or data),
            rule="raw files must be readable, and the folder to write on a disk with room",
            remedy="name another folder with --data, or free some space, and call again",
        ) from error


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Hold the lock of a folder to write.

    Raises:
        EnvironmentFault: another prepare holds it.
    """
    data.parent.mkdir(parents=True, exist_ok=True)
    lock = data.with_name(f".{data.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentFault(
                "another prepare is at work on this folder",
                where=str(data),
                remedy="wait for it, or name another folder with --data",
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _prepare(raw: Path, data: Path, say: Say) -> None:
    if raw in data.parents:
        raise DataError(
            "the folder to write lies inside the raw one",
            where=str(data),
            rule="what is written must not become a source of the next call",
            remedy="name a folder beside the raw one with --data",
        )
    sources = describe_sources(raw)
    partial = data.with_name(f".{data.name}.partial")
    done = _resume(data, partial, sources, say)
    if done is None:
        return
    unpacked = partial / "raw"
    try:
        source = find_source(_unpacked(raw, unpacked, say))
    except TrainmarkError:
        if not done["files"]:
            shutil.rmtree(partial, ignore_errors=True)  # nothing in it is worth going on with
        raise
    if not any(source.model.joinpath(name).exists() for name in WEIGHTS):
        say("no weights in the model folder: only init=random will run on this data")
    counts: dict[str, dict[str, int]] = done["counts"]
    for relative in source.outputs():
        if relative in done["files"]:
            say(f"kept {relative}: finished before, its sha256 fits")
            continue
        say(f"writing {relative}")
        target = partial / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(source, relative, target, counts)
        done["files"][relative] = _fingerprint(target)
        _write_json(partial / MANIFEST, done)
    _tell_counts(counts, say)
    shutil.rmtree(unpacked, ignore_errors=True)
    done["complete"] = True
    _write_json(partial / MANIFEST, done)
    partial.rename(data)
    _sync(data.parent)
    say(f"done: {data}")


def describe_sources(raw: Path) -> list[dict[str, Any]]:
    """Return name, size and sha256 of every raw file that matters, sorted by name."""
    return [{"name": name, **_fingerprint(file)} for name, file in sorted(raw_files(raw).items())]


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {
            "size_bytes": file.stat().st_size,
            "sha256": file_digest(stream, "sha256").hexdigest(),
        }


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return a folder's manifest; None when there is none of ours."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    ours = isinstance(found, dict) and found.get("case") == "distilbert_sst2"
    if not ours or found.get("format") != FORMAT:
        return None
    shape = {"sources": list, "files": dict, "counts": dict}
    return found if all(isinstance(found.get(x), kind) for x, kind in shape.items()) else None


def _resume(
    data: Path, partial: Path, sources: list[dict[str, Any]], say: Say
) -> dict[str, Any] | None:
    """Return the manifest to go on with, holding only files that are sound; None: all done."""
    if data.exists() and not (data.is_dir() and not any(data.iterdir())):
        manifest = _read_manifest(data)
        _refuse_foreign(data, manifest, sources)
        assert manifest is not None
        damaged = _drop_damaged(data, manifest)
        if not damaged:
            say(f"{data} is already prepared: {len(manifest['files'])} files checked by sha256")
            return None
        say(f"damaged or missing, written again: {', '.join(damaged)}")
        shutil.rmtree(partial, ignore_errors=True)
        data.rename(partial)
        manifest["complete"] = False
        return manifest
    if data.is_dir():
        data.rmdir()  # an empty folder in the way of the rename
    manifest = _read_manifest(partial)
    if manifest is not None and manifest["sources"] == sources:
        say(f"going on with the unfinished {partial.name}")
        _drop_damaged(partial, manifest)
        return manifest
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return {
        "format": FORMAT,
        "case": "distilbert_sst2",
        "complete": False,
        "sources": sources,
        "counts": {},
        "files": {},
    }


def _refuse_foreign(
    data: Path, manifest: dict[str, Any] | None, sources: list[dict[str, Any]]
) -> None:
    if manifest is None:
        raise DataError(
            "the folder is not empty and was not written by prepare",
            where=str(data),
            rule="prepare never writes over files of others",
            remedy="name a new or empty folder with --data",
        )
    if manifest["sources"] != sources:
        raise DataError(
            "the folder was prepared from other raw files",
            where=str(data / MANIFEST),
            rule="one folder holds one version of the data",
            remedy="name another folder with --data, or remove this one",
        )


def _drop_damaged(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """Take files out of the manifest that are gone or changed; return their names."""
    damaged = [
        name
        for name, expected in manifest["files"].items()
        if not (folder / name).is_file() or _fingerprint(folder / name) != expected
    ]
    for name in damaged:
        del manifest["files"][name]
    return damaged


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


def _write_whole(
    source: Source, relative: str, target: Path, counts: dict[str, dict[str, int]]
) -> None:
    """Write one output under another name, sync it, rename it."""
    staging = target.with_name(f".{target.name}.writing")
    found = source.write(relative, staging)
    if found is not None:
        counts[found[0]] = found[1]
    _sync(staging)
    staging.rename(target)
    _sync(target.parent)


def _write_json(file: Path, value: dict[str, Any]) -> None:
    staging = file.with_name(f".{file.name}.writing")
    staging.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _sync(staging)
    staging.rename(file)


def _sync(path: Path) -> None:
    """Make sure that a file or a folder's entries are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _tell_counts(counts: dict[str, dict[str, int]], say: Say) -> None:
    for split, published in PUBLISHED_ROWS.items():
        found = counts[split]
        line = f"{split}: {found['rows']:,} rows, longest {found['longest']} tokens"
        if found["truncated"]:
            line += f", {found['truncated']} cut to fit the model"
        if found["rows"] != published:
            line += f"; NOT the published SST-2, which has {published:,}"
        say(line)
