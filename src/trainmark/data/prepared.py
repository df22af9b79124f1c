"""Write a data folder whole or not at all.

Owns the manifest, which lists every file with its sha256. What is written lies beside the folder
asked for and takes its name last; an interrupted call leaves nothing. Must not know what the files
mean.
"""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest
from typing import TYPE_CHECKING, Any, TypeVar

from trainmark.errors import DataError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainmark.data.splits import Layout

    Say = Callable[[str], None]

T = TypeVar("T")
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A folder on its way.

    Args:
        folder: where it lies until it is finished.
        manifest: what is in it; ``counts`` has what was counted.
        say: called with one line for each thing done.
    """

    folder: Path
    manifest: dict[str, Any]
    say: Say

    def file(self, relative: str, make: Callable[[Path], T]) -> T:
        """Have ``make``, called with the path to write, write one file; return its result."""
        self.say(f"writing {relative}")
        target = self.folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        return make(target)


@contextmanager
def writing(
    data: Path, raw: Path, sources: Mapping[str, Path], say: Say, *, case: str, form: int,
    **options: Any,
) -> Iterator[Unfinished | None]:  # fmt: skip
    """Give the folder to write into, none where ``data`` is finished; it takes its name last.

    Args:
        raw: where the sources lie; ``data`` must not lie inside.
        sources: the files that ``data`` follows from, by name.
        say: called with one line for each thing done or found.
        form: version of what is written.
        options: what ``data`` follows from besides; they stand in the manifest.

    Raises:
        DataError: ``data`` is not this call's to write.
        EnvironmentFault: the system refused something, or another prepare is at work.
    """
    data, raw = data.resolve(), raw.resolve()
    if raw in data.parents:
        raise DataError(
            "the folder to write lies inside the raw one", where=str(data),
            rule="what is written must not become a source of the next call",
            remedy="name a folder beside the raw one with --data",
        )  # fmt: skip
    folder = data.with_name(f".{data.name}.partial")
    try:
        say(f"{len(sources):,} files: taking their sha256")
        prints = [{"name": name, **fingerprint(file)} for name, file in sorted(sources.items())]
        made_of = {"case": case, "format": form, "sources": prints, **options}
        if _finished(data, made_of):
            say(f"{data} is already prepared")
            yield None
            return
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise EnvironmentFault(
                "another prepare is at work on this folder, or was killed", where=str(folder),
                remedy="wait for it or remove what it left, or name another folder with --data",
            ) from None  # fmt: skip
        try:
            unfinished = Unfinished(folder, {**made_of, "counts": {}}, say)
            yield unfinished
            say("taking the sha256 of what was written")
            files = {str(x.relative_to(folder)): x for x in folder.rglob("*") if x.is_file()}
            listed = {name: fingerprint(file) for name, file in files.items()}
            text = json.dumps(unfinished.manifest | {"files": listed}, indent=2, sort_keys=True)
            (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
            folder.rename(data)  # also over an empty folder
            say(f"done: {data}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot prepare: {error.strerror or error}",
            where=str(error.filename or data),
            rule="raw files must be readable, and the folder to write on a disk with room",
            remedy="name another folder with --data, or free some space, and call again",
        ) from error


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
            f"not empty, and not prepared with this {other}", where=str(data),
            rule="prepare never writes over files",
            remedy="name a new or empty folder with --data, or remove this one",
        )  # fmt: skip
    return True


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a folder's manifest; empty where there is none."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def fingerprint(file: Path) -> dict[str, Any]:
    """Return a file's ``size_bytes`` and ``sha256``."""
    with file.open("rb") as stream:
        digest = file_digest(stream, "sha256").hexdigest()
    return {"size_bytes": file.stat().st_size, "sha256": digest}


def lay_out(
    data: Path, raw: Path, say: Say, *, case: str, form: int, layout: Layout,
    names: Mapping[str, str], write: Callable[[Sequence[Path], Path], dict[str, int]],
    copies: Mapping[str, Path], published: Mapping[str, int], notes: Sequence[str] = (),
) -> None:  # fmt: skip
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
        counts = unfinished.manifest["counts"]
        for note in notes:
            say(note)
        for split, found in layout.files.items():
            counts[split] = unfinished.file(names[split], partial(write, found))
        for name, file in copies.items():
            unfinished.file(name, partial(shutil.copyfile, file))
        for split, counted in counts.items():
            if counted:
                shown = ", ".join(f"{number:,} {name}" for name, number in counted.items())
                other = published[split] not in counted.values()
                say(f"{split}: {shown}" + f"; NOT the published {published[split]:,}" * other)


@contextmanager
def whole_gzip(path: Path) -> Iterator[None]:
    """Say what is found damaged in a gzip file inside the block as a fault of the data."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"not readable as gzip: {error}", where=str(path),
            rule="a file that begins as gzip is whole gzip to its end",
            remedy="fetch or compress the file again",
        ) from None  # fmt: skip
