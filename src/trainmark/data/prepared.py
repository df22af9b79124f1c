"""Write a data folder completely or not at all, and resume one that was interrupted.

The manifest lists every file with its sha256. Files are written into a partial folder beside the
requested one; the last step renames it. Until then, a state file in it records what is finished:
the next call with the same sources and options resumes there, any other call starts again. A stage
is a part of the work whose result the state keeps; a fingerprint is the size and sha256 of a file.
This module does not know what the files mean.
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
MANIFEST_FILE = "manifest.json"
STATE_FILE = "unfinished.json"  # in a partial folder: what it is made of, and what is finished
WORK_FOLDER = "work"  # subfolder of a partial folder for intermediate files
BLOCK_BYTES = 1 << 24  # that are read at a time


class Reporter:
    """Receives the lines and the progress of ``prepare``; this class shows no progress.

    Args:
        say: called with each line.
    """

    def __init__(self, say: Say) -> None:
        self.say = say

    def __call__(self, line: str) -> None:
        """Show a line."""
        self.say(line)

    def begin(self, stage: str, total: int, done: int = 0) -> None:
        """Begin a stage of ``total`` units of work, of which an earlier call did ``done``."""

    def advance(self, units: int) -> None:
        """Add finished units of work to the current stage."""


@dataclass(frozen=True, slots=True)
class PartialFolder:
    """A data folder that is being written.

    An interrupted call leaves it, and the next call continues from what is finished in it.

    Args:
        folder: its path until it is finished.
        manifest: the content of the manifest but for its files; ``counts`` holds the counts of each
            split.
        report: receives lines and progress.
        state: what is finished, also stored on disk: ``stages`` maps parts of the work to their
            results, ``files`` maps paths to size and sha256, ``made_of`` holds what the content
            depends on, ``stats`` maps sources to size and time of change.
    """

    folder: Path
    manifest: dict[str, Any]
    report: Reporter
    state: dict[str, dict[str, Any]]

    @property
    def work(self) -> Path:
        """Folder for intermediate files, made if it is missing; it is removed at the end."""
        work = self.folder / WORK_FOLDER
        work.mkdir(exist_ok=True)
        return work

    def save(self) -> None:
        """Write the state, which lists finished work, to disk: completely or not at all."""
        with write_atomically(self.folder / STATE_FILE) as stream:
            stream.write(json.dumps(self.state).encode())

    def discard_results(self) -> None:
        """Drop the results of an earlier call, so that every stage runs again.

        Only in memory: the file of the state changes with the next ``save``.
        """
        self.state["stages"].clear()
        self.state["files"].clear()

    def run_stage(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of ``make``, a JSON value, or the one that an earlier call stored.

        What ``make`` writes must be on disk when it returns. If it is interrupted, the next call
        runs it again.

        Args:
            name: of the stage, a part of the work; the result is stored under it.
            make: does the work of the stage.
        """
        stages = self.state["stages"]
        if name not in stages:
            self.save_result(name, make())
        result: T = stages[name]
        return result

    def save_result(self, name: str, result: Any) -> None:
        """Store the result of a finished stage, a JSON value."""
        self.state["stages"][name] = result
        self.save()

    def write_file(self, relative: str, make: Callable[[Path], T]) -> T:
        """Write one file with ``make``, which gets its path; return the result of ``make``.

        The result must be a JSON value. A file that an earlier call finished is kept if its
        fingerprint (size and sha256) still matches; its stored result is returned.

        Args:
            relative: path of the file in the data folder.
        """
        target = self.folder / relative
        stored = self.state["files"].get(relative)  # the fingerprint
        if stored is not None and target.is_file() and compute_fingerprint(target) == stored:
            result: T = self.state["stages"][relative]
            return result
        target.parent.mkdir(parents=True, exist_ok=True)
        result = make(target)
        self.state["stages"][relative] = result
        self.state["files"][relative] = compute_fingerprint(target)
        self.save()
        return result

    def copy_file(self, relative: str, source: Path) -> None:
        """Copy a file unless an earlier call did; its bytes count as progress of the current stage.

        Args:
            relative: path of the copy in the data folder.
            source: the file to copy.
        """
        stored = self.state["files"].get(relative)  # the fingerprint of an earlier call's copy
        copy = partial(copy_file, source, advance=self.report.advance)  # the module's function
        self.write_file(relative, copy)
        # ``write_file`` replaces the fingerprint of a file that it writes: the same object means
        # that an earlier call has copied the file, so that nothing has advanced the report.
        if self.state["files"][relative] is stored:
            self.report.advance(source.stat().st_size)


@contextmanager
def write_data_folder(
    data: Path,
    raw: Path,
    sources: Mapping[str, Path],
    say: Say,
    *,
    case: str,
    format_version: int,
    **options: Any,
) -> Iterator[PartialFolder | None]:
    """Yield the partial folder to write into, or None if ``data`` is finished already.

    At the end of the block, the partial folder is renamed to ``data``. An interrupted call leaves
    the partial folder, so that the next call resumes it. If the block raises ``DataError``, the
    partial folder is removed, because the sources must change.

    Args:
        data: the folder to write; it must be missing, empty, or made of the same sources.
        raw: folder of the sources; ``data`` must not lie inside it.
        sources: the files that ``data`` is made of, by name.
        say: called with each line; a ``Reporter`` also receives the progress.
        case: name of the case; the manifest contains it.
        format_version: version of the format that is written.
        options: everything else that ``data`` depends on; the manifest contains them.

    Raises:
        DataError: ``data`` is not empty and was made of something else, or lies inside ``raw``. The
            partial folder of an interrupted call is then kept.
        EnvironmentFault: a file cannot be read or written, or another prepare is running.
    """
    data = data.resolve()
    raw = raw.resolve()
    report = say if isinstance(say, Reporter) else Reporter(say)
    _refuse_data_in_raw(data, raw)
    folder = data.with_name(f".{data.name}.partial")
    with _translate_system_errors(data, folder), _lock_folder(data):
        partial_folder = _open_partial_folder(
            folder, data, sources, report, case=case, format_version=format_version, options=options
        )
        if partial_folder is None:
            report(f"{data} is already prepared")
            yield None
            return
        try:
            yield partial_folder
            _finish(partial_folder, data)
        except DataError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except KeyboardInterrupt:
            report(
                f"stopped; run the same command again to resume; finished work is kept in {folder}"
            )
            raise
        report(f"done: {data}")


def _open_partial_folder(
    folder: Path,
    data: Path,
    sources: Mapping[str, Path],
    report: Reporter,
    *,
    case: str,
    format_version: int,
    options: Mapping[str, Any],
) -> PartialFolder | None:
    """Return the partial folder, resumed or empty; None if ``data`` is finished already.

    Args:
        folder: path of the partial folder.
        data: the folder that it becomes when it is finished.
        sources: the files that ``data`` is made of, by name.
        report: receives lines and progress.
        case: name of the case.
        format_version: version of the format that is written.
        options: everything else that ``data`` depends on.

    Raises:
        DataError: ``data`` is not empty and was made of something else.
    """
    earlier_state = _read_state(folder)  # of an interrupted call; empty: there is none
    # ``fingerprints``: size and sha256 of each source.
    # ``versions``: size and time of change of each source.
    fingerprints, versions = _fingerprint_sources(sources, earlier_state, report)
    # Everything that the content of the data folder depends on.
    made_of = {"case": case, "format": format_version, "sources": fingerprints, **options}
    # As it is read from a file, with which it is compared: there a tuple is a list.
    made_of = json.loads(json.dumps(made_of))
    if _is_finished(data, made_of):
        shutil.rmtree(folder, ignore_errors=True)  # it is no longer needed
        return None
    state = _resume_or_begin(folder, made_of, earlier_state, report)
    # The next call does not hash a source again that has still the same version.
    state["stats"] = versions
    # The manifest that the folder gets when it is finished; the caller adds counts of each split.
    manifest = {**made_of, "counts": {}}
    partial_folder = PartialFolder(folder, manifest, report, state)
    partial_folder.save()
    return partial_folder


def _refuse_data_in_raw(data: Path, raw: Path) -> None:
    """Raise DataError if the folder to write lies inside that of the sources.

    Args:
        data: the folder to write, as an absolute path.
        raw: the folder of the sources, as an absolute path.
    """
    if raw in data.parents:
        raise DataError(
            "the output folder lies inside the raw data folder",
            where=str(data),
            rule=(
                "the output folder must be outside the raw data folder; otherwise, `trainmark "
                "prepare` would read its own output"
            ),
            fix="set --data to a folder outside the raw data folder",
        )


@contextmanager
def _translate_system_errors(data: Path, folder: Path) -> Iterator[None]:
    """Turn an OSError of the block into an EnvironmentFault.

    Args:
        data: the folder to write, named if the error names no file.
        folder: the partial folder, for the fix.
    """
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"cannot prepare the data: {error.strerror or error}",
            where=str(error.filename or data),
            rule=(
                "raw files must be readable, and the output folder must be writable and have "
                "enough space"
            ),
            fix=(
                "free some space or change the permissions, then run the command again; finished "
                f"work is kept in {folder}"
            ),
        ) from error


def _resume_or_begin(
    folder: Path, made_of: dict[str, Any], earlier_state: dict[str, Any], report: Reporter
) -> dict[str, Any]:
    """Return the earlier state if it has the same ``made_of``; else empty ``folder``.

    A state has ``made_of``, the results of finished ``stages`` by name, and the size and sha256 of
    finished ``files`` by path.

    Args:
        folder: the folder that is renamed to the data folder when it is finished.
        made_of: everything that the content of the data folder depends on: case, format, sources
            and options, as JSON values.
        earlier_state: the state that an interrupted call left on disk; empty: there is none.
        report: called with each line to show.

    Returns:
        The state from which this call continues: the earlier one, or one without finished work.
    """
    if earlier_state.get("made_of") == made_of:
        report(f"resuming an interrupted conversion in {folder}")
        # A call that was killed while it wrote the state has left a temporary file.
        for staging in folder.glob(f".{STATE_FILE}.*.tmp"):
            staging.unlink()
        return dict(earlier_state)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # The caller adds ``stats``, the size and time of change of each source.
    return {"made_of": made_of, "stages": {}, "files": {}}


@contextmanager
def _lock_folder(data: Path) -> Iterator[None]:
    """Hold the lock of ``data``, the folder to write.

    Raises:
        EnvironmentFault: another `trainmark prepare` holds the lock.
    """
    lock_file = data.with_name(f".{data.name}.lock")
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock_file, timeout=0):  # 0: do not wait
            try:
                yield
            finally:
                # Nobody gets the lock of a removed file: ``FileLock`` finds out that the file
                # that it opened was removed.
                lock_file.unlink(missing_ok=True)
    except Timeout:
        raise EnvironmentFault(
            "another `trainmark prepare` is using this folder",
            where=str(data),
            fix="wait until the other process ends, or choose another folder with --data",
        ) from None


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the state that an interrupted call left; empty if there is none that can be used.

    The state lists what is finished, so that the next call resumes the work.

    Args:
        folder: the partial folder, which becomes the data folder when it is finished.
    """
    try:
        state = json.loads((folder / STATE_FILE).read_bytes())
        # A state with other keys is of another version of this program, and cannot be used.
        if state.keys() == {"made_of", "stages", "files", "stats"}:
            return dict(state)
    except (OSError, ValueError, AttributeError):
        pass
    return {}


def _fingerprint_sources(
    sources: Mapping[str, Path], earlier_state: dict[str, Any], report: Reporter
) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """Return the fingerprint of every source, sorted by name, and its size and modification time.

    A fingerprint of the earlier call is used again if size and modification time are the same.

    Args:
        sources: the files by name.
        earlier_state: the state that an interrupted call left on disk: ``made_of`` has the
            fingerprints, ``stats`` size and modification time by name; empty: there is none.
        report: receives the progress.

    Returns:
        The fingerprints with the name of their source, and lists of size in bytes and
        modification time in nanoseconds by name.
    """
    stats = {name: file.stat() for name, file in sorted(sources.items())}
    versions = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    earlier_sources = earlier_state.get("made_of", {}).get("sources", ())
    earlier_fingerprints = {item["name"]: item for item in earlier_sources}
    earlier_versions = earlier_state.get("stats", {})
    report.begin(f"checking {len(sources):,} files", sum(size for size, _ in versions.values()))
    fingerprints = []
    for name, version in versions.items():
        if earlier_versions.get(name) == version and name in earlier_fingerprints:
            fingerprints.append(earlier_fingerprints[name])
            report.advance(stats[name].st_size)
        else:
            fingerprint = compute_fingerprint(sources[name], report.advance)
            fingerprints.append({"name": name, **fingerprint})
    return fingerprints, versions


def _finish(partial_folder: PartialFolder, data: Path) -> None:
    """Write the manifest and rename the partial folder to ``data``.

    The manifest lists every file of the finished folder with its fingerprint: size and sha256.
    """
    folder = partial_folder.folder
    report = partial_folder.report
    # The files of the finished folder by path, without the state, intermediate files, and the
    # manifest that an earlier call wrote before it was interrupted.
    files = {}
    for file in folder.rglob("*"):
        name = file.relative_to(folder).as_posix()
        is_content = name not in (STATE_FILE, MANIFEST_FILE)
        if is_content and file.is_file() and not name.startswith(f"{WORK_FOLDER}/"):
            files[name] = file
    fingerprints = partial_folder.state["files"]
    # Files that were not written with ``write_file`` have no fingerprint yet.
    new_files = {name: file for name, file in files.items() if name not in fingerprints}
    if new_files:
        new_bytes = sum(map(_get_size, new_files.values()))
        report.begin("computing the sha256 of the output", new_bytes)
    for name, file in new_files.items():
        fingerprints[name] = compute_fingerprint(file, report.advance)
        partial_folder.save()  # an interrupted call continues with the next file
    manifest = partial_folder.manifest | {"files": {name: fingerprints[name] for name in files}}
    text = json.dumps(manifest, indent=2, sort_keys=True)
    (folder / MANIFEST_FILE).write_text(f"{text}\n", encoding="utf-8")
    shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)
    (folder / STATE_FILE).unlink()
    folder.rename(data)  # this also replaces an empty folder


def _get_size(file: Path) -> int:
    return file.stat().st_size


def _is_finished(data: Path, made_of: dict[str, Any]) -> bool:
    """Return whether ``data`` was made of ``made_of``; False if it is missing or empty.

    Args:
        made_of: everything that the content of ``data`` depends on, as JSON values; its manifest
            has these entries.

    Raises:
        DataError: it was made of something else.
    """
    if not data.exists() or not any(data.iterdir()):
        return False
    manifest = read_manifest(data)  # empty if there is none: then every value differs
    differing = [name for name, value in made_of.items() if manifest.get(name) != value]
    if differing:
        raise DataError(
            f"the folder is not empty, and was not prepared with the same {differing[0]}",
            where=str(data),
            rule="`trainmark prepare` never overwrites files",
            fix="choose a new or empty folder with --data, or remove this folder",
        )
    return True


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a data folder; empty if there is none, or none that can be read.

    `trainmark prepare` writes it: what the data were made of, counts, and sha256 of the files.
    """
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def compute_fingerprint(
    file: Path, advance: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """Return a file's ``size_bytes`` and ``sha256``.

    Args:
        advance: shows progress; called with the size of each block that was read.
    """
    digest = sha256()
    size = 0
    with file.open("rb") as stream:
        for block in iter(partial(stream.read, BLOCK_BYTES), b""):  # b"": the end of the file
            digest.update(block)
            size += len(block)
            advance(len(block))
    return {"size_bytes": size, "sha256": digest.hexdigest()}


def copy_file(source: Path, target: Path, advance: Callable[[int], None] = lambda _: None) -> None:
    """Copy a file; blocks of zeros become holes, so that a sparse file stays sparse.

    Args:
        advance: shows progress; called with the size of each block that was copied.
    """
    with source.open("rb") as reader, target.open("wb") as writer:
        for block in iter(partial(reader.read, BLOCK_BYTES), b""):  # b"": the end of the file
            if block.count(0) < len(block):
                writer.write(block)
            else:  # only zeros: skip them, which makes a hole
                writer.seek(len(block), os.SEEK_CUR)
            advance(len(block))
        writer.truncate()  # a hole at the end belongs to the file


def write_splits(
    data: Path,
    raw: Path,
    say: Say,
    *,
    case: str,
    format_version: int,
    layout: Layout,
    names: Mapping[str, str],
    write: Callable[[Sequence[Path], Path], dict[str, int]],
    copies: Mapping[str, Path],
    published: Mapping[str, int],
    notes: Sequence[str] = (),
) -> None:
    """Write ``data``: one file for each split, copies of other files, and a manifest.

    Does nothing if ``data`` is finished already. An interrupted call is resumed by the next one.

    Args:
        data: the folder to write.
        raw: the folder that contains all source files.
        say: called with each line to show.
        case: name of the case, for the manifest.
        format_version: version of the format that is written.
        layout: the source files of each split.
        names: the name of each split's file in ``data``.
        write: writes a split from its source files; returns counts by name, which may be empty.
        copies: further source files by their names in ``data``.
        published: number of rows in each split of the published data.
        notes: lines to show before anything is written.
    """
    files = list(copies.values())
    for files_of_split in layout.files.values():
        files += files_of_split
    sources = {file.relative_to(raw).as_posix(): file for file in files}
    with write_data_folder(
        data, raw, sources, say, case=case, format_version=format_version
    ) as partial_folder:
        if partial_folder is None:
            return
        counts = partial_folder.manifest["counts"]
        report = partial_folder.report
        for note in notes:
            report(note)
        report.begin(f"writing {len(names) + len(copies):,} files", sum(map(_get_size, files)))
        for split, files_of_split in layout.files.items():
            counts[split] = partial_folder.write_file(names[split], partial(write, files_of_split))
            report.advance(sum(map(_get_size, files_of_split)))
        for name, file in copies.items():
            partial_folder.copy_file(name, file)
        for split, counts_of_split in counts.items():
            if counts_of_split:
                text = ", ".join(f"{count:,} {name}" for name, count in counts_of_split.items())
                # The names of the counts are the case's own; one of them counts the rows. So if no
                # count is the published number of rows, the split is not the published one.
                if published[split] not in counts_of_split.values():
                    text += f"; NOT the published {published[split]:,}"
                report(f"{split}: {text}")


@contextmanager
def require_whole_gzip(path: Path) -> Iterator[None]:
    """Raise DataError if the code in the block finds the gzip file ``path`` damaged."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"not readable as gzip: {error}",
            where=str(path),
            rule="a gzip file must be complete and undamaged",
            fix="download or compress the file again",
        ) from None
