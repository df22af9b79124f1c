"""The time of each step, with the warm-up and the steps under lowered clocks shaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart
from trainmark.pages.texts import text
from trainmark.record.thinning import thin

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from trainmark.record.record import Record

# Beyond this ratio between greatest and least a linear axis shows one spike and a flat line.
_LOG_RATIO = 20
_COLOURS = ("var(--setup)", "var(--wait)")


def chart(record: Record, lang: str, *, throttled: Sequence[tuple[int, int]] = ()) -> Chart | None:
    """Return the step time in ms; None without steps.

    Args:
        throttled: first and last steps of stretches with lowered clocks, from 1.
    """
    values = np.asarray(record.steps.time_ns, np.float64) / 1e6
    values[values <= 0] = np.nan
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    scale: dict[str, Any] = {}
    title, count = text("chart.step_time", lang), len(values)
    if known.max() > _LOG_RATIO * known.min():
        title, scale = text("chart.log", lang, title=title), {"type": "log", "nice": False}
    warmup = min(record.steps.warmup, count)
    described = [text("chart.step_time.desc", lang, n=cells.count(count), warmup=warmup)]
    if throttled:
        described.append(text("chart.throttled.desc", lang, n=len(throttled)))
    kinds = {text("chart.warmup", lang): [(1, warmup)] if warmup else []}
    kinds[text("chart.throttled", lang)] = [*throttled]
    shaded = [(kind, *ends) for kind, stretches in kinds.items() for ends in stretches]
    return Chart(
        name="step-time",
        title=title,
        description=text("sep.semicolon", lang).join(described),
        draws=plotting.later(_spec, count, kinds, scale, lang),
        data={
            "steps": plotting.rows(thin(values)),
            "shaded": [
                {"kind": kind, "step": max(first - 0.5, 1), "to": min(last + 0.5, count)}
                for kind, first, last in shaded
            ],
        },
        table=plotting.stretches(values, "ms", lang),
    )


def _spec(
    steps: int, kinds: dict[str, list[tuple[int, int]]], scale: dict[str, Any], lang: str
) -> dict[str, Any]:
    return plotting.layered(
        *_shades(steps, kinds, lang), *plotting.trace("ms", steps, lang, **scale)
    )


def _shades(steps: int, kinds: dict[str, list[tuple[int, int]]], lang: str) -> list[alt.Chart]:
    """Return tints, and strips as strong as the curve: a tint alone has too little contrast."""
    import altair as alt

    used = {
        kind: colour
        for (kind, stretches), colour in zip(kinds.items(), _COLOURS, strict=True)
        if stretches
    }
    if not used:
        return []
    shaded = alt.Chart(alt.NamedData("shaded")).encode(
        x=plotting.step_axis(steps, lang),
        x2=alt.X2("to"),
        color=alt.Color("kind:N", title=None).scale(domain=[*used], range=[*used.values()]),
    )
    strip = shaded.mark_rule(strokeWidth=5, y=0)
    return [shaded.mark_rect(opacity=0.16), strip]
