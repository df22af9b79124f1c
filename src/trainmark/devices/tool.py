"""Run a vendor's command-line tool within bounds, and read the numbers that it prints.

Nothing that a tool prints may raise anything but ``MonitorFault``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIMEOUT_S = 10.0
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_MOST = 1e15  # above it is a tool's word for "unknown"
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def find(*names: str, folders: Sequence[str] = ()) -> str:
    """Return the path of the first of some tools on the PATH or in one of the vendor's folders.

    Raises:
        MonitorFault: none is in any of them.
    """
    for name in names:
        path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
        if path is not None:
            return path
    raise MonitorFault("absent", f"{names[0]} is not on the PATH")


def run(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S, any_code: bool = False) -> str:
    """Return what a tool prints; in the C locale, without a terminal. It is killed if it hangs.

    Args:
        any_code: it may print and still end with an error, as for a figure that a device lacks.

    Raises:
        MonitorFault: it is not there, hangs or ends with an error.
    """
    path, name = find(argv[0]), Path(argv[0]).name
    try:
        process = subprocess.Popen(
            [path, *argv[1:]],
            env=os.environ | {"LC_ALL": "C", "LANG": "C", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that what it starts ends with it
        )
    except OSError as error:
        raise MonitorFault("failed", f"{name}: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise MonitorFault("hung", f"{name}: no answer in {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # one that cannot be killed
                process.communicate(timeout=1.0)
    if process.returncode != 0 and not (any_code and out.strip()):
        lines = (err or out).strip().splitlines()
        last = lines[-1][:200] if lines else "no message"
        raise MonitorFault("failed", f"{name}: exit code {process.returncode}: {last}")
    return out


class Command(NamedTuple):
    """A command that tells all devices, and what reads what it prints.

    Args:
        parse: raises nothing but ``MonitorFault``.
        any_code: see ``run``.
    """

    argv: tuple[str, ...]
    parse: Callable[[str], list[DeviceSample]]
    any_code: bool = False


class ToolMonitor:
    """Read devices with one command of a vendor's tool, started anew each time; see ``Monitor``.

    Args:
        commands: the first whose output can be read is the one that this version takes.
        count: of devices; in a reading of more or fewer nobody knows which device is which. None:
            any.
    """

    printed = ""  # by the command that was run last

    def __init__(self, *commands: Command, count: int | None = None) -> None:
        self.name = Path(commands[0].argv[0]).name
        self._commands = commands
        self._count = count

    def read(self) -> list[DeviceSample]:
        """Run the command and return its devices; see ``Monitor.read``."""
        samples = self._samples()
        if self._count not in (None, len(samples)):
            raise MonitorFault(
                "failed", f"{self.name} tells {len(samples)} devices, and {self._count} are here"
            )
        return samples

    def _samples(self) -> list[DeviceSample]:
        faults = []
        for place, (argv, parse, any_code) in enumerate(self._commands):
            try:
                self.printed = run(argv, any_code=any_code)
                samples = parse(self.printed)
                if not samples:
                    raise MonitorFault("unreadable", f"{self.name}: no device in what it printed")
            except MonitorFault as fault:
                if fault.kind in ("absent", "hung"):
                    raise
                faults.append(fault)
            else:
                self._commands = self._commands[place : place + 1]
                return samples
        raise faults[0]

    def close(self) -> None:
        """Do nothing: no process outlives ``read``."""


def json_of(text: str) -> Any:
    """Return the JSON value that a tool printed, after any lines of warnings.

    Raises:
        MonitorFault: there is none.
    """
    for start in islice(re.finditer(r"^\s*(?=[\[{])", text, re.MULTILINE), 20):
        with suppress(ValueError, RecursionError):
            return json.JSONDecoder().raw_decode(text, start.end())[0]
    lines = text.strip().splitlines()
    shown = lines[0][:100] if lines else "nothing"
    raise MonitorFault("unreadable", f"no JSON in what was printed: {shown}")


def number(text: object, *, least: float = 0.0, most: float = _MOST) -> float | None:
    """Return a number of JSON or the one that a text begins with; None for ``N/A``.

    A unit may follow: ``45.5 W``, ``45.5W``, ``97%``. None as well if it is out of bounds.
    """
    if not isinstance(text, (str, int, float)) or isinstance(text, bool):
        return None
    found = _NUMBER.match(str(text).strip())
    if found is None:
        return None
    value = float(found[0])
    return value if math.isfinite(value) and least <= value <= most else None


def temperature_c(text: object) -> float | None:
    """Return a temperature; None if it is below the coldest or above the hottest of any chip."""
    return number(text, least=-60.0, most=250.0)


def watts(text: object) -> float | None:
    """Return a power; None above that of any device: ``ixsmi`` 3.0.1 prints 65535W of one."""
    return number(text, most=10_000.0)


def megahertz(text: object) -> float | None:
    """Return a clock; None above that of any device."""
    return number(text, most=20_000.0)


def percent(text: object) -> float | None:
    """Return a share in percent; None if it is not from 0 to 100."""
    return number(text, most=100.0)


def size_bytes(text: object, *, unit: str = "") -> int | None:
    """Return a size: ``81559 MiB``, ``64 GB``; tools that print MB mean MiB.

    Args:
        unit: where ``text`` has none: ``m`` for MiB.
    """
    if not isinstance(text, (str, int, float)) or isinstance(text, bool):
        return None
    found = _SIZE.match(str(text).strip())
    if found is None:
        return None
    factor = _BYTES[(found[2] or unit).lower()]
    value = float(found[1]) * factor
    return round(value) if value <= _MOST else None
