"""Devices in the tables and lists that vendors' tools print for people to read.

What is not printed, or cannot be true of any device, is None.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from trainmark.devices.tool import megahertz, percent, size_bytes, temperature_c, watts
from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAME_LENGTH = 80  # a longer name is none
_NUMBERED = re.compile(r"[0-9]{1,6}\b")
# ``116MiB / 32768MiB``, ``858/65536 MiB``, ``662MiB(16384MiB)``, ``3412 / 65536``: always MiB
_MEMORY = re.compile(r"([0-9]+)\s*(?:MiB)?\s*[/(]\s*([0-9]*)(?![0-9]|\s*[A-LN-Z])")
_ADDRESS = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


def device(
    index: int,
    name: str | None,
    *,
    uuid: str | None = None,
    temperature: str | None,
    power: str | None = None,
    memory: str,
    utilization: str | None,
    clock: str | None = None,
    memory_clock: str | None = None,
) -> DeviceSample:
    """Return a device from what a tool printed of it.

    Args:
        memory: what is used and what there is, of several memories the last.
    """
    fields = _MEMORY.findall(memory)
    used, total = fields[-1] if fields and len(fields) >= memory.count("/") else ("", "")
    total_bytes = size_bytes(total, unit="m") or None
    used_bytes = size_bytes(used, unit="m")
    if used_bytes is not None and total_bytes is not None and used_bytes > total_bytes:
        used_bytes = None
    return DeviceSample(
        index=index,
        name=_name(name),
        uuid=_name(uuid),
        temperature_c=temperature_c(temperature),
        power_w=watts(power),
        memory_used_bytes=used_bytes,
        memory_total_bytes=total_bytes,
        utilization_percent=percent(utilization),
        clock_mhz=megahertz(clock),
        memory_clock_mhz=megahertz(memory_clock),
    )


def _name(text: str | None) -> str | None:
    return text if text and len(text) <= _NAME_LENGTH and text.isprintable() else None


def known(text: str, found: Iterable[DeviceSample]) -> list[DeviceSample]:
    """Return the devices that were found in ``text``.

    Raises:
        MonitorFault: there are none.
    """
    if devices := list(found):
        return devices
    lines = text.strip().splitlines()
    raise MonitorFault("unreadable", f"no device in {lines[0][:100]!r}" if lines else "nothing")


def word(text: str, place: int) -> str:
    """Return one of the words of a cell, counted from 0; empty if there are fewer."""
    return (text.split() + [""] * (place + 1))[place]


def after(text: str) -> str:
    """Return a cell without its first word."""
    return " ".join(text.split()[1:])


def rows(text: str, second: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the cells of each two lines of a table that tell one device.

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


def lists(text: str, start: str) -> Iterator[dict[tuple[str, str], str]]:
    """Yield what a list tells of each device, by heading and name; of several the first.

    Args:
        start: pattern of the line with which a device begins. Lines before the first belong to
            none. A line without a value is a heading; the lines before it have the heading "".
    """
    pattern = re.compile(start)
    found: dict[tuple[str, str], str] | None = None
    heading = ""
    for line in filter(str.strip, text.splitlines()):
        if pattern.fullmatch(line.strip()):
            if found is not None:
                yield found
            found, heading = {}, ""
            continue
        name, _, value = (part.strip() for part in line.partition(":"))
        if not value:
            heading = name
        elif found is not None:
            found.setdefault((heading, name), value)
    if found is not None:
        yield found


def used_of_total(fields: dict[tuple[str, str], str], heading: str) -> str:
    """Return the memory of a list as a table has it."""
    return f"{fields.get((heading, 'Used'))}/{fields.get((heading, 'Total'))}"


def pci_addresses(text: str) -> list[str]:
    """Return the addresses on the PCI bus that a tool printed, as the kernel writes them."""
    return _ADDRESS.findall(text.lower())
