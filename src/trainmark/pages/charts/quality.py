"""The quality of each evaluation, against the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart, Table
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from typing import Any

    from trainmark.record.record import Record

_EVALUATIONS = 400


def chart(record: Record, lang: str) -> Chart | None:
    """Return the quality over the steps; None where nothing was evaluated."""
    history, target = record.quality.history, record.quality.target
    known = [(point.step, point.value) for point in history if point.value is not None]
    if not known:
        return None
    metric = cells.clean(record.quality.metric)
    shown = [known[place] for place in plotting.some(len(known), most=_EVALUATIONS)]
    told = [(cells.count(step), cells.quality(value, target=target)) for step, value in shown]
    places = plotting.some(len(told), most=plotting.TABLE_ROWS)
    steps = max(len(record.steps.time_ns), *(step for step, _ in known))
    named = text("chart.quality.no_target", lang)
    if target is not None:
        named = text("chart.quality.target", lang, target=f"{target:g}")
    ends, count = {"first": told[0][1], "last": told[-1][1]}, cells.count(len(known))
    return Chart(
        name="quality",
        title=text("chart.quality", lang, metric=metric),
        description=text("chart.quality.desc", lang, n=count, target=named, **ends),
        draws=plotting.later(_spec, metric, steps, lang),
        data={
            "steps": [{"step": step, "value": value} for step, value in shown],
            "target": [] if target is None else [{"value": target, "label": named}],
        },
        table=Table((text("chart.step", lang), metric), tuple(told[at] for at in places)),
        text="",  # the page has a table of evaluations
    )


def _spec(metric: str, steps: int, lang: str) -> dict[str, Any]:
    import altair as alt

    aim = alt.Chart(alt.NamedData("target")).encode(y=alt.Y("value:Q"))
    line, answering = plotting.trace(metric, steps, lang, colour="eval")
    return plotting.layered(
        aim.mark_rule(color="var(--good)", strokeDash=[8, 4]),
        aim.mark_text(
            align="left", baseline="bottom", x=0, dx=4, dy=-3, color="var(--good)"
        ).encode(text=alt.Text("label:N")),
        line,
        line.mark_point(color="var(--eval)", filled=True),
        answering,
    )
