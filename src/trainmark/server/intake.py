"""Take bundles into the data folder: staged in it, examined, stored whole or not at all.

``DATA/DIGEST/`` is named by the bundle's SHA-256 and holds the bundle as it was sent, a receipt,
and its runs unpacked, which the index follows as any. Nothing in it changes after it is there; what
somebody removed of it is put back when it is sent again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import sqlalchemy as sa
from filelock import FileLock

from trainmark.data.json_documents import read_bytes
from trainmark.library.selection.indexing import add
from trainmark.library.selection.runs import find_runs
from trainmark.library.store.tables import RUNS
from trainmark.pages.site import reading
from trainmark.pages.site.links import Links
from trainmark.record.record import RECORD_FILE
from trainmark.server.changes import STATE, Changes, state, sync
from trainmark.server.client import Run, Stored
from trainmark.server.examining import BUNDLE, examined, full
from trainmark.server.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.library.store.index import Index

_RECEIPT = "upload.json"


@dataclass(frozen=True, slots=True)
class Staged:
    """A folder in which one upload is received; held open, so that nobody takes it for left."""

    folder: Path
    held: int

    def remove(self) -> None:
        """Remove it; where it was stored, nothing is left of it here."""
        shutil.rmtree(self.folder, ignore_errors=True)  # what is left goes at the next start
        os.close(self.held)


class Intake:
    """The way of bundles into one data folder.

    Args:
        folder: the data folder; the store's own, or outside of it.
        index: that takes in what is stored.
    """

    def __init__(self, folder: Path, index: Index, changes: Changes) -> None:
        self.folder, self._index, self._changes = folder, index, changes
        self._lock = FileLock(folder / STATE / "store.lock", mode=0o600)
        top = index.database.folder
        self._inside = top is not None and top.resolve() == folder.resolve()

    def recover(self) -> None:
        """Remove what uploads left that were cut off; index what was stored and not answered."""
        left = self.folder / STATE / "incoming"
        if not left.is_dir():
            return
        with self._lock:
            for place in left.iterdir():
                opened = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
                with suppress(BlockingIOError):  # another server's, which is at work
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(place)
                os.close(opened)
            begun = {x["digest"]: x for x in self._changes.read() if "digest" in x}
            for digest, line in begun.items():
                if line["result"] == "storing":
                    self._complete(digest, line["token"])
            if not self._inside:  # a database may have lost its last changes with the power
                known = set(self._index.sources())
                there = (file.parent for file in self.folder.resolve().glob(f"*/{_RECEIPT}"))
                add(self._index, [str(place) for place in there if str(place) not in known])

    def stage(self) -> Staged:
        """Return a new folder for an upload, on the disk of the data folder."""
        place = state(self.folder) / "incoming" / token_hex(8)
        with self._lock:
            place.mkdir(mode=0o700, parents=True)
            held = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_EX)
        return Staged(place, held)

    def take(self, staged: Staged, digest: str, token: str) -> tuple[Stored, bool]:
        """Verify and store the bundle in ``staged``, which is removed; tell whether it is new.

        Raises:
            Refused: it does not verify, a run of it is there with other content, the disk is full.
            EnvironmentFault: the index cannot be written.
        """
        try:
            with self._lock:
                known = self._known(digest)
            if known is not None:
                return known, False
            return self._store(staged.folder, digest, token, examined(staged.folder))
        except OSError as error:
            raise full(error) from error
        finally:
            staged.remove()

    def _store(
        self, staged: Path, digest: str, token: str, launches: Mapping[str, tuple[str, str]]
    ) -> tuple[Stored, bool]:
        runs = [Run(run_id=run_id, page=Links().run(run_id)) for run_id, _ in launches.values()]
        receipt = Stored(digest=digest, runs=runs)
        with self._lock:
            if (known := self._known(digest)) is not None:  # sent twice at once
                return known, False
            there = self._there(receipt)
            for run_id, content in launches.values():
                if there.get(run_id, content) != content:
                    rule = "nothing is overwritten"
                    raise Refused(409, "it is there with other content", where=run_id, rule=rule)
            new = [place for place, (run_id, _) in launches.items() if run_id not in there]
            if not new:
                return receipt, False
            for place in launches.keys() - new:  # another brought it: it would be listed twice
                shutil.rmtree(staged / place)
            (staged / _RECEIPT).write_text(receipt.model_dump_json())
            sync(staged / _RECEIPT)
            sync(staged)
            run_ids = [run.run_id for run in runs]
            self._changes.add("upload", "storing", token=token, digest=digest, runs=run_ids)
            if (self.folder / digest).exists():
                _fill(self.folder / digest, staged, [*new, BUNDLE, _RECEIPT])
            else:
                staged.chmod(0o755)
                staged.rename(self.folder / digest)
            self._complete(digest, token)
        return receipt, True

    def _known(self, digest: str) -> Stored | None:
        """Return the receipt of a bundle all of whose runs are there."""
        file = self.folder / digest / _RECEIPT
        if not file.exists():
            return None
        receipt = Stored.model_validate_json(read_bytes(file))
        return receipt if len(self._there(receipt)) == len(receipt.runs) else None

    def _complete(self, digest: str, token: str) -> None:
        """Take a stored bundle into the index and log that; or that the upload was cut off."""
        place = self.folder / digest
        if stored := place.exists():
            sync(self.folder)
            if self._inside:
                runs = [path for launches in find_runs(place) for path in launches]
                self._index.take([str(path.relative_to(self.folder)) for path in runs])
            else:
                add(self._index, [str(place)])
        result = "stored" if stored else "cut off"
        self._changes.add("upload", result, token=token, digest=digest)

    def _there(self, receipt: Stored) -> dict[str, str]:
        """Return the digests of the records that the index has of a bundle's runs, by their ids."""
        asked = sa.select(RUNS.c.run_id, RUNS.c.path)
        asked = asked.where(RUNS.c.run_id.in_([run.run_id for run in receipt.runs]))
        with self._index.database.reading() as connection:
            listed = connection.execute(asked).all()
        found = {}
        for run_id, path in listed:
            place = Path(self._index.database.place(path))
            with suppress(FileNotFoundError):  # removed, which the index has not seen yet
                found[run_id] = _digest(place / RECORD_FILE if place.is_dir() else place)
        return found

    def bundle(self, run_id: str) -> Path | None:
        """Return the bundle that brought the newest run of an id; None: it came another way.

        Raises:
            RecordError: there is none of this id.
        """
        database, top = self._index.database, self.folder.resolve()
        place = Path(database.place(reading.stored(database, run_id).path))
        for folder in place.resolve().parents:
            if folder.parent == top and (folder / BUNDLE).is_file():
                return folder / BUNDLE
        return None


def _fill(stored: Path, staged: Path, parts: Sequence[str]) -> None:
    """Put parts of an upload into its folder, out of which somebody removed some.

    They may have been left out of it, too: of a run that another bundle had brought.
    """
    for part in parts:
        target = stored / part
        shutil.rmtree(target, ignore_errors=True)  # what is left of it, where it is a folder
        target.parent.mkdir(parents=True, exist_ok=True)
        (staged / part).replace(target)
        sync(target.parent)


def _digest(file: Path) -> str:
    """Return the SHA-256 of a record; one inside of a file is like no other."""
    try:
        return sha256(read_bytes(file)).hexdigest()
    except NotADirectoryError:
        return ""
