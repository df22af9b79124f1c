"""Run a vendor's command-line tool within bounds, and read the numbers that it prints.

Nothing that a tool prints may raise anything but ``MonitorFault``.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIMEOUT_S = 10.0
_MOST_BYTES = 4 << 20  # of output; the longest known, of 16 devices, is below 100 KB
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_MOST = 1e15  # above it is a tool's word for "unknown"
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def run(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Return what a tool prints, however it is killed; in the C locale, without a terminal.

    Raises:
        MonitorFault: it is not there, hangs, ends with an error or prints too much.
    """
    path = shutil.which(argv[0])
    if path is None:
        raise MonitorFault("absent", f"{argv[0]} is not on the PATH")
    try:
        process = subprocess.Popen(
            [path, *argv[1:]],
            env=os.environ | {"LC_ALL": "C", "LANG": "C", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that what it starts ends with it
        )
    except OSError as error:
        raise MonitorFault("failed", f"{argv[0]}: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise MonitorFault("hung", f"{argv[0]}: no answer in {timeout_s:g} s") from None
    finally:
        _end(process)
    if process.returncode != 0:
        said = (err or out).decode(errors="replace").strip().splitlines()
        last = said[-1][:200] if said else "no message"
        raise MonitorFault("failed", f"{argv[0]}: exit code {process.returncode}: {last}")
    if len(out) > _MOST_BYTES:
        raise MonitorFault("unreadable", f"{argv[0]} printed {len(out)} bytes")
    return out.decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a tool with all that it started, without waiting for one that cannot be killed."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


class ToolMonitor:
    """Read devices with one command of a vendor's tool; see ``Monitor``.

    Args:
        argv: the command; every call starts it anew.
        parse: returns the devices in what it printed, and raises nothing but ``MonitorFault``.
    """

    def __init__(
        self,
        argv: Sequence[str],
        parse: Callable[[str], list[DeviceSample]],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.name = argv[0]
        self._argv = tuple(argv)
        self._parse = parse
        self._timeout_s = timeout_s

    def read(self) -> list[DeviceSample]:
        """Run the command and return its devices; see ``Monitor.read``."""
        samples = self._parse(run(self._argv, timeout_s=self._timeout_s))
        if not samples:
            raise MonitorFault("unreadable", f"{self.name}: no device in what it printed")
        return samples

    def close(self) -> None:
        """Do nothing: no process outlives ``read``."""


def number(text: str | None, *, least: float = 0.0, most: float = _MOST) -> float | None:
    """Return the number that ``text`` begins with; None for ``N/A`` or one out of bounds.

    A unit may follow: ``45.5 W``, ``45.5W``, ``97%``.
    """
    found = _NUMBER.match(text.strip()) if text else None
    if found is None:
        return None
    value = float(found[0])
    return value if math.isfinite(value) and least <= value <= most else None


def temperature_c(text: str | None) -> float | None:
    """Return a temperature; None if it is below the coldest or above the hottest of any chip."""
    return number(text, least=-60.0, most=250.0)


def percent(text: str | None) -> float | None:
    """Return a share in percent; None if it is not from 0 to 100."""
    return number(text, most=100.0)


def size_bytes(text: str | None, *, unit: str = "") -> int | None:
    """Return a size: ``81559 MiB``, ``64 GB``; tools that print MB mean MiB.

    Args:
        unit: where ``text`` has none: ``m`` for MiB.
    """
    found = _SIZE.match(text.strip()) if text else None
    if found is None:
        return None
    factor = _BYTES[(found[2] or unit).lower()]
    value = float(found[1]) * factor
    return round(value) if value <= _MOST else None
