"""What all requests of a server share: its settings, its index, and how that follows the files."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.data.json_documents import read_bytes
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.library.store.database import Database
from trainmark.library.store.index import Index
from trainmark.library.store.query import listing
from trainmark.pages.site import reading
from trainmark.server.metrics import Metrics
from trainmark.server.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.library.store.query import Listing
    from trainmark.record.record import Record
    from trainmark.server.settings import Settings

LOG = logging.getLogger("trainmark.server")
_PATIENCE_S = 0.1  # that a request waits for a look at the folder; a longer one goes on without it


class Serving:
    """The shared state of one server; ``app.state.serving``.

    Args:
        clock: seconds that only grow.

    Raises:
        UsageError: not a store, or no folder for tokens to read.
        EnvironmentFault: it cannot be reached, or has tables of another version.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.database = Database(settings.store)
        self.index = Index(self.database)
        self.data: Path | None = settings.data or self.database.folder
        if settings.read == "token" and self.data is None:
            raise UsageError("tokens need a folder", where="--read token", remedy="name --data")
        # Who may read; None: everybody.
        self.readers = Tokens(self.data) if self.data and settings.read == "token" else None
        self.fault: str | None = None  # why the last look at the folder failed
        self.clock, self.metrics = clock, Metrics()
        self._lock = threading.Lock()
        self._look: threading.Thread | None = None
        self._looked: float | None = None

    def follow(self) -> None:
        """Let the index follow the store's folder, in one thread, once every few seconds.

        The request that starts a look waits a moment for it; the others take what is there.
        """
        with self._lock:
            now = self.clock()
            early = self._looked is not None and now - self._looked < self.settings.refresh_s
            if early or (self._look is not None and self._look.is_alive()):
                return
            self._looked = now
            # A daemon: what is written is whole transactions, nobody need wait for its end.
            self._look = threading.Thread(target=self.refresh, name="follow", daemon=True)
            self._look.start()
        self._look.join(_PATIENCE_S)

    def refresh(self) -> None:
        """Look at the store's folder now; a fault is logged and kept in ``fault``."""
        try:
            self.index.refresh()
            self._forget_removed()
            self.fault = None
        except Exception as error:  # of whatever kind: it must not go on as if it were fresh
            self.fault = str(error)
            LOG.error("%s", error, exc_info=not isinstance(error, EnvironmentFault))

    def _forget_removed(self) -> None:
        """Drop from the index uploads outside of the store's folder that were removed."""
        data, top = self.data and self.data.resolve(), self.database.folder
        if data is None or not data.is_dir() or (top is not None and data == top.resolve()):
            return
        for place in map(Path, self.index.sources()):
            if place.parent == data and not place.exists():
                self.index.keep(str(place), [])

    def found(self, run_id: str) -> Listing:
        """Return what the index holds of a run, the newest of this id.

        Raises:
            RecordError: there is none.
        """
        words = ["kind=record", f"run_id={run_id}"]
        found = listing(self.database, words, limit=1)
        if not found.rows:
            raise RecordError("no such run", where=run_id[:200], remedy="/api/runs lists them")
        return found

    def record(self, run_id: str) -> Record:
        """Return the record of a run, held against its evidence.

        Raises:
            RecordError: there is none, or it cannot be read.
        """
        path = reading.stored(self.database, run_id).path
        with reading.opened(self.database.place(path)) as (found, _):
            return found

    def record_bytes(self, run_id: str) -> bytes:
        """Return the record of a run as it is written.

        Raises:
            RecordError: there is none, or it cannot be read.
        """
        path = reading.stored(self.database, run_id).path
        with reading.opened(self.database.place(path)) as (_, file):
            return read_bytes(file)
