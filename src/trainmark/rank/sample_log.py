"""The file that the sampler writes, and which faults its sources have now."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from trainmark.protocols import MonitorFault
from trainmark.protocols.monitor import FaultKind
from trainmark.rank.events import TELEMETRY_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.rank.events import EventWriter

_LONGEST_TEXT = 500


@dataclass
class SampleLog:
    """The file of samples, written by several threads; knows each source's current fault.

    A line that cannot be written, on a full disk for instance, is a fault of ``host``.
    """

    writer: EventWriter
    faults: Counter[str] = field(default_factory=Counter, init=False)  # failed readings, by source
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _now: dict[str, str] = field(default_factory=dict, init=False)  # kind of each source's fault
    _lost: str = field(default="", init=False)  # why a line was not written, until that is
    _ended: bool = field(default=False, init=False)

    def write(self, event: str, **fields: Any) -> None:
        """Write one event; nothing follows ``end``."""
        with self._lock:
            if self._ended:
                return
            self._ended = event == "end"
            try:
                if self._lost:
                    self.writer.emit("fault", source="host", kind="failed", said=self._lost)
                    self._lost = ""
                self.writer.emit(event, **fields)
            except OSError as error:
                self._lost = f"{TELEMETRY_FILE}: {error.strerror}"
                self.faults["host"] += 1

    def fault(self, source: str, fault: MonitorFault) -> None:
        """Count a reading that failed; write it when the fault begins or becomes another one."""
        found = _fault_fields(fault)
        with self._lock:
            self.faults[source] += 1
            known, self._now[source] = self._now.get(source), found["kind"]
        if known != found["kind"]:
            self.write("fault", source=source, **found)

    @contextmanager
    def reading(self, source: str) -> Iterator[None]:
        """Make a fault of whatever is raised: what is read is a foreign vendor's."""
        try:
            yield
        except MonitorFault as fault:
            self.fault(source, fault)
        except BaseException as error:  # noqa: BLE001 - see above
            self.fault(source, MonitorFault("failed", f"{type(error).__name__}: {error}"))
        else:
            self._now.pop(source, None)


def line_of(text: object, longest: int = _LONGEST_TEXT) -> str:
    """Return a foreign text as one that a line of the file can hold."""
    return str(text).encode("utf-8", "replace").decode()[:longest]


def _fault_fields(fault: MonitorFault) -> dict[str, str]:
    kind = fault.kind if fault.kind in get_args(FaultKind) else "failed"
    return {"kind": kind, "said": line_of(fault.said)}
