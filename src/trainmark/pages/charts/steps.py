"""The course of the training over its steps: step time, loss, quality."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Chart
from trainmark.pages.texts import t
from trainmark.record.series import thin

if TYPE_CHECKING:
    from trainmark.record.record import Record

# Beyond this ratio between greatest and least a linear axis shows one spike and a flat line.
_LOG_RATIO = 20
_MOST_RULES, _MOST_POINTS = 200, 400  # evaluations; more would hide the curve


def step_time(record: Record) -> Chart | None:
    """Return the step time in ms, the warm-up shaded; None for fewer than two."""
    values = np.asarray(record.steps.time_ns, np.float64) / 1e6
    values[values <= 0] = np.nan
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return None
    count, title, scale = len(values), t("chart.step_time"), dict[str, object](zero=False)
    if known.max() > _LOG_RATIO * known.min():
        title, scale = t("chart.log", title=title), {"type": "log", "nice": False}
    warmup, kind = min(record.steps.warmup, count), t("chart.warmup")
    drawn = vega.spec(
        "step_time", scale=scale, steps=[1, max(count, 2)], kinds=[kind] if warmup else [],
        colours=["var(--setup)"] if warmup else [],
    )  # fmt: skip
    end = min(warmup + 0.5, count)
    stretches = [{"kind": kind, "step": 1, "to": end}] if warmup else []
    data = {"steps": vega.rows(thin(values)), "shaded": stretches}
    behind = vega.stretches(values, "ms")
    said = t("chart.step_time.desc", n=cells.count(count), warmup=warmup)
    return Chart("step-time", title, said, drawn, data, behind)


def loss(record: Record) -> Chart | None:
    """Return the loss step by step, with the evaluations; None for fewer than two."""
    values = np.asarray(record.steps.loss, np.float64)
    measured = values[np.isfinite(values)]
    if len(measured) < 2:
        return None
    count, steps = len(values), [point.step for point in record.quality.history]
    ends = {"first": f"{measured[0]:.4g}", "last": f"{measured[-1]:.4g}"}
    shown = vega.some(len(steps), most=_MOST_RULES)
    return Chart(
        "loss", t("chart.loss"), t("chart.loss.desc", n=cells.count(count), **ends),
        vega.spec("loss", steps=[1, max(count, 2)]),
        {"steps": vega.rows(thin(values)),
         "evaluations": [{"step": min(max(steps[at], 1), count)} for at in shown]},
        vega.stretches(values, ""),
    )  # fmt: skip


def quality(record: Record) -> Chart | None:
    """Return the quality of each evaluation against the target; None where there was none."""
    metric, target = record.quality.metric, record.quality.target
    known = [(x.step, x.value) for x in record.quality.history if x.value is not None]
    if len(known) < 2:
        return None
    shown = [known[place] for place in vega.some(len(known), most=_MOST_POINTS)]
    steps = max(len(record.steps.time_ns), *(step for step, _ in known))
    named = t("chart.quality.no_target")
    if target is not None:
        named = t("chart.quality.target", target=f"{target:g}")
    drawn = vega.spec("quality", metric=metric, steps=[1, max(steps, 2)])
    ends = {"first": cells.quality(known[0][1]), "last": cells.quality(known[-1][1])}
    return Chart(
        "quality", t("chart.quality", metric=metric),
        t("chart.quality.desc", n=cells.count(len(known)), target=named, **ends), drawn,
        {"steps": [{"step": step, "value": value} for step, value in shown],
         "target": [] if target is None else [{"value": target, "label": named}]},
    )  # fmt: skip
