"""Charts of what was read of devices and hosts over time, such as power.

``chart_specs`` has what they look like.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from trainmark.events.series import SUMMARY_LINES
from trainmark.pages import cells, chart_specs
from trainmark.pages.document import Chart, Section, build_folded_section
from trainmark.pages.texts import Phrase, phrase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmark.events.series import SeriesLine
    from trainmark.pages.chart_specs import Spec
    from trainmark.record.record import Record
    from trainmark.telemetry.summary import IntervalName, Use

_LONG_S = 600.0  # axes of longer times are in minutes
# Of each quantity: name of the chart, unit, how many of the record's units that is, scale.
_QUANTITIES: dict[str, tuple[str, str, int, Spec]] = {
    "memory_used_bytes": ("memory", "GiB", cells.GIB, {"zero": True}),
    "utilization_percent": ("busy", "%", 1, {"domain": [0, 100]}),
    "power_w": ("power", "W", 1, {"zero": True}),
    "temperature_c": ("temperature", "°C", 1, {"zero": False}),
}


def build_telemetry(record: Record) -> Section:
    """Return a section with charts of what was read of devices and hosts over time."""
    return build_folded_section("time", *chart_over_time(record), note=phrase("time.note"))


def chart_over_time(record: Record) -> Iterator[Chart]:
    """Yield a chart for each quantity that was read at least twice, of devices, then of hosts.

    A quantity is what a monitor reads, such as power. A line of ``record.series`` has the readings
    of one quantity of one device or host, or a summary of many of them, over time.
    """
    # The lines of one quantity are neighbours in a record, those of devices before those of hosts.
    for _, group in groupby(record.series, attrgetter("of_host", "quantity")):
        lines = list(group)
        if max(len(line.points) for line in lines) > 1:  # one reading is no curve
            yield _chart_quantity(record, lines)


def _chart_quantity(record: Record, lines: Sequence[SeriesLine]) -> Chart:
    """Return the chart of a quantity of devices or hosts over time; the measured steps are shaded.

    Args:
        lines: of the quantity, one for each device or host; or three, which summarize many of them
            by the lowest, the median and the highest reading. The points of a line are pairs: the
            seconds since the launch, and the reading.
    """
    first_line = lines[0]
    # text_name: the quantity's name in keys of texts and in the chart's name. factor: units of the
    # readings in one `unit` of the chart, bytes in a GiB for example.
    text_name, unit, factor, scale = _QUANTITIES[first_line.quantity]
    kind = "host" if first_line.of_host else "device"
    # ``of`` has the ranks of a device, the number of a host, or the name of one of the three lines.
    is_summary = first_line.of in SUMMARY_LINES
    last_s = max(time_s for line in lines for time_s, _ in line.points)
    if last_s > _LONG_S:
        seconds_per_unit = 60
        axis = phrase("time.minutes")
    else:
        seconds_per_unit = 1
        axis = phrase("time.axis")  # in seconds
    spec = chart_specs.draw_over_time(
        axis=axis,
        scale=scale,
        member=phrase(f"time.{kind}-of"),
        has_several_members=len(lines) > 1 and not is_summary,
        is_band=is_summary,
    )
    shades = []
    # The time of the measured steps, from start to end, in seconds since the launch.
    measured = record.telemetry.intervals_s.get("measured") if record.telemetry else None
    if measured:
        start_s, end_s = measured
        shades.append({"from": start_s / seconds_per_unit, "to": end_s / seconds_per_unit})
    rows = []
    for line in lines:
        for time_s, value in line.points:
            rounded = float(f"{value / factor:.4g}")
            rows.append({"s": round(time_s / seconds_per_unit, 3), "v": rounded, "of": line.of})
    return Chart(
        f"time-{kind}-{text_name}",
        phrase(f"time.{kind}-title", quantity=phrase(f"time.{text_name}"), unit=unit),
        _describe_readings(record, lines),
        spec,
        {"measured": shades, "lines": rows},
    )


def _describe_readings(record: Record, lines: Sequence[SeriesLine]) -> Phrase:
    """Return the lowest and the highest reading of a quantity, and where and when it was highest.

    Args:
        lines: of the quantity, one for each device or host; or three, which summarize many of them
            by the lowest, the median and the highest reading. The points of a line are pairs: the
            seconds since the launch, and the reading. ``of`` has the ranks of a device, the number
            of a host, or the name of one of the three lines.
    """
    first_line = lines[0]
    # text_name: the quantity's name in keys of texts. factor: units of the readings in one `unit`.
    text_name, unit, factor, _ = _QUANTITIES[first_line.quantity]
    readings = [(value, time_s, line.of) for line in lines for time_s, value in line.points]
    lowest, _, _ = min(readings)
    # By the value alone: if several readings are the highest, the first of them counts.
    highest, highest_s, highest_line = max(readings, key=lambda reading: reading[0])
    # The device or host that had the highest reading, and how many there are.
    member: int | str = highest_line
    num_members = len(lines)
    if first_line.of in SUMMARY_LINES:  # these lines summarize devices or hosts and name none
        highest_by_member = _collect_highest_readings(
            record, of_host=first_line.of_host, quantity=first_line.quantity
        )
        num_members = len(highest_by_member)
        # "?": an imported record may have the lines without the readings of each device or host.
        member = max(highest_by_member, key=highest_by_member.__getitem__, default="?")
    return phrase(
        f"time.{'host' if first_line.of_host else 'device'}",
        quantity=phrase(f"time.{text_name}"),
        unit=unit,
        at=f"{highest_s:.0f}",
        n=num_members,
        of=member,
        lowest=cells.format_rounded(lowest / factor),
        highest=cells.format_rounded(highest / factor),
    )


def _collect_highest_readings(record: Record, *, of_host: bool, quantity: str) -> dict[int, float]:
    """Return the highest reading of a quantity in the run, of each device or of each host.

    It is by the first of the device's ranks, or by the host's node number. A device without ranks,
    or without readings of the quantity, is left out.

    Args:
        of_host: of each host; else of each device.
        quantity: such as ``power_w``.
    """
    if record.telemetry is None:
        return {}
    # A use summarizes the readings of one device or host in one interval, such as the whole run:
    # ``quantities`` has the mean, the lowest and the highest reading by quantity.
    uses_by_member: dict[int, Mapping[IntervalName, Use]] = {}
    if of_host:
        for node, use_by_interval in enumerate(record.telemetry.hosts):
            uses_by_member[node] = use_by_interval
    else:
        for device in record.telemetry.devices:
            if device.ranks:
                uses_by_member[device.ranks[0]] = device.over
    highest: dict[int, float] = {}
    for member, uses in uses_by_member.items():
        use = uses.get("run")
        if use is not None and quantity in use.quantities:
            highest[member] = use.quantities[quantity].highest
    return highest
