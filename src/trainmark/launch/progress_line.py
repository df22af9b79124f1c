"""The line on standard error that says how far a run is; a terminal or a log reads it."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from trainmark.errors import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

_LINE_EVERY_S = 10.0


def progress_line(label: str, poll: Callable[[], str]) -> Callable[[], None]:
    """Return what shows progress: one moving line on a terminal, else a line now and then."""
    terminal = sys.stderr.isatty()
    shown, shown_at = "", 0.0

    def show() -> None:
        nonlocal shown, shown_at
        text = escaped(f"{label}: {poll()}")
        now = time.monotonic()
        if text == shown or (not terminal and now - shown_at < _LINE_EVERY_S):
            return
        shown, shown_at = text, now
        # Whoever read our progress may have gone; the run has not.
        with suppress(OSError):
            if terminal:
                width = shutil.get_terminal_size().columns - 1
                sys.stderr.write(f"\r{text[:width]:<{width}}")
            else:
                sys.stderr.write(text + "\n")
            sys.stderr.flush()

    return show


def end_line(text: str) -> None:
    """Print what stays where the moving line was."""
    text = escaped(text)
    with suppress(OSError):
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{text[:width]:<{width}}\n")
        else:
            sys.stderr.write(text + "\n")
