"""The training loss over the steps, with the places of the evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart
from trainmark.pages.texts import text
from trainmark.record.thinning import thin

if TYPE_CHECKING:
    from typing import Any

    from trainmark.record.record import Record

_EVALUATIONS = 200  # more lines would hide the curve


def chart(record: Record, lang: str) -> Chart | None:
    """Return the loss step by step; None without a finite loss."""
    values = np.asarray(record.steps.loss, np.float64)
    measured = values[np.isfinite(values)]
    if not len(measured):
        return None
    first, last = f"{measured[0]:.4g}", f"{measured[-1]:.4g}"
    count, steps = len(values), [point.step for point in record.quality.history]
    shown = plotting.some(len(steps), most=_EVALUATIONS)
    return Chart(
        name="loss",
        title=text("chart.loss", lang),
        description=text("chart.loss.desc", lang, n=cells.count(count), first=first, last=last),
        draws=plotting.later(_spec, count, lang),
        data={
            "steps": plotting.rows(thin(values)),
            "evaluations": [{"step": min(max(steps[at], 1), count)} for at in shown],
        },
        table=plotting.stretches(values, "", lang),
    )


def _spec(steps: int, lang: str) -> dict[str, Any]:
    import altair as alt

    evaluations = alt.Chart(alt.NamedData("evaluations")).mark_rule(
        color="var(--eval)", strokeDash=[3, 3]
    )
    return plotting.layered(
        evaluations.encode(x=plotting.step_axis(steps, lang)),
        *plotting.trace(text("chart.loss.axis", lang), steps, lang),
    )
