"""Ctrl-C, SIGTERM and SIGHUP while there is a record to write.

Owns the handlers: the first signal is noted, and loops check that note; further signals are
ignored. So no signal prevents a run from writing its record and pages.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class StopRequest:
    """The name of the first stop signal, for example ``SIGTERM``; None before one arrives."""

    signal_name: str | None = None


@contextmanager
def stop_signals_noted(*, deliver: bool = False) -> Iterator[StopRequest]:
    """Note stop signals instead of ending the process; outside the main thread there are none.

    The previous handlers are restored at the end, unless a signal was noted: then only printing
    remains, and a second signal must not change the exit code.

    Args:
        deliver: restore the handlers in any case, and give them the signal that was noted.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, _frame: object) -> None:
        request.signal_name = request.signal_name or signal.Signals(number).name

    # A signal that was ignored at start, by nohup for instance, stays ignored.
    noted = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in noted}
    try:
        yield request
    finally:
        if deliver or request.signal_name is None:
            for number, handler in before.items():
                signal.signal(number, handler)
    if deliver and request.signal_name is not None:
        signal.raise_signal(signal.Signals[request.signal_name])
