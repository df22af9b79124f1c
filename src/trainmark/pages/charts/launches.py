"""Figures over repeated launches: a row each, a dot a launch, as difference from its median."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart, Table
from trainmark.pages.summary import summary
from trainmark.pages.tables import shortened_rows
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from trainmark.record.record import Record

_ROWS = ("p_train", "p_core", "token/p/s", "e2e_time", "step_time_p50", "MFU", "MAMFU")
_ROW_PX = 36
_LEAST_RANGE = 0.5  # per cent: below, noise of the last digit would look like a spread


def chart(records: Sequence[Record], lang: str, *, name: str = "launches") -> Chart | None:
    """Return the figures of the launches that passed; None where fewer than two did."""
    passed = [record for record in records if record.passed]
    found = summary(records)
    figures = [name for name in _ROWS if name in found.figures and found.figures[name].median]
    if len(passed) < 2 or not figures:
        return None
    dots: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    rows = []
    for figure in figures:
        over = found.figures[figure]
        known = [(r, value) for r in passed if (value := r.figure(figure)) is not None]
        shown, unit = cells.scaled(
            [over.median, *(value for _, value in known)], found.units[figure]
        )
        label = f"{figure}\n{shown[0]} {unit}".rstrip()
        low, high = (round(100 * (end / over.median - 1), 4) for end in (over.low, over.high))
        spans.append({"label": label, "low": low, "high": high})
        for (record, value), told in zip(known, shown[1:], strict=True):
            percent = round(100 * (value / over.median - 1), 4)
            run = cells.clean(record.run_id)
            dots.append({"label": label, "percent": percent, "run": run, "value": f"{told} {unit}"})
            rows.append((figure, run, f"{told} {unit}".rstrip(), f"{percent:+.2f}%"))
    heads = [text(f"head.{head}", lang) for head in ("name", "run", "value")]
    axis = text("chart.launches.axis", lang)
    return Chart(
        name=name,
        title=text("chart.launches", lang),
        description=text("chart.launches.desc", lang, figures=len(figures), launches=len(passed)),
        draws=plotting.later(_spec, [span["label"] for span in spans], dots, lang),
        data={"launches": dots, "intervals": spans},
        table=Table((*heads, axis), shortened_rows(rows, lang)),
        text="",  # the page has the table of medians and intervals
    )


def _spec(order: Sequence[str], dots: Sequence[dict[str, Any]], lang: str) -> dict[str, Any]:
    import altair as alt

    reach = 1.08 * max(_LEAST_RANGE, *(abs(dot["percent"]) for dot in dots))
    y, title = plotting.label_axis(order), text("chart.launches.axis", lang)
    x = alt.Scale(domain=[-reach, reach], nice=False)
    interval = alt.Chart(alt.NamedData("intervals")).encode(y=y)
    across = alt.X("low:Q", title=title, scale=x, axis=alt.Axis(format="+~g"))
    told = [
        alt.Tooltip("run:N", title=text("head.run", lang)),
        alt.Tooltip("value:N", title=text("head.value", lang)),
        alt.Tooltip("percent:Q", title="%", format="+.2f"),
    ]
    return plotting.layered(
        interval.mark_rule(color="var(--rest)", strokeWidth=3).encode(x=across, x2=alt.X2("high")),
        interval.mark_tick(color="var(--ink)", thickness=2, size=22).encode(x=alt.datum(0)),
        alt.Chart(alt.NamedData("launches"))
        .mark_point(size=70, color="var(--accent)", fill="var(--accent)", fillOpacity=0.4)
        .encode(x=alt.X("percent:Q", scale=x), y=y, tooltip=told),
        height=_ROW_PX * len(order),
    )
