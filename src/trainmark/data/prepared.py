"""Write a data folder whole or not at all, and go on with one that was begun.

Owns the manifest, which lists every file with its sha256. What is written lies beside the folder
asked for and takes its name last. Until then a file of its own says what is finished there: the
next call with the same sources and options goes on, any other one begins anew. Must not know what
the files mean.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock, Timeout

from trainmark.documents import write_atomically
from trainmark.errors import DataError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainmark.data.splits import Layout

    Say = Callable[[str], None]

T = TypeVar("T")
MANIFEST = "manifest.json"
STATE = "unfinished.json"  # in a folder that is not finished: what it follows from, what is done
WORK = "work"
BLOCK_BYTES = 1 << 24


class Reporter:
    """Receives what ``prepare`` says of its work; this one passes lines on and shows no progress.

    Args:
        say: called with each line.
    """

    def __init__(self, say: Say) -> None:
        self.say = say

    def __call__(self, line: str) -> None:
        """Take a line that says what was found or done."""
        self.say(line)

    def begin(self, stage: str, total: int, done: int = 0) -> None:
        """Begin a stage of ``total`` units of work, ``done`` of them by an earlier call."""

    def advance(self, units: int) -> None:
        """Add finished units of the stage."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A folder on its way.

    Args:
        folder: where it lies until it is finished.
        manifest: what is in it; ``counts`` has what was counted.
        report: receives lines and progress.
        state: what was done, kept on disk: ``stages`` by name with their results, ``files`` by
            name with size and sha256.
    """

    folder: Path
    manifest: dict[str, Any]
    report: Reporter
    state: dict[str, dict[str, Any]]

    @property
    def work(self) -> Path:
        """Folder of what leads to the files; it is removed when they are finished."""
        work = self.folder / WORK
        work.mkdir(exist_ok=True)
        return work

    def save(self) -> None:
        """Write the state, whole or not at all."""
        with write_atomically(self.folder / STATE) as stream:
            stream.write(json.dumps(self.state).encode())

    def forget(self) -> None:
        """Begin anew: nothing of an earlier call is used."""
        self.state["stages"].clear()
        self.state["files"].clear()

    def stage(self, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` returns, a value of JSON; from an earlier call if that came so far.

        What ``make`` writes must be on disk when it returns. If it is stopped, it is called again.
        """
        stages = self.state["stages"]
        if name not in stages:
            self.note(name, make())
        result: T = stages[name]
        return result

    def note(self, name: str, result: Any) -> None:
        """Keep the result of a finished stage, a value of JSON."""
        self.state["stages"][name] = result
        self.save()

    def file(self, relative: str, make: Callable[[Path], T]) -> T:
        """Have ``make``, called with the path to write, write one file; return its result.

        A file that an earlier call finished, and that is as it was, is kept.
        """
        target = self.folder / relative
        kept = self.state["files"].get(relative)
        if kept is not None and target.is_file() and fingerprint(target) == kept:
            result: T = self.state["stages"][relative]
            return result
        target.parent.mkdir(parents=True, exist_ok=True)
        result = make(target)
        self.state["stages"][relative] = result
        self.state["files"][relative] = fingerprint(target)
        self.save()
        return result

    def copy(self, relative: str, source: Path) -> None:
        """Copy a file; its bytes are units of the stage."""
        before = self.state["files"].get(relative)
        self.file(relative, partial(copy_file, source, advance=self.report.advance))
        if self.state["files"][relative] is before:  # kept
            self.report.advance(source.stat().st_size)


@contextmanager
def writing(
    data: Path,
    raw: Path,
    sources: Mapping[str, Path],
    say: Say,
    *,
    case: str,
    form: int,
    **options: Any,
) -> Iterator[Unfinished | None]:
    """Give the folder to write into, none where ``data`` is finished; it takes its name last.

    A call that is stopped leaves what it finished; one that finds a fault of the data leaves
    nothing, since the sources will change.

    Args:
        raw: where the sources lie; ``data`` must not lie inside.
        sources: the files that ``data`` follows from, by name.
        say: called with one line for each thing done or found; a ``Reporter`` is shown progress.
        form: version of what is written.
        options: what ``data`` follows from besides; they stand in the manifest.

    Raises:
        DataError: ``data`` is not this call's to write.
        EnvironmentFault: the system refused something, or another prepare is at work.
    """
    data, raw = data.resolve(), raw.resolve()
    report = say if isinstance(say, Reporter) else Reporter(say)
    if raw in data.parents:
        raise DataError(
            "the folder to write lies inside the raw one",
            where=str(data),
            rule="what is written must not become a source of the next call",
            fix="name a folder beside the raw one with --data",
        )
    folder = data.with_name(f".{data.name}.partial")
    try:
        with _locked(data):
            earlier = _read_state(folder)
            prints, stats = _fingerprints(sources, earlier, report)
            made_of = {"case": case, "format": form, "sources": prints, **options}
            if _finished(data, made_of):
                shutil.rmtree(folder, ignore_errors=True)
                report(f"{data} is already prepared")
                yield None
                return
            made_of_json = json.loads(json.dumps(made_of))
            if earlier.get("made_of") == made_of_json:
                report(f"going on with what an earlier call finished, in {folder}")
                state = earlier
            else:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                state = {"made_of": made_of_json, "stages": {}, "files": {}}
            unfinished = Unfinished(
                folder, {**made_of, "counts": {}}, report, {**state, "stats": stats}
            )
            unfinished.save()
            try:
                yield unfinished
                _finish(unfinished, data)
            except DataError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            except KeyboardInterrupt:
                report(f"stopped; the same command goes on: what is finished lies in {folder}")
                raise
            report(f"done: {data}")
    except OSError as error:
        raise EnvironmentFault(
            f"cannot prepare: {error.strerror or error}",
            where=str(error.filename or data),
            rule="raw files must be readable, and the folder to write on a disk with room",
            fix="free some space or change the permissions, then call again: what is finished "
            f"is kept in {folder}",
        ) from error


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Refuse a second call for ``data`` while the first is at work."""
    place = data.with_name(f".{data.name}.lock")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place, timeout=0):
            try:
                yield
            finally:
                place.unlink(missing_ok=True)
    except Timeout:
        raise EnvironmentFault(
            "another prepare is at work on this folder",
            where=str(data),
            fix="wait for it, or name another folder with --data",
        ) from None


def _read_state(folder: Path) -> dict[str, Any]:
    """Return what an earlier call left; empty where there is nothing that can be used."""
    try:
        state = json.loads((folder / STATE).read_bytes())
        if state.keys() == {"made_of", "stages", "files", "stats"}:
            return dict(state)
    except (OSError, ValueError, AttributeError):
        pass
    return {}


def _fingerprints(
    sources: Mapping[str, Path], earlier: dict[str, Any], report: Reporter
) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """Return size and sha256 of every source, sorted by name, and their sizes and times of change.

    A digest of the earlier call is taken where neither size nor time has changed since.
    """
    stats = {name: file.stat() for name, file in sorted(sources.items())}
    fingerprints = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    known = {item["name"]: item for item in earlier.get("made_of", {}).get("sources", ())}
    report.begin(f"checking {len(sources):,} files", sum(size for size, _ in fingerprints.values()))
    prints = []
    for name, stat in fingerprints.items():
        if earlier.get("stats", {}).get(name) == stat and name in known:
            prints.append(known[name])
            report.advance(stat[0])
        else:
            prints.append({"name": name, **fingerprint(sources[name], report.advance)})
    return prints, fingerprints


def _finish(unfinished: Unfinished, data: Path) -> None:
    """Write the manifest and give the folder its name."""
    folder, report = unfinished.folder, unfinished.report
    files = {x.relative_to(folder).as_posix(): x for x in folder.rglob("*") if x.is_file()}
    work_files = (STATE, f"{WORK}/")
    files = {name: file for name, file in files.items() if not name.startswith(work_files)}
    listed = unfinished.state["files"]
    new = {name: file for name, file in files.items() if name not in listed}
    if new:
        report.begin("taking the sha256 of what was written", sum(map(_size, new.values())))
    for name, file in new.items():
        listed[name] = fingerprint(file, report.advance)
        unfinished.save()
    manifest = unfinished.manifest | {"files": {name: listed[name] for name in files}}
    text = json.dumps(manifest, indent=2, sort_keys=True)
    (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
    shutil.rmtree(folder / WORK, ignore_errors=True)
    (folder / STATE).unlink()
    folder.rename(data)  # also over an empty folder


def _size(file: Path) -> int:
    return file.stat().st_size


def _finished(data: Path, made_of: dict[str, Any]) -> bool:
    """Tell whether ``data`` was written from the same; it may also be empty or not there.

    Raises:
        DataError: this call would not have written ``data``.
    """
    if not data.exists() or not any(data.iterdir()):
        return False
    manifest = read_manifest(data)
    other = next((name for name, value in made_of.items() if manifest.get(name) != value), None)
    if other:
        raise DataError(
            f"not empty, and not prepared with this {other}",
            where=str(data),
            rule="prepare never writes over files",
            fix="name a new or empty folder with --data, or remove this one",
        )
    return True


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a folder's manifest; empty where there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def fingerprint(file: Path, advance: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """Return a file's ``size_bytes`` and ``sha256``.

    Args:
        advance: called with the bytes of each block that was read.
    """
    digest, size = sha256(), 0
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            advance(len(block))
    return {"size_bytes": size, "sha256": digest.hexdigest()}


def copy_file(source: Path, target: Path, advance: Callable[[int], None] = lambda _: None) -> None:
    """Copy a file; blocks of zeros become holes, so that a sparse file takes no more room.

    Args:
        advance: called with the bytes of each block.
    """
    with source.open("rb") as stream, target.open("wb") as written:
        while block := stream.read(BLOCK_BYTES):
            if block.count(0) < len(block):
                written.write(block)
            else:
                written.seek(len(block), os.SEEK_CUR)
            advance(len(block))
        written.truncate()


def lay_out(
    data: Path,
    raw: Path,
    say: Say,
    *,
    case: str,
    form: int,
    layout: Layout,
    names: Mapping[str, str],
    write: Callable[[Sequence[Path], Path], dict[str, int]],
    copies: Mapping[str, Path],
    published: Mapping[str, int],
    notes: Sequence[str] = (),
) -> None:
    """Write ``data``: each split from its files, and copies of others; see ``writing``.

    Args:
        names: of the file of each split.
        write: writes a split from its files; returns what was counted, if anything.
        copies: files by their names in ``data``.
        published: rows of each split of the published data.
        notes: lines to say before anything is written.
    """
    files = [*copies.values(), *(file for split in layout.files.values() for file in split)]
    sources = {file.relative_to(raw).as_posix(): file for file in files}
    with writing(data, raw, sources, say, case=case, form=form) as unfinished:
        if unfinished is None:
            return
        counts, report = unfinished.manifest["counts"], unfinished.report
        for note in notes:
            report(note)
        report.begin(f"writing {len(names) + len(copies):,} files", sum(map(_size, files)))
        for split, files_of_split in layout.files.items():
            counts[split] = unfinished.file(names[split], partial(write, files_of_split))
            report.advance(sum(map(_size, files_of_split)))
        for name, file in copies.items():
            unfinished.copy(name, file)
        for split, counted in counts.items():
            if counted:
                shown = ", ".join(f"{number:,} {name}" for name, number in counted.items())
                if published[split] not in counted.values():
                    shown += f"; NOT the published {published[split]:,}"
                report(f"{split}: {shown}")


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
            fix="fetch or compress the file again",
        ) from None
