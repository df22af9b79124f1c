"""Memory, utilisation, power and temperature of devices and hosts over the run, a chart each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Chart
from trainmark.pages.texts import Phrase, t
from trainmark.record.series import TOGETHER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.pages.charts.vega import Spec
    from trainmark.record.record import Record
    from trainmark.record.series import Line

# In the order of the page: name of the chart, unit, how much of the record's unit that is, scale.
_QUANTITIES: dict[str, tuple[str, str, int, Spec]] = {
    "memory_used_bytes": ("memory", "GiB", cells.GIB, {"zero": True}),
    "utilization_percent": ("busy", "%", 1, {"domain": [0, 100]}),
    "power_w": ("power", "W", 1, {"zero": True}),
    "temperature_c": ("temperature", "°C", 1, {"zero": False}),
}
_COLOURS = [f"var(--{name})" for name in ("accent", "eval", "work", "wait")] * 2
_LONG_S = 600.0  # beyond, axes are in minutes
_DASHES = [*[[1, 0]] * 4, *[[5, 3]] * 4]


def charts(record: Record) -> Iterator[Chart]:
    """Yield a chart for each quantity that devices, then hosts, have at least twice."""
    for of_host in (False, True):
        for quantity in _QUANTITIES:
            about = quantity, of_host
            lines = [x for x in record.series.lines if (x.quantity, x.of_host) == about]
            if max((len(one.points) for one in lines), default=0) > 1:
                yield _chart(record, quantity, lines)


def _chart(record: Record, quantity: str, lines: Sequence[Line]) -> Chart:
    """Return the chart of a quantity, the steps that figures are over shaded."""
    short, unit, factor, scale = _QUANTITIES[quantity]
    kind, together = "host" if lines[0].of_host else "device", lines[0].of in TOGETHER
    measured = record.telemetry.intervals_s.get("measured") if record.telemetry else None
    told = [(value, s, one.of) for one in lines for s, value in one.points]
    highest, at_s, of = max(told, key=lambda point: point[0])
    lowest = min(point[0] for point in told)
    said: list[Phrase] = [t(
        f"time.{kind}", n=len(lines), quantity=t(f"time.{short}"), of=of, unit=unit,
        lowest=_number(lowest / factor), highest=_number(highest / factor), at=f"{at_s:.0f}",
    )]  # fmt: skip
    said += [(" ", t("time.together"))] if together else []
    seconds, axis = (60, "minutes") if max(point[1] for point in told) > _LONG_S else (1, "axis")
    rows = [
        {"s": round(s / seconds, 3), "v": _rounded(value / factor), "of": one.of}
        for one in lines for s, value in one.points
    ]  # fmt: skip
    names = [one.of for one in lines]
    several = not together and len(names) > 1
    drawn = vega.spec(
        "over_time", unit=unit, scale=scale, band=together, alone=not (together or several),
        names=names if several else [], colours=_COLOURS[: len(names)],
        dashes=_DASHES[: len(names)], member=t(f"time.{kind}-of"),
        axis=t(f"time.{axis}"),
    )  # fmt: skip
    return Chart(
        f"time-{kind}-{short}", t(f"time.{kind}-title", quantity=t(f"time.{short}")), (*said,),
        drawn,
        {"measured": [{"from": measured[0] / seconds, "to": measured[1] / seconds}] if measured
         else [], "lines": rows},
    )  # fmt: skip


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
