"""The file that the sampler writes, and which faults its sources have now."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmark.measure.events import TELEMETRY_FILE
from trainmark.protocols import MonitorFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.measure.events import EventWriter

_LONGEST_SAID = 500


@dataclass
class SampleLog:
    """The file of samples, written by several threads; knows each source's current fault.

    A line that cannot be written, on a full disk for instance, is a fault of ``host``.
    """

    writer: EventWriter
    faults: Counter[str] = field(default_factory=Counter, init=False)  # failed readings, by source
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _now: dict[str, str] = field(default_factory=dict, init=False)  # kind of each source's fault
    _unwritten: MonitorFault | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)

    def say(self, event: str, **fields: Any) -> None:
        """Write one event; nothing follows ``end``."""
        with self._lock:
            if self._ended:
                return
            self._ended = event == "end"
            try:
                if self._unwritten is not None:
                    self.writer.emit("fault", source="host", **_told(self._unwritten))
                    self._unwritten = None
                self.writer.emit(event, **fields)
            except OSError as error:
                said = f"{TELEMETRY_FILE}: {error.strerror}"
                self._unwritten = self._unwritten or MonitorFault("failed", said)
                self.faults["host"] += 1

    def fault(self, source: str, fault: MonitorFault) -> None:
        """Count a reading that failed; write it when the fault begins or becomes another one."""
        with self._lock:
            self.faults[source] += 1
            known, self._now[source] = self._now.get(source), fault.kind
        if known != fault.kind:
            self.say("fault", source=source, **_told(fault))

    @contextmanager
    def reading(self, source: str) -> Iterator[None]:
        """Make a fault of whatever is raised: what is read is a foreign vendor's."""
        try:
            yield
        except MonitorFault as fault:
            self.fault(source, fault)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - see above
            self.fault(source, MonitorFault("failed", f"{type(error).__name__}: {error}"))
        else:
            self._now.pop(source, None)


def _told(fault: MonitorFault) -> dict[str, str]:
    return {"kind": fault.kind, "said": fault.said[:_LONGEST_SAID]}
