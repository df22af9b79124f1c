"""Run a vendor's command-line tool within bounds, and read the devices that it prints.

What is not printed, or cannot be true of any device, is None. Nothing that a tool prints may raise
anything but ``MonitorFault``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

TIMEOUT_S = 10.0
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_MAX_VALUE = 1e15  # above it is a tool's word for "unknown"
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"[\d.]+\s*([kmgt]?)i?b?", re.IGNORECASE)
_NUMBERED = re.compile(r"[0-9]{1,6}\b")
# ``116MiB / 32768MiB``, ``858/65536 MiB``, ``662MiB(16384MiB)``, ``3412 / 65536``: always MiB
_MEMORY = re.compile(r"([0-9]+)\s*(?:MiB)?\s*[/(]\s*([0-9]*)(?![0-9]|\s*[A-LN-Z])")


def find_tool(name: str, folders: Sequence[str] = ()) -> str:
    """Return the path of a tool on the PATH or in one of the vendor's folders.

    Raises:
        MonitorFault: it is in none of them.
    """
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    if path is None:
        raise MonitorFault("absent", f"{name} is not on the PATH")
    return path


def run_tool(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S, any_code: bool = False) -> str:
    """Return what a tool prints; in the C locale, without a terminal. It is killed if it hangs.

    Args:
        any_code: it may print and still end with an error, as for a figure that a device lacks.

    Raises:
        MonitorFault: it is not there, hangs or ends with an error.
    """
    import subprocess

    path, name = find_tool(argv[0]), Path(argv[0]).name
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
        last = (err or out).strip()[-200:].rpartition("\n")[2] or "no message"
        raise MonitorFault("failed", f"{name}: exit code {process.returncode}: {last}")
    return out


class Command(NamedTuple):
    """A command that prints all devices.

    Args:
        argv: the tool and its arguments.
        parse: returns the devices in what it prints; raises nothing but ``MonitorFault``.
        any_code: it may end with an error after it printed; see ``run_tool``.
    """

    argv: tuple[str, ...]
    parse: Callable[[str], list[DeviceSample]]
    any_code: bool = False


class ToolMonitor:
    """Read devices with one command of a vendor's tool, started anew each time; see ``Monitor``.

    Args:
        commands: tried in order; the first whose output can be read is used from then on.
        once: prints what does not change, such as names; run only at the first reading.
        count: number of devices; a reading with another number is refused, because it is not clear
            which device is which. None: any number.
    """

    printed = ""  # by the command that was run last

    def __init__(
        self, *commands: Command, count: int | None = None, once: Command | None = None
    ) -> None:
        self.name = Path(commands[0].argv[0]).name
        self._commands = commands
        self._count = count
        self._once = once
        self._lasting: dict[int, DeviceSample] = {}

    def read(self) -> list[DeviceSample]:
        """Run the command and return its devices; see ``Monitor.read``."""
        samples = self._samples()
        if self._once is not None:
            constant = self._once.parse(run_tool(self._once.argv))
            self._lasting, self._once = {sample.index: sample for sample in constant}, None
        for place, sample in enumerate(samples):
            lasting = self._lasting.get(sample.index, sample).known()
            samples[place] = replace(sample, **(lasting | sample.known()))
        if self._count not in (None, len(samples)):
            raise MonitorFault(
                "failed",
                f"{self.name} reports {len(samples)} devices, but this machine has {self._count}",
            )
        return samples

    def _samples(self) -> list[DeviceSample]:
        faults = []
        for place, (argv, parse, any_code) in enumerate(self._commands):
            try:
                self.printed = run_tool(argv, any_code=any_code)
                samples = parse(self.printed)
                if not samples:
                    raise MonitorFault("unreadable", f"{self.name}: no device in the output")
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


def parse_json(text: str) -> Any:
    """Return the JSON value that a tool printed, after any lines of warnings.

    Raises:
        MonitorFault: there is none.
    """
    for start in re.finditer(r"^\s*(?=[\[{])", text, re.MULTILINE):
        with suppress(ValueError):
            return json.JSONDecoder().raw_decode(text, start.end())[0]
    raise MonitorFault("unreadable", f"no JSON in {text[:100]!r}")


def number(text: object, *, least: float = 0.0, most: float = _MAX_VALUE) -> float | None:
    """Return a number of JSON or the one that a text begins with; None for ``N/A``.

    A unit may follow: ``45.5 W``, ``45.5W``, ``97%``. None as well if it is out of bounds.
    """
    if not isinstance(text, (str, int, float)) or isinstance(text, bool):
        return None
    match = _NUMBER.match(str(text).strip())
    if match is None:
        return None
    value = float(match[0])
    return value if math.isfinite(value) and least <= value <= most else None


# None out of the bounds of any device: ``ixsmi`` 3.0.1 prints 65535W of one.
temperature_c = partial(number, least=-60.0, most=250.0)
watts = partial(number, most=10_000.0)
megahertz = partial(number, most=20_000.0)
percent = partial(number, most=100.0)


def count(text: object) -> int | None:
    """Return a count that is printed; None for ``N/A`` and for a tool's word for "unknown"."""
    value = number(text)
    return None if value is None or value != int(value) else int(value)


def size_bytes(text: object, *, unit: str = "") -> int | None:
    """Return a size: ``81559 MiB``, ``64 GB``; tools that print MB mean MiB.

    Args:
        unit: where ``text`` has none: ``m`` for MiB.
    """
    value, match = number(text), _SIZE.match(str(text).strip())
    if value is None or match is None:
        return None
    value *= _BYTES[(match[1] or unit).lower()]
    return round(value) if value <= _MAX_VALUE else None


def make_device(
    index: int,
    name: str | None,
    *,
    temperature: str | None,
    power: str | None = None,
    memory: str,
    utilization: str | None,
    clock: str | None = None,
) -> DeviceSample:
    """Return a device from what a tool printed of it.

    Args:
        memory: what is used and what there is, of several memories the last.
    """
    fields = _MEMORY.findall(memory)
    used, total = fields[-1] if fields and len(fields) >= memory.count("/") else ("", "")
    total_bytes, used_bytes = size_bytes(total, unit="m") or None, size_bytes(used, unit="m")
    if (used_bytes or 0) > (total_bytes or used_bytes or 0):
        used_bytes = None
    return DeviceSample(
        index=index,
        name=name or None,
        temperature_c=temperature_c(temperature),
        power_w=watts(power),
        memory_used_bytes=used_bytes,
        memory_total_bytes=total_bytes,
        utilization_percent=percent(utilization),
        clock_mhz=megahertz(clock),
    )


def require_devices(text: str, samples: Iterable[DeviceSample]) -> list[DeviceSample]:
    """Return the devices that were read from ``text``.

    Raises:
        MonitorFault: there are none.
    """
    devices = list(samples)
    if devices:
        return devices
    raise MonitorFault("unreadable", f"no device in {text[:100]!r}")


def get_word(text: str, place: int) -> str:
    """Return one of the words of a cell, counted from 0; empty if there are fewer."""
    words = text.split()
    return words[place] if place < len(words) else ""


def drop_first_word(text: str) -> str:
    """Return a cell without its first word."""
    return " ".join(text.split()[1:])


def read_two_line_rows(text: str, second: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the cells of both lines of each device in a table with two lines a device.

    Args:
        second: pattern that only the second line of a device has. The first begins with a number.
    """
    lines = [
        [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        for line in text.splitlines()
    ]
    pattern = re.compile(second)
    for upper, lower in pairwise(lines):
        same_table = len(upper) == len(lower) >= 3
        if same_table and _NUMBERED.match(upper[0]) and any(map(pattern.search, lower)):
            yield upper, lower


def read_lists(text: str, start: str) -> list[dict[tuple[str, str], str]]:
    """Return the values of each device in a list, by heading and name.

    Args:
        start: pattern of the line with which a device begins. A line without a value is a heading;
            the lines before it have the heading "".
    """
    tables: list[dict[tuple[str, str], str]] = []
    heading = ""
    for line in filter(str.strip, text.splitlines()):
        name, _, value = (part.strip() for part in line.partition(":"))
        if re.fullmatch(start, line.strip()):
            tables.append({})
            heading = ""
        elif not value:
            heading = name
        elif tables:
            tables[-1].setdefault((heading, name), value)
    return tables
