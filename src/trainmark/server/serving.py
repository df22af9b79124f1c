"""What the requests of a server share: its settings, its index, and the site that follows it."""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Literal
from weakref import finalize

from trainmark.errors import UsageError
from trainmark.library.selection.indexing import add, opened
from trainmark.pages.site.writing import write_site
from trainmark.server.tokens import Tokens, state

if TYPE_CHECKING:
    from trainmark.library.store.index import Index

LOG = logging.getLogger("trainmark.server")
INCOMING, RECEIPT = "incoming", "upload.json"  # uploads that are received, and one that is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one server.

    Args:
        store: folder of runs or URL of a database, as ``Database`` takes it.
        data: folder of tokens and uploads; None: the store's folder, if it is one.
        read: who may read: everybody, or whoever has a token with the scope ``read``.
        max_upload_bytes: size of the largest bundle.
        refresh_s: seconds between two looks at the store's folder.
    """

    store: str | None = None
    data: Path | None = None
    read: Literal["public", "token"] = "public"
    max_upload_bytes: int = 256 << 20
    refresh_s: float = 3.0


class Serving:
    """The shared state of one server.

    Raises:
        UsageError: not a store, or no folder for tokens to read.
        EnvironmentFault: the store cannot be reached.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.index: Index = opened(settings.store)[0]
        self.database, top = self.index.database, self.index.database.folder
        self.data = settings.data or top
        if settings.read == "token" and self.data is None:
            raise UsageError("tokens need a folder", where="--read token", remedy="name --data")
        if (
            top is not None
            and self.data is not None
            and top.resolve() in self.data.resolve().parents
        ):
            rule = "the data folder is the store's, or outside of it"
            raise UsageError("the index would follow it in part", where=str(self.data), rule=rule)
        self.tokens = None if self.data is None else Tokens(self.data)
        try:
            if self.data is None:
                raise PermissionError
            self.site = state(self.data) / "site"
            self.site.mkdir(exist_ok=True)
            shutil.rmtree(self.site.parent / INCOMING, ignore_errors=True)  # of a killed server
            (self.site.parent / INCOMING).mkdir()
            self.uploads: Path | None = self.data
        except OSError:  # nothing can be written there: it is read only
            self.site = Path(mkdtemp(prefix="trainmark-site-"))
            finalize(self, shutil.rmtree, self.site, ignore_errors=True)
            self.uploads = None
        self.fault: str | None = None  # why the last look at the store failed
        self._written: object = None
        self._lock, self._ended = threading.Lock(), threading.Event()

    def follow(self) -> None:
        """Let the index follow the store, and the site the index, until ``end`` is called."""
        while not self._ended.is_set():
            self.refresh()
            self._ended.wait(self.settings.refresh_s)

    def end(self) -> None:
        """Let ``follow`` return."""
        self._ended.set()

    def refresh(self) -> None:
        """Look at the store now; after a fault, such as a full disk, the site stays as it was."""
        with self._lock:
            try:
                self.follow_files()
                if (version := self.index.version()) != self._written:
                    write_site(self.database, self.site, served=True)
                    self._written = version
                self.fault = None
            except Exception as error:
                self.fault = str(error)
                LOG.exception("the site cannot follow the store")

    def follow_files(self) -> None:
        """Let the index follow the store's folder, and uploads that are outside of it."""
        self.index.refresh()
        if self.uploads is not None and self.uploads != self.database.folder:
            top, known = self.uploads.resolve(), set(self.index.sources())
            there = {str(file.parent) for file in top.glob(f"*/{RECEIPT}")}
            add(self.index, sorted(there - known))
            for gone in known - there:
                if Path(gone).parent == top:
                    self.index.keep(gone, [])
