"""The table of what was read of devices and host while a run trained; none where nothing was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.document import Block, Grid, Paragraph, Section, Table
from trainmark.pages.tables import numbers, shortened_rows
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record
    from trainmark.record.telemetry.summary import IntervalName, Use

_COLUMNS = (
    "rank", "memory", "busy", "power", "temperature", "clock", "throttled", "energy", "readings",
)  # fmt: skip


def _pair(use: Use, *names: str, unit: float = 1.0, lowest: bool = False) -> str:
    """Return mean and peak, or mean and lowest, of the quantity that the device or host has."""
    for found in (use.quantities[name] for name in names if name in use.quantities):
        values = (found.mean / unit, (found.lowest if lowest else found.highest) / unit)
        return "/".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values)
    return cells.NOTHING


def _row(name: str, use: Use) -> tuple[str, ...]:
    throttled = cells.NOTHING
    if use.throttled is not None:
        shares = [f"{share:.0%} {name}" for name, share in use.throttled.items()]
        throttled = ", ".join(shares) or "0%"
    (energy,), unit = cells.scaled([use.energy.joules], "J")
    return (
        name,
        _pair(use, "memory_used_bytes", unit=cells.GIB),
        _pair(use, "utilization_percent", "cpu_percent"),
        _pair(use, "power_w", "node_power_w"),
        _pair(use, "temperature_c"),
        _pair(use, "clock_mhz", lowest=True),
        throttled,
        energy if use.energy.joules is None else f"{energy} {unit}",
        str(use.readings),
    )


def blocks(record: Record, lang: str) -> list[Block]:
    """Return the devices and the host, a row each, over the training or else over the run."""
    found = record.telemetry
    if found is None:
        return []
    over: IntervalName = "train" if "train" in found.intervals_s else "run"
    uses = [(", ".join(map(str, device.ranks)), device.over.get(over)) for device in found.devices]
    uses.append((text("use.host", lang), found.host.get(over)))
    rows = tuple(_row(name, use) for name, use in uses if use is not None and use.readings)
    if not rows:
        return []
    start_s, end_s = found.intervals_s[over]
    every = text("fact.unknown", lang) if found.interval_s is None else f"{found.interval_s:g}"
    caption = text(f"telemetry.{over}", lang, seconds=f"{end_s - start_s:.1f}", interval=every)
    sources = [cells.clean(name) for name in (found.monitor, *found.host_sources) if name]
    heads = tuple(text(f"use.{name}", lang) for name in _COLUMNS)
    return [
        Paragraph(caption + text("sep.semicolon", lang) + ", ".join(sources), "muted"),
        Grid(Table(heads, shortened_rows(rows, lang))),
    ]


def sections(records: Sequence[Record], lang: str) -> list[Section]:
    """Return a section of each record that has readings."""
    return [
        Section(text("section.telemetry", lang) + number, 3, f"telemetry{place}", tuple(found))
        for place, (number, record) in enumerate(zip(numbers(records), records, strict=True), 1)
        if (found := blocks(record, lang))
    ]
