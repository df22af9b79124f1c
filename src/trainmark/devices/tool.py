"""Run a vendor's command-line tool with a time limit, and parse the devices that it prints.

A value that is not printed, or that no device can have, is None. Whatever a tool prints, only
``MonitorFault`` is raised.
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
_MAX_VALUE = 1e15  # tools print larger numbers for "unknown"
_MAX_DEVICE_NUMBER = 1e6  # as in `DeviceSample.index`
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"[\d.]+\s*([kmgt]?)i?b?", re.IGNORECASE)
_NUMBERED = re.compile(r"[0-9]{1,6}\b")
# Used and total memory: ``116MiB / 32768MiB``, ``858/65536 MiB``, ``662MiB(16384MiB)``,
# ``3412 / 65536``; always MiB.
_MEMORY = re.compile(r"([0-9]+)\s*(?:MiB)?\s*[/(]\s*([0-9]*)(?![0-9]|\s*[A-LN-Z])")


def find_tool(name: str, folders: Sequence[str] = ()) -> str:
    """Return the path of a tool on the PATH, or else in one of ``folders``.

    Args:
        folders: where the vendor installs the tool.

    Raises:
        MonitorFault: the tool is in none of these places.
    """
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    if path is None:
        raise MonitorFault("absent", f"{name} is not on the PATH")
    return path


def run_tool(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S, any_code: bool = False) -> str:
    """Run a tool in the C locale, without a terminal; return what it prints.

    Args:
        argv: the tool's name or path, and its arguments.
        timeout_s: the tool is killed if it runs longer.
        any_code: accept what it printed even if its exit code is not 0: some tools return an error
            if a device does not have one of the requested values.

    Raises:
        MonitorFault: the tool is not installed, hangs or ends with an error.
    """
    import subprocess

    path = find_tool(argv[0])
    name = Path(argv[0]).name
    try:
        process = subprocess.Popen(
            [path, *argv[1:]],
            env=os.environ | {"LC_ALL": "C", "LANG": "C", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that the processes that it starts are killed with it
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
            # Wait for its end, but not forever: a process that waits in the driver may not end.
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=1.0)
    if process.returncode != 0 and not (any_code and out.strip()):
        last_line = (err or out).strip()[-200:].rpartition("\n")[2] or "no message"
        raise MonitorFault("failed", f"{name}: exit code {process.returncode}: {last_line}")
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

    def with_path(self, path: str) -> Command:
        """Return the command with the path of the tool in place of its name."""
        return self._replace(argv=(path, *self.argv[1:]))


class ToolMonitor:
    """Read devices with one command of a vendor's tool, started anew each time; see ``Monitor``.

    Args:
        commands: tried in order; the first whose output can be read is used from then on.
        expected_count: number of devices; a reading with another number is refused, because it is
            not clear which device is which. None: any number.
        constants_command: prints what does not change, such as names; run only at the first
            reading.
    """

    printed = ""  # by the command that was run last

    def __init__(
        self,
        *commands: Command,
        expected_count: int | None = None,
        constants_command: Command | None = None,
    ) -> None:
        self.name = Path(commands[0].argv[0]).name
        # They are tried in order; the first whose output can be read stays as the only one.
        self._commands = commands
        self._expected_count = expected_count  # of devices; None: any number
        # Prints what does not change, such as names. None: there is none, or it was run.
        self._constants_command = constants_command
        self._constants_by_index: dict[int, DeviceSample] = {}  # what it printed

    def read(self) -> list[DeviceSample]:
        """Run the tool and return one reading of each device.

        Raises:
            MonitorFault: no reading, or one of another number of devices than expected.
        """
        samples = self._run_first_readable_command()
        # At the first reading, also run the command that prints what does not change. If it fails,
        # the reading counts as failed and the next one runs it again: it may print the
        # identifiers by which devices are matched with ranks.
        if self._constants_command is not None:
            command = self._constants_command
            constants = command.parse(run_tool(command.argv))
            self._constants_by_index = {sample.index: sample for sample in constants}
            self._constants_command = None  # it is not run again
        for place, sample in enumerate(samples):
            if sample.index in self._constants_by_index:
                constant_fields = self._constants_by_index[sample.index].known_fields()
                # If both commands report a field, the present reading takes precedence.
                samples[place] = replace(sample, **(constant_fields | sample.known_fields()))
        if self._expected_count not in (None, len(samples)):
            raise MonitorFault(
                "failed",
                f"{self.name} reports {len(samples)} devices, "
                f"but this machine has {self._expected_count}",
            )
        return samples

    def _run_first_readable_command(self) -> list[DeviceSample]:
        """Return the devices that the first command with readable output prints.

        Later calls run only that command.

        Raises:
            MonitorFault: the tool is missing or hangs, or the output of no command can be read.
        """
        faults = []
        for command in self._commands:
            try:
                # Kept as an attribute: ``TorchVendor`` looks for the driver's version in it.
                self.printed = run_tool(command.argv, any_code=command.any_code)
                samples = command.parse(self.printed)
                if not samples:
                    raise MonitorFault("unreadable", f"{self.name}: no device in the output")
            except MonitorFault as fault:
                if fault.kind in ("absent", "hung"):  # all commands are of the same tool
                    raise
                faults.append(fault)
            else:
                self._commands = (command,)
                return samples
        raise faults[0]  # that of the preferred command, which is the first

    def close(self) -> None:
        """Do nothing: no process outlives ``read``."""


def parse_json(text: str) -> Any:
    """Return the JSON value that a tool printed, after any lines of warnings.

    Raises:
        MonitorFault: there is none.
    """
    # A JSON list or object can begin at each line that begins with a bracket. The first one that
    # can be read counts.
    for start in re.finditer(r"^\s*(?=[\[{])", text, re.MULTILINE):
        with suppress(ValueError):
            value, _ = json.JSONDecoder().raw_decode(text, start.end())
            return value
    raise MonitorFault("unreadable", f"no JSON in {text[:100]!r}")


def parse_number(text: object, *, least: float = 0.0, most: float = _MAX_VALUE) -> float | None:
    """Return a number of JSON, or the number that a text begins with; None for ``N/A``.

    A unit may follow: ``45.5 W``, ``45.5W``, ``97%``. None as well if it is out of bounds.

    Args:
        least: the smallest number that is accepted.
        most: the largest number that is accepted.
    """
    # JSON's true and false are no numbers, though ``bool`` is a kind of ``int``.
    if not isinstance(text, (str, int, float)) or isinstance(text, bool):
        return None
    match = _NUMBER.match(str(text).strip())
    if match is None:
        return None
    value = float(match[0])
    return value if math.isfinite(value) and least <= value <= most else None


# Parsers of one quantity. They return None outside the bounds that any device keeps: ``ixsmi``
# 3.0.1, for example, prints 65535W for a power that it does not know.
temperature_c = partial(parse_number, least=-60.0, most=250.0)
watts = partial(parse_number, most=10_000.0)
megahertz = partial(parse_number, most=20_000.0)
percent = partial(parse_number, most=100.0)


def parse_device_number(text: object) -> int | None:
    """Return the number of a device; None if the text is no number that a device can have."""
    value = parse_number(text, most=_MAX_DEVICE_NUMBER)
    return None if value is None else int(value)


def parse_count(text: object) -> int | None:
    """Return a whole number that is printed; None for ``N/A`` and for anything else."""
    value = parse_number(text)
    if value is None or value != int(value):
        return None
    return int(value)


def size_bytes(text: object, *, unit: str = "") -> int | None:
    """Return the bytes of a size: ``81559 MiB``, ``64 GB``; tools that print MB mean MiB.

    Args:
        unit: what a number without a unit counts: ``k``, ``m``, ``g`` or ``t`` for KiB to TiB;
            empty: bytes.
    """
    value = parse_number(text)
    match = _SIZE.match(str(text).strip())  # its group is the letter of the unit, or empty
    if value is None or match is None:
        return None
    num_bytes = value * _BYTES[(match[1] or unit).lower()]
    return round(num_bytes) if num_bytes <= _MAX_VALUE else None  # larger: tools mean "unknown"


def make_sample(
    index: int,
    name: str | None,
    *,
    temperature: str | None,
    power: str | None = None,
    memory: str,
    utilization: str | None,
    clock: str | None = None,
) -> DeviceSample:
    """Return a sample of a device from the texts that a tool printed about it.

    Args:
        index: the device's place in what the tool printed, from 0.
        name, temperature, power, utilization, clock: as printed, with or without their units;
            None: not printed.
        memory: used and total memory, for example ``116MiB / 32768MiB``. If a device has several
            memories, the last counts, which is the device's own.
    """
    pairs = _MEMORY.findall(memory)
    used, total = "", ""
    # The text of a memory has at most one slash. If there are fewer pairs than slashes, one memory
    # could not be read. The last pair may then be of another memory, so no pair counts.
    if pairs and len(pairs) >= memory.count("/"):
        used, total = pairs[-1]
    total_bytes = size_bytes(total, unit="m") or None  # 0: unknown
    used_bytes = size_bytes(used, unit="m")
    if used_bytes is not None and total_bytes is not None and used_bytes > total_bytes:
        used_bytes = None  # impossible
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
    if not devices:
        raise MonitorFault("unreadable", f"no device in {text[:100]!r}")
    return devices


def get_word(text: str, place: int) -> str:
    """Return one of the words of a table's cell; empty if the cell has no word at that place.

    Args:
        text: the text in the cell.
        place: which word to return, counted from 0.
    """
    words = text.split()
    return words[place] if place < len(words) else ""


def drop_first_word(text: str) -> str:
    """Return a cell without its first word."""
    return " ".join(text.split()[1:])


def read_two_line_rows(text: str, second: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the cells of the upper and of the lower line of each device in a table.

    The table has two lines for each device, in cells that are separated by ``|``.

    Args:
        second: pattern that is in a cell of the lower line of each device, and in no line of
            another kind. The upper line begins with a number.
    """
    lines = []
    for line in text.splitlines():
        cells = line.strip().removeprefix("|").removesuffix("|").split("|")
        lines.append([cell.strip() for cell in cells])
    for upper, lower in pairwise(lines):
        # In the tables of all tools, a line has three cells or more.
        is_same_table = len(upper) == len(lower) >= 3
        is_lower_line = any(re.search(second, cell) for cell in lower)
        if is_same_table and _NUMBERED.match(upper[0]) and is_lower_line:
            yield upper, lower


def read_lists(text: str, start: str) -> list[dict[tuple[str, str], str]]:
    """Return the values of each device in a list of lines ``name: value``, by heading and name.

    A line without a value is a heading. The lines of a device before its first heading have the
    heading "". If a name comes again below the same heading, the first value counts.

    Args:
        start: pattern of the line with which a device begins.
    """
    devices: list[dict[tuple[str, str], str]] = []
    heading = ""
    for line in text.splitlines():
        if not line.strip():
            continue
        name, _, value = (part.strip() for part in line.partition(":"))
        if re.fullmatch(start, line.strip()):
            devices.append({})
            heading = ""
        elif not value:
            heading = name
        elif devices:
            devices[-1].setdefault((heading, name), value)
    return devices
