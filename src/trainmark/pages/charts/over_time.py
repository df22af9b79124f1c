"""Memory, utilisation, power and temperature of devices and hosts over the run, a chart each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart, Paragraph, Section, Table
from trainmark.pages.tables import shortened_rows
from trainmark.pages.texts import text
from trainmark.record.thinning import TOGETHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from trainmark.record.record import Record
    from trainmark.record.series import Extremes, Line

HEIGHT = 120
_MOST_MARKS = 400  # of lowered clocks
# In the order of the page: name of the chart, unit, and how much of the file's unit that is.
_QUANTITIES = {
    "memory_used_bytes": ("memory", "GiB", cells.GIB),
    "utilization_percent": ("busy", "%", 1),
    "power_w": ("power", "W", 1),
    "temperature_c": ("temperature", "°C", 1),
}
# Lines of single devices: colour and dash.
_STYLES = tuple(
    (f"var(--{colour})", dash)
    for dash in ([1, 0], [5, 3])
    for colour in ("accent", "eval", "work", "wait")
)


def section(record: Record, lang: str) -> Section | None:
    """Return the charts; None where nothing was sampled."""
    drawn = charts(record, lang)
    note = Paragraph(text("time.note", lang), "muted")
    return Section(text("time.heading", lang), 2, "time", (*drawn, note)) if drawn else None


def charts(record: Record, lang: str) -> list[Chart]:
    """Return a chart for each quantity that devices, then hosts, told at least twice."""
    found = []
    for of_host, kind in ((False, "device"), (True, "host")):
        for quantity, scale in _QUANTITIES.items():
            about = quantity, of_host
            lines = [one for one in record.series.lines if (one.quantity, one.of_host) == about]
            told = [one for one in record.series.extremes if (one.quantity, one.of_host) == about]
            if max((one.readings for one in told), default=0) > 1:
                told.sort(key=lambda one: -one.highest)
                found.append(_Quantity(*scale, kind, lines, told).chart(record, lang))
    return found


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A quantity of all devices or of all hosts; ``told`` begins with the highest reading."""

    short: str
    unit: str
    scale: int
    kind: str
    lines: Sequence[Line]
    told: Sequence[Extremes]

    @property
    def together(self) -> bool:
        """Tell whether lines are of all devices together."""
        return self.lines[0].of in TOGETHER

    def chart(self, record: Record, lang: str) -> Chart:
        """Return the chart, the steps that figures are over shaded."""
        measured = record.telemetry.intervals_s.get("measured") if record.telemetry else None
        quantity = text(f"time.{self.short}", lang)
        return Chart(
            name=f"time-{self.kind}-{self.short}",
            title=text(f"time.{self.kind}-title", lang, quantity=quantity),
            description=self._description(lang),
            draws=plotting.later(_spec, self, lang),
            data={
                "measured": [{"from": measured[0], "to": measured[1]}] if measured else [],
                "lowered": self._lowered(),
                "lines": _wide(self.lines, self.scale) if self.together
                else _long(self.lines, self.scale),
            },
            table=_table(self, lang),
        )  # fmt: skip

    def _lowered(self) -> list[dict[str, Any]]:
        """Return readings with lowered clocks, of very many some of each device."""
        found = [
            {"s": s, "v": _rounded(value / self.scale), "of": one.of, "why": cells.clean(why)}
            for one in self.told
            for s, value, why in one.lowered
        ]
        return found[:: -(-len(found) // _MOST_MARKS) or 1]

    def _description(self, lang: str) -> str:
        top, lowered = self.told[0], sum(one.lowered_readings for one in self.told)
        about = {
            "n": len(self.told), "quantity": text(f"time.{self.short}", lang), "of": top.of,
            "unit": self.unit,
            "lowest": _number(min(one.lowest for one in self.told) / self.scale),
            "highest": _number(top.highest / self.scale), "at": _moment(top.highest_s),
        }  # fmt: skip
        said = [text(f"time.{self.kind}", lang, **about)]
        said += [text("time.together", lang)] if self.together else []
        said += [text("time.lowered", lang, n=cells.count(lowered))] if lowered else []
        return " ".join(said)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _moment(seconds: float) -> str:
    """Return seconds with one decimal; not as -0.0, since clocks differ by microseconds."""
    return f"{round(seconds, 1) + 0.0:.1f}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _long(lines: Sequence[Line], scale: int) -> list[dict[str, Any]]:
    """Return a row for each point; of unequal times, so that a reading has its own moment."""
    return [
        {"s": round(s, 3), "v": _rounded(value / scale), "of": one.of}
        for one in lines
        for s, value in one.points
    ]


def _wide(lines: Sequence[Line], scale: int) -> list[dict[str, Any]]:
    """Return a row for each stretch of time with the lowest, the median and the highest."""
    return [
        {"s": round(points[0][0], 3)}
        | {one.of: _rounded(value / scale) for one, (_, value) in zip(lines, points, strict=True)}
        for points in zip(*(one.points for one in lines), strict=True)
    ]


def _spec(found: _Quantity, lang: str) -> dict[str, Any]:
    import altair as alt

    short, kind, together = found.short, found.kind, found.together
    x = alt.X("s:Q", title=text("time.axis", lang), axis=alt.Axis(format="~g", grid=False),
              scale=alt.Scale(nice=False))  # fmt: skip
    bounds = {"domain": [0, 100]} if short == "busy" else {"zero": short != "temperature"}

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=found.unit,
                     axis=alt.Axis(tickCount=4), scale=alt.Scale(**bounds))  # fmt: skip

    measured = (
        alt.Chart(alt.NamedData("measured"))
        .mark_rect(color="var(--shade)")
        .encode(x=alt.X("from:Q"), x2=alt.X2("to"))
    )
    base = alt.Chart(alt.NamedData("lines")).encode(x=x)
    fields = TOGETHER if together else ("v",)
    member = alt.Tooltip("of:N", title=text(f"time.{kind}-of", lang))
    told = [alt.Tooltip("s:Q", title=text("time.axis", lang), format=".1f")]
    told += [alt.Tooltip(f"{field}:Q", format=".4~g",
                         title=text(f"time.{field}", lang) if together else found.unit)
             for field in fields]  # fmt: skip
    if together:
        band = base.mark_area(color="var(--accent)", opacity=0.25).encode(
            y=y("lowest"), y2=alt.Y2("highest")
        )
        lines = [band, base.mark_line(color="var(--accent)").encode(y=y("median"))]
        answering = plotting.answering(base.encode(y=y("median")), told)
    else:
        told.insert(0, member)
        curve = base.encode(y=y("v"))
        lines = [_lines(curve, [one.of for one in found.lines], text(f"time.{kind}-of", lang))]
        answering = plotting.answering(curve, told)
    marks = (
        alt.Chart(alt.NamedData("lowered"))
        .mark_point(
            shape="triangle-down", filled=True, size=45, color="var(--bad)", opacity=1, aria=False
        )
        .encode(x=x, y=y("v"), tooltip=[member, alt.Tooltip("why:N")])
    )
    marked = [marks] if any(one.lowered for one in found.told) else []  # none: Vega would warn
    return plotting.layered(measured, *lines, *marked, answering, height=HEIGHT)


def _lines(curve: alt.Chart, members: Sequence[str], title: str) -> alt.Chart:
    """Return a line for each of ``members``; of several each in its colour and dash."""
    import altair as alt

    if len(members) == 1:
        alone: alt.Chart = curve.mark_line(color="var(--accent)")
        return alone
    styles = _STYLES[: len(members)]
    names, colours, dashes = list(members), [a for a, _ in styles], [b for _, b in styles]
    told_apart: alt.Chart = curve.mark_line().encode(
        color=alt.Color("of:N", title=title, scale=alt.Scale(domain=names, range=colours)),
        strokeDash=alt.StrokeDash("of:N", title=title, scale=alt.Scale(domain=names, range=dashes)),
    )
    return told_apart


def _table(found: _Quantity, lang: str) -> Table:
    """Return what each device or host told over the run, that with the highest reading first."""
    rows = tuple(
        (
            one.of, _number(one.lowest / found.scale), _number(one.highest / found.scale),
            _moment(one.highest_s), cells.count(one.lowered_readings), cells.count(one.readings),
        )
        for one in found.told
    )  # fmt: skip
    heads = (
        text(f"time.{found.kind}-of", lang),
        *(text(f"time.{name}", lang) for name in ("lowest", "highest", "at", "marked")),
        text("use.readings", lang),
    )
    return Table(heads, shortened_rows(rows, lang))
