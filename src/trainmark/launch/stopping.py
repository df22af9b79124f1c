"""Ctrl-C, SIGTERM and SIGHUP while there is a record to write.

Owns the handlers: the first signal is noted and whoever runs something looks at the note,
further ones change nothing. So no signal comes between a run and its record and pages.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

KEEPER_MODULE = "trainmark.launch.keeper"  # found among processes by this name
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class StopRequest:
    """The name of the first stop signal, ``SIGTERM`` for instance; None while there is none."""

    signal_name: str | None = None


@contextmanager
def stop_signals_noted() -> Iterator[StopRequest]:
    """Note stop signals instead of dying of them.

    The earlier handlers come back at the end, unless a signal was noted: then only printing
    is left, and a second signal must not change the exit code.
    """
    request = StopRequest()

    def note(number: int, _frame: object) -> None:
        request.signal_name = request.signal_name or signal.Signals(number).name

    # Whoever started us with a signal ignored, nohup for instance, meant it.
    noted = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in noted}
    try:
        yield request
    finally:
        if request.signal_name is None:
            for number, handler in before.items():
                signal.signal(number, handler)
