"""Write a data folder whole or not at all, and go on where a call was stopped.

Owns the manifest, and what of an earlier call is kept. The unfinished folder lies
beside the one asked for and takes its name last; its manifest lists every file done so far
with its sha256. Must not know what the files mean.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock, Timeout

from trainmark.data.json_documents import written_whole
from trainmark.errors import DataError, EnvironmentFault, TrainmarkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Say = Callable[[str], None]

Result = TypeVar("Result")
MANIFEST = "manifest.json"


def prepare(
    raw: Path,
    data: Path,
    say: Say,
    *,
    case: str,
    form: int,
    raw_files: Callable[[Path], Mapping[str, Path]],
    write: Callable[[Path, Unfinished], None],
) -> None:
    """Write ``data`` from the files of ``raw``, whole or not at all.

    Calling again with the same files keeps every finished file whose sha256 still fits.

    Args:
        say: called with one line for each thing done, kept or found.
        form: version of what is written; a folder of another version is not gone on with.
        raw_files: returns the files of ``raw`` that matter, by name.
        write: writes each file of the folder that is not finished.

    Raises:
        DataError: something is missing or damaged, or ``data`` is not this call's to write.
        EnvironmentFault: the system refused something, or another prepare is at work.
    """
    with alone(data, say) as folder:
        raw = raw.resolve()
        refuse_inside(folder, raw)
        made_of = {"format": form, "case": case, "sources": fingerprints(raw_files(raw))}
        unfinished = resume(folder, made_of=made_of, fresh={"counts": {}}, say=say)
        if unfinished is None:
            return
        with unfinished.worth_keeping():
            write(raw, unfinished)
        unfinished.finish(say)


def only(what: str, found: Sequence[Path], *, where: str, remedy: str) -> Path:
    """Return the one place where ``what`` was found.

    Raises:
        DataError: none was found, or several.
    """
    if not found:
        raise DataError(f"no {what} found", where=where, remedy=remedy)
    if len(found) > 1:
        raise DataError(
            f"{what} found {len(found)} times: {', '.join(map(str, found))}",
            where=where,
            rule="a raw download holds each once",
            remedy="remove or move away all but one",
        )
    return found[0]


@contextmanager
def alone(data: Path, say: Say) -> Iterator[Path]:
    """Hold the lock of a folder to write and give its resolved path.

    What the system refuses inside the block is said as this tree's error.

    Args:
        say: called with how to go on when the user interrupts the block.

    Raises:
        EnvironmentFault: another prepare holds it, or the system refused something.
    """
    try:
        data = data.resolve()
        data.parent.mkdir(parents=True, exist_ok=True)
        lock = data.with_name(f".{data.name}.lock")
        with FileLock(lock).acquire(blocking=False):
            try:
                yield data
            except KeyboardInterrupt:
                say("interrupted; call again to go on with what is finished")
                raise
            finally:
                with suppress(OSError):  # a file that stays behind holds nothing
                    lock.unlink()
    except Timeout:
        raise EnvironmentFault(
            "another prepare is at work on this folder",
            where=str(data),
            remedy="wait for it, or name another folder with --data",
        ) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
        raise EnvironmentFault(
            f"cannot prepare: {getattr(error, 'strerror', None) or error}",
            where=str(getattr(error, "filename", None) or data),
            rule="raw files must be readable, and the folder to write on a disk with room",
            remedy="name another folder with --data, or free some space, and call again",
        ) from error


def refuse_inside(data: Path, raw: Path) -> None:
    """Refuse to write ``data`` inside the folder it is made from; both resolved."""
    if raw in data.parents:
        raise DataError(
            "the folder to write lies inside the raw one",
            where=str(data),
            rule="what is written must not become a source of the next call",
            remedy="name a folder beside the raw one with --data",
        )


def fingerprint(file: Path) -> dict[str, Any]:
    """Return a file's ``size_bytes`` and ``sha256``."""
    with file.open("rb") as stream:
        return {
            "size_bytes": file.stat().st_size,
            "sha256": file_digest(stream, "sha256").hexdigest(),
        }


def fingerprints(files: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return ``name``, ``size_bytes`` and ``sha256`` of every file, sorted by name."""
    return [{"name": name, **fingerprint(file)} for name, file in sorted(files.items())]


def stamps(files: Mapping[str, Path]) -> dict[str, tuple[int, int]]:
    """Return size and time of change of every file."""
    return {name: (file.stat().st_size, file.stat().st_mtime_ns) for name, file in files.items()}


def refuse_changed(
    files: Mapping[str, Path], before: Mapping[str, Any], unfinished: Unfinished
) -> None:
    """Refuse what was read while somebody wrote to it, and remove what came of it."""
    now = stamps(files)
    if changed := [str(files[name]) for name in files if now[name] != before[name]]:
        unfinished.discard()
        raise DataError(
            "changed while it was read",
            where=", ".join(changed),
            rule="the manifest names the bytes that were encoded",
            remedy="call again when nobody writes to it",
        )


def refuse_full(folder: Path, need_bytes: int, *, rule: str) -> None:
    """Refuse to go on where the disk has no room for so many more bytes."""
    free_bytes = shutil.disk_usage(folder).free
    if need_bytes > free_bytes:
        raise EnvironmentFault(
            f"{need_bytes:,} more bytes are needed, the disk has {free_bytes:,} free",
            where=str(folder),
            rule=rule,
            remedy="free some space and call again: what is finished is kept",
        )


@contextmanager
def whole_gzip(path: Path) -> Iterator[None]:
    """Say what is found damaged in a gzip file inside the block as a fault of the data."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"not readable as gzip: {error}",
            where=str(path),
            rule="a file that begins as gzip is whole gzip to its end",
            remedy="fetch or compress the file again",
        ) from None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A folder on its way.

    Args:
        data: the folder's final name.
        partial: where it lies until then.
        manifest: what is in it; ``files`` has the fingerprint of each finished file.
    """

    data: Path
    partial: Path
    manifest: dict[str, Any]

    @property
    def files(self) -> dict[str, Any]:
        """The finished files' fingerprints by name below the folder."""
        found: dict[str, Any] = self.manifest["files"]
        return found

    def write(self, relative: str, make: Callable[[Path], Result]) -> Result:
        """Have ``make`` write one file under another name, sync it, rename it, list it.

        ``make`` is called with the path to write; what it returns is returned. The caller
        saves the manifest.
        """
        target = self.partial / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.with_name(f".{target.name}.writing")
        result = make(staging)
        _sync(staging)
        staging.rename(target)
        _sync(target.parent)
        self.keep(relative)
        return result

    def once(self, relative: str, make: Callable[[Path], object], say: Say) -> None:
        """Write one file by ``make`` and save, unless an earlier call finished it."""
        if relative in self.files:
            say(f"kept {relative}: finished before, its sha256 fits")
            return
        say(f"writing {relative}")
        self.write(relative, make)
        self.save()

    def keep(self, relative: str) -> None:
        """List a file that is there, synced and under its final name."""
        self.files[relative] = fingerprint(self.partial / relative)

    def save(self) -> None:
        """Write the manifest as it is now."""
        text = json.dumps(self.manifest, indent=2, sort_keys=True) + "\n"
        with written_whole(self.partial / MANIFEST) as file:
            file.write(text.encode())

    def finish(self, say: Say) -> None:
        """Mark the manifest complete, give the folder its name, and say so."""
        self.manifest["complete"] = True
        self.save()
        self.partial.rename(self.data)
        _sync(self.data.parent)
        say(f"done: {self.data}")

    @contextmanager
    def worth_keeping(self, finished: str = "files") -> Iterator[None]:
        """Remove the folder where the block fails and nothing in it is worth going on with.

        Args:
            finished: the manifest's list of what was finished, by its key.
        """
        try:
            yield
        except TrainmarkError:
            if not self.manifest[finished]:
                self.discard()
            raise

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.partial, ignore_errors=True)


def resume(
    data: Path,
    *,
    made_of: Mapping[str, Any],
    fresh: Mapping[str, Any],
    say: Say,
    salvage: Callable[[Unfinished], bool] = lambda _: False,
) -> Unfinished | None:
    """Return the folder to go on with, listing only files that are sound; None: all done.

    Args:
        data: the folder asked for, resolved.
        made_of: what the folder follows from, as it stands in the manifest; ``format``,
            ``case`` and ``sources`` at least. A folder made of anything else is not touched.
        fresh: further manifest keys with the values they start from.
        say: called with one line for what was found.
        salvage: called with an unfinished folder that was made of something else, to take
            out of its manifest what no longer fits; tells whether anything is left.

    Raises:
        DataError: ``data`` holds something else.
    """
    partial = data.with_name(f".{data.name}.partial")
    if data.exists() and not (data.is_dir() and not any(data.iterdir())):
        return _mend(data, partial, _own(data, made_of, fresh), say)
    if data.is_dir():
        data.rmdir()  # an empty folder in the way of the rename
    manifest = _read_manifest(partial, made_of, fresh)
    if manifest is not None:
        unfinished = Unfinished(data, partial, manifest)
        if _differing(manifest, made_of) is None or salvage(unfinished):
            say(f"going on with the unfinished {partial.name}")
            manifest.update(made_of)
            _drop_damaged(partial, manifest)
            return unfinished
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    manifest = {**made_of, **json.loads(json.dumps(fresh)), "complete": False, "files": {}}
    return Unfinished(data, partial, manifest)


def _mend(data: Path, partial: Path, manifest: dict[str, Any], say: Say) -> Unfinished | None:
    """Take back a finished folder of which files are gone or changed."""
    damaged = _drop_damaged(data, manifest)
    if not damaged:
        say(f"{data} is already prepared: {len(manifest['files'])} files checked by sha256")
        return None
    say(f"damaged or missing, written again: {', '.join(damaged)}")
    shutil.rmtree(partial, ignore_errors=True)
    data.rename(partial)
    manifest["complete"] = False
    return Unfinished(data, partial, manifest)


def _read_manifest(
    folder: Path, made_of: Mapping[str, Any], fresh: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a folder's manifest; None when there is none of this case and format."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(found, dict) and found.get("case") == made_of["case"]
    if not ours or found.get("format") != made_of["format"]:
        return None
    shape = {**made_of, **fresh, "files": {}}
    fits = all(isinstance(found.get(name), type(value)) for name, value in shape.items())
    return found if fits else None


def _differing(manifest: Mapping[str, Any], made_of: Mapping[str, Any]) -> str | None:
    """Return the first thing that a folder was made of and this call would not make it of."""
    return next((name for name, value in made_of.items() if manifest[name] != value), None)


def _own(data: Path, made_of: Mapping[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a folder that this call would have written, or refuse it."""
    manifest = _read_manifest(data, made_of, fresh)
    if manifest is None:
        raise DataError(
            "the folder is not empty and was not written by prepare",
            where=str(data),
            rule="prepare never writes over files of others",
            remedy="name a new or empty folder with --data",
        )
    differing = _differing(manifest, made_of)
    if differing is not None:
        origin = "from other raw files" if differing == "sources" else f"with another {differing}"
        raise DataError(
            f"the folder was prepared {origin}",
            where=str(data / MANIFEST),
            rule="one folder holds one version of the data",
            remedy="name another folder with --data, or remove this one",
        )
    return manifest


def _drop_damaged(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """Take files out of the manifest that are gone or changed; return their names."""
    files = manifest["files"]
    damaged = [
        name
        for name, expected in files.items()
        if not (folder / name).is_file() or fingerprint(folder / name) != expected
    ]
    for name in damaged:
        del files[name]
    return damaged


def _sync(path: Path) -> None:
    """Make sure that a file or a folder's entries are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
