"""The spans of a run as bars along its wall time, and what its training steps consist of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart, Table
from trainmark.pages.texts import text
from trainmark.pages.waterfall import STEPPED, bars, gloss, parts, text_waterfall

if TYPE_CHECKING:
    from trainmark.record.record import Record

_SET_UP = ("launch", "init", "preflight", "data_build", "model_build")
_TEXT_COLUMNS = 96


def chart(record: Record, lang: str) -> Chart | None:
    """Return a bar a span, to 100% of the wall time; None without spans.

    Parts of the stepped spans stand below, one after the other from where these begin: they
    alternate from step to step.
    """
    found, taken_apart = bars(record.spans), parts(record.spans)
    if not found or not record.spans.wall_ns:
        return None
    wall_ns = record.spans.wall_ns
    within_ns = next((bar.start_ns for bar in found if bar.name in STEPPED), 0)
    data, rows = [], []
    for part, bar in [(False, bar) for bar in found] + [(True, bar) for bar in taken_apart]:
        start_ns = within_ns if part else bar.start_ns
        within_ns += bar.spent_ns if part else 0
        name, meaning = cells.clean(bar.name), gloss(bar.name, lang, part=part)
        spent, share = cells.spent(bar.spent_ns), f"{100 * bar.share:.1f}%"
        called, dot = (meaning if meaning and lang != "en" else name), "· " * part
        first, last = (
            min(max(at_ns, 0), wall_ns) / 1e9 for at_ns in (start_ns, start_ns + bar.spent_ns)
        )
        data.append(
            {
                "label": f"{dot}{called}\n{spent} s · {share}",
                "colour": _colour(bar.name, part=part),
                "from": first,
                "to": last,
                "told": f"{name} {meaning}".strip(),
            }
        )
        start = cells.NOTHING if part else cells.spent(start_ns)  # parts alternate
        rows.append((dot + name, meaning, start, spent, share))
    heads = [text(f"head.{name}", lang) for name in ("span", "meaning", "start", "time", "share")]
    wall, axis = cells.spent(wall_ns), text("chart.spans.axis", lang, wall=cells.spent(wall_ns))
    longest = cells.clean(max(found, key=lambda bar: bar.spent_ns).name)
    return Chart(
        name="spans",
        title=text("section.spans", lang),
        description=text("chart.spans.desc", lang, n=len(found), wall=wall, longest=longest),
        draws=plotting.later(plotting.bars, data, axis, wall_ns / 1e9, lang),
        data={"bars": data},
        table=Table(tuple(heads), tuple(rows)),
        text=text_waterfall(record, width=_TEXT_COLUMNS, lang=lang),
    )


def _colour(name: str, *, part: bool) -> str:
    if part:
        return {"data_wait": "wait", "compute": "work"}.get(name, "rest")
    if name in STEPPED:
        return "work"
    if name in _SET_UP:
        return "setup"
    return "eval" if name == "evaluate" else "rest"
