"""Tables of what was read of devices and host while a run trained; nothing where nothing was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report import cells
from trainmark.report.document import Block, Grid, Paragraph, Section, Table
from trainmark.report.tables import numbers
from trainmark.report.texts import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.measure.telemetry import IntervalName, Telemetry, Use
    from trainmark.results.record import Record

_DEVICE = (
    "rank", "memory", "utilization", "power", "temperature", "clock", "throttled", "energy",
    "readings",
)  # fmt: skip
_HOST = ("cpu", "memory", "node_power", "package_energy", "readings")


def _pair(use: Use, name: str, *, unit: float = 1.0, lowest: bool = False) -> str:
    """Return mean and peak, or mean and lowest."""
    found = use.quantities.get(name)
    if found is None:
        return cells.NOTHING
    values = (found.mean / unit, (found.lowest if lowest else found.highest) / unit)
    return "/".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values)


def _throttled(use: Use) -> str:
    if use.throttled is None:
        return cells.NOTHING
    reasons = ", ".join(use.throttle_reasons)
    return f"{100 * use.throttled:.0f}%" + (f" ({reasons})" if reasons else "")


def _energy(use: Use) -> str:
    (value,), unit = cells.scaled([use.energy.joules], "J")
    return cells.NOTHING if use.energy.joules is None else f"{value} {unit}"


def _devices(found: Telemetry, over: IntervalName) -> Iterator[tuple[str, ...]]:
    for device in found.devices:
        use = device.over.get(over)
        if use is not None and use.readings:
            yield (
                ", ".join(str(rank) for rank in device.ranks),
                _pair(use, "memory_used_bytes", unit=cells.GIB),
                _pair(use, "utilization_percent"),
                _pair(use, "power_w"),
                _pair(use, "temperature_c"),
                _pair(use, "clock_mhz", lowest=True),
                _throttled(use),
                _energy(use),
                str(use.readings),
            )


def _host(found: Telemetry, over: IntervalName) -> Iterator[tuple[str, ...]]:
    use = found.host.get(over)
    if use is not None and use.readings:
        yield (
            _pair(use, "cpu_percent"),
            _pair(use, "memory_used_bytes", unit=cells.GIB),
            _pair(use, "node_power_w"),
            _energy(use),
            str(use.readings),
        )


def blocks(record: Record, lang: str) -> list[Block]:
    """Return the devices, a row each, and the host, over the training or else over the run."""
    found = record.telemetry
    if found is None:
        return []
    over: IntervalName = "train" if "train" in found.intervals_s else "run"
    tables = ((_DEVICE, tuple(_devices(found, over))), (_HOST, tuple(_host(found, over))))
    if not any(rows for _, rows in tables):
        return []
    start_s, end_s = found.intervals_s[over]
    every = text("fact.unknown", lang) if found.interval_s is None else f"{found.interval_s:g}"
    caption = text(f"telemetry.{over}", lang, seconds=f"{end_s - start_s:.1f}", interval=every)
    sources = [cells.clean(name) for name in (found.monitor, *found.host_sources) if name]
    return [
        Paragraph(caption + text("sep.semicolon", lang) + ", ".join(sources), "muted"),
        *(
            Grid(Table(tuple(text(f"use.{name}", lang) for name in heads), rows))
            for heads, rows in tables
            if rows
        ),
    ]


def sections(records: Sequence[Record], lang: str) -> list[Section]:
    """Return a section of each record that has readings."""
    return [
        Section(text("section.telemetry", lang) + number, 3, f"telemetry{place}", tuple(found))
        for place, (number, record) in enumerate(zip(numbers(records), records, strict=True), 1)
        if (found := blocks(record, lang))
    ]
