"""Where the wall time of a run went.

A record keeps the sum of each span, not every occurrence. Bars are therefore stacked in the order
of the run. What the training steps consist of stands below them: it alternates from step to step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Chart, table
from trainmark.pages.phrases import heads
from trainmark.pages.texts import Phrase, t, term

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.record import Record

_STEPPED = ("compile", "warmup", "train")  # whose windows ``train_parts_ns`` takes apart
_SET_UP = ("launch", "init", "preflight", "data_build", "model_build")
_COLOURS = (
    dict.fromkeys(_SET_UP, "setup") | dict.fromkeys((*_STEPPED, "compute"), "work")
    | {"evaluate": "eval", "data_wait": "wait"}
)  # fmt: skip


def _bars(record: Record) -> Iterator[tuple[bool, str, Phrase, int, int, float]]:
    """Yield whether it is a part of steps, name, meaning, start, time and share of each bar."""
    spans, at, stepped_at = record.spans, 0, None
    wall = spans.wall_ns or 0
    for name in sorted(spans.by_name_ns, key=lambda name: name == "other"):  # the rest last
        spent = spans.by_name_ns[name]
        stepped_at = at if stepped_at is None and name in _STEPPED else stepped_at
        if wall and (name == "other" or cells.spent(spent) != cells.spent(0)):
            yield False, name, term("span", name), at, spent, spent / wall
        at += spent
    at, total = stepped_at or 0, sum(spans.train_parts_ns.values())
    for name, spent in spans.train_parts_ns.items():
        if total > 0 and (name == "other" or cells.spent(spent) != cells.spent(0)):
            means = t("spans.edges") if name == "other" else term("span", name)
            yield True, name, means, at, spent, spent / total
        at += spent


def spans(record: Record) -> Chart | None:
    """Return a bar a span, to 100% of the wall time; None without spans."""
    found, wall_ns = [*_bars(record)], record.spans.wall_ns or 0
    named = [one for one in found if not one[0]]
    if not named:
        return None
    data, rows, ends = [], [], []
    for part, name, means, start, spent, share in found:
        first, last = (min(max(x, 0), wall_ns) / wall_ns for x in (start, start + spent))
        shown, dot = (cells.spent(spent), f"{100 * share:.1f}%"), "· " * part
        data.append({
            "label": (dot, t("spans.name", name=name, means=means), f"\n{' s · '.join(shown)}"),
            "colour": _COLOURS.get(name, "rest"),
            "from": first * wall_ns / 1e9, "to": last * wall_ns / 1e9,
        })  # fmt: skip
        rows.append((dot + name, means, None if part else cells.spent(start), *shown))
        ends.append((first, last))
    wall = cells.spent(wall_ns)
    longest = max(named, key=lambda one: one[4])[1]
    made = table(heads("span", "meaning", "start", "time", "share"), rows)
    axis = [t("chart.spans.axis"), t("chart.spans.wall", wall=wall)]
    kinds = list(dict.fromkeys(row["colour"] for row in data))
    drawn = vega.spec(
        "bars", height=34 * len(data), title=axis, end=wall_ns / 1e9, kinds=kinds,
        colours=[f"var(--{kind})" for kind in kinds], order=[row["label"] for row in data],
    )  # fmt: skip
    said = t("chart.spans.desc", n=len(named), wall=wall, longest=longest)
    return Chart(
        "spans", t("section.spans"), said,
        drawn, {"bars": data},
        type(made)(made.headers, made.rows, tuple(ends)),
    )  # fmt: skip
