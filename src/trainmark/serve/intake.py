"""Take bundles into the data folder: staged in it, examined, stored whole or not at all.

``DATA/DIGEST/`` is named by the bundle's SHA-256 and holds the bundle as it was sent, a receipt,
and its runs unpacked, which the index follows as any. Nothing in it changes after it is there.
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
from trainmark.errors import EnvironmentFault
from trainmark.results.record import RECORD_FILE
from trainmark.selection.indexing import add
from trainmark.selection.runs import find_runs
from trainmark.serve.changes import STATE, Changes, state, sync
from trainmark.serve.client import Run, Stored
from trainmark.serve.examining import BUNDLE, examined, full
from trainmark.serve.refused import Refused
from trainmark.site import reading
from trainmark.site.links import Links
from trainmark.store.tables import RUNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.store.index import Index

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
                known = self._known(digest, token)
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
            if (known := self._known(digest, token)) is not None:  # sent twice at once
                return known, False
            there = self._there(receipt)
            for run_id, content in launches.values():
                if there.get(run_id, content) != content:
                    rule = "nothing is overwritten"
                    raise Refused(409, "it is there with other content", where=run_id, rule=rule)
            old = [place for place, (run_id, _) in launches.items() if run_id in there]
            if len(old) == len(launches):
                return receipt, False
            for place in old:  # another bundle brought it: it would be listed twice
                shutil.rmtree(staged / place)
            (staged / _RECEIPT).write_text(receipt.model_dump_json())
            sync(staged / _RECEIPT)
            sync(staged)
            run_ids = [run.run_id for run in runs]
            self._changes.add("upload", "storing", token=token, digest=digest, runs=run_ids)
            staged.chmod(0o755)
            staged.rename(self.folder / digest)
            self._complete(digest, token)
        return receipt, True

    def _known(self, digest: str, token: str) -> Stored | None:
        """Return the receipt of a bundle that is stored, once the index has it."""
        file = self.folder / digest / _RECEIPT
        if not file.exists():
            return None
        receipt = Stored.model_validate_json(read_bytes(file))
        if len(self._there(receipt)) < len(receipt.runs):
            self._complete(digest, token)
            if len(self._there(receipt)) < len(receipt.runs):
                remedy = "restore it, or remove it and send it again"
                raise EnvironmentFault("a stored run is gone", where=str(file), remedy=remedy)
        return receipt

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
        found = {}
        for run_id, place in self._places([run.run_id for run in receipt.runs]):
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

    def _places(self, run_ids: Sequence[str]) -> list[tuple[str, Path]]:
        """Return where the index has runs of some ids, each with its id."""
        asked = sa.select(RUNS.c.run_id, RUNS.c.path).where(RUNS.c.run_id.in_(run_ids))
        with self._index.database.reading() as connection:
            listed = connection.execute(asked).all()
        return [(run_id, Path(self._index.database.place(path))) for run_id, path in listed]


def _digest(file: Path) -> str:
    """Return the SHA-256 of a record; one inside of a file is like no other."""
    try:
        return sha256(read_bytes(file)).hexdigest()
    except NotADirectoryError:
        return ""
