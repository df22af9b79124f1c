"""From p_whole over p_train to p_core: what evaluation and waiting for data cost in throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart, Table
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from trainmark.record.record import Record

_FIGURES = ("p_whole", "p_train", "p_core")


def chart(record: Record, lang: str) -> Chart | None:
    """Return the three figures as bars and between them what is lost; None without all three."""
    whole, train, core = values = [record.figure(name) for name in _FIGURES]
    if whole is None or train is None or core is None or core <= 0:
        return None
    unit = cells.clean(record.figures["p_core"].unit)
    told = {name: cells.number(value) for name, value in zip(_FIGURES, values, strict=True)}
    data, rows = [], []
    for name, colour, start, end in (
        ("p_whole", "work", 0.0, whole),
        (text("chart.lost_evaluate", lang), "eval", whole, train),
        ("p_train", "work", 0.0, train),
        (text("chart.lost_data_wait", lang), "wait", train, core),
        ("p_core", "work", 0.0, core),
    ):
        shown = ("" if colour == "work" else "−") + cells.number(end - start)
        share = f"{100 * (end - start) / core:.1f}%"
        label = f"{name}\n{shown} {unit} · {share}"
        data.append({"label": label, "colour": colour, "from": start, "to": end, "told": shown})
        rows.append((name, shown, share))
    title = text("chart.throughput.axis", lang, unit=unit)
    return Chart(
        name="throughput",
        title=text("chart.throughput", lang),
        description=text("chart.throughput.desc", lang, unit=unit, **told),
        draws=plotting.later(plotting.bars, data, title, 1.05 * core, lang),
        data={"bars": data},
        table=Table((text("head.name", lang), unit, text("chart.of_core", lang)), tuple(rows)),
    )
