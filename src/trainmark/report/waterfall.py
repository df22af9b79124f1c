"""The spans of a record as bars: lines of text for a terminal, SVG for a page.

A record keeps the sum of each span, not every occurrence. Bars are therefore stacked in
the order of the run, and evaluations between training steps show as one bar after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.report import svg
from trainmark.report.cells import spent
from trainmark.report.texts import has, text

if TYPE_CHECKING:
    from trainmark.results.record import Record, Spans

# Spans whose windows ``train_parts_ns`` takes apart; they follow each other in a run.
STEPPED = ("compile", "warmup", "train")
REST = "other"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SET_UP = ("launch", "init", "preflight", "data_build", "model_build")
_ROW_PX = 22
_LABEL_PX = 176
_VALUE_PX = 148


@dataclass(frozen=True, slots=True)
class Bar:
    """One span; ``depth`` 1 is a part of the stepped spans, ``share`` is of wall time."""

    name: str
    depth: int
    start_ns: int
    spent_ns: int
    share: float


def bars(spans: Spans) -> list[Bar]:
    """Return every span in the order of the run, the parts of the steps under ``train``."""
    wall_ns = spans.wall_ns or 0
    names = [name for name in spans.by_name_ns if name != REST]
    if REST in spans.by_name_ns:
        names.append(REST)
    found, offset_ns, stepped_ns = [], 0, 0

    def bar(name: str, depth: int, start_ns: int, spent_ns: int) -> Bar:
        return Bar(name, depth, start_ns, spent_ns, spent_ns / wall_ns if wall_ns else 0.0)

    for name in names:
        spent_ns = spans.by_name_ns[name]
        if name == STEPPED[0]:
            stepped_ns = offset_ns
        found.append(bar(name, 0, offset_ns, spent_ns))
        offset_ns += spent_ns
        if name == STEPPED[-1]:
            for part, part_ns in spans.train_parts_ns.items():
                found.append(bar(part, 1, stepped_ns, part_ns))
                stepped_ns += part_ns
    return found


def can_show(encoding: str | None) -> bool:
    """Tell whether a stream of ``encoding`` can show block characters."""
    return (encoding or "").lower().replace("-", "").replace("_", "") in ("utf8", "cp65001")


def _blocks(bar: Bar, wall_ns: int, width: int, *, unicode: bool) -> str:
    """Return a bar of at most ``width`` characters; a span that took time is never blank."""
    if bar.spent_ns <= 0 or wall_ns <= 0:
        return ""
    per_cell = wall_ns / width
    start = min(int(bar.start_ns / per_cell), width - 1)
    eighths = min(max(1, round(8 * bar.spent_ns / per_cell)), 8 * (width - start))
    if not unicode:
        return " " * start + "#" * max(1, round(eighths / 8))
    full, rest = divmod(eighths, 8)
    return " " * start + "█" * full + (_EIGHTHS[rest] if rest else "")


def text_waterfall(
    record: Record, *, width: int = 80, unicode: bool = True, lang: str = "en"
) -> str:
    """Return one line a span: name, start, seconds, share, bar; no line is over ``width``."""
    spans = record.spans
    found = bars(spans)
    if not found:
        return text("spans.none", lang)
    lines = []
    mark = "· " if unicode else "- "
    # The name is a field term in both languages, so that columns are one cell a character.
    longest = max(len(bar.name) + 2 * bar.depth for bar in found)
    for bar in found:
        name = mark * bar.depth + bar.name
        head = (
            f"{name:<{longest}} {spent(bar.start_ns):>9} {spent(bar.spent_ns):>9} s "
            f"{100 * bar.share:>5.1f}% "
        )
        room = max(width - len(head), 1)
        lines.append((head + _blocks(bar, spans.wall_ns or 0, room, unicode=unicode)).rstrip())
    return "\n".join(line[:width] for line in lines)


def _bar_class(bar: Bar) -> str:
    if bar.depth:
        return {"data_wait": "wait", "compute": "work"}.get(bar.name, "rest")
    if bar.name in STEPPED:
        return "work"
    if bar.name in _SET_UP:
        return "setup"
    return "eval" if bar.name == "evaluate" else "rest"


def svg_waterfall(record: Record, *, lang: str = "en", ident: str = "spans") -> str:
    """Return the bars as inline SVG; colours come from the page's style sheet."""
    found = bars(record.spans)
    wall_ns = max(record.spans.wall_ns or 0, 1)
    room = svg.WIDTH - _LABEL_PX - _VALUE_PX
    parts = []
    for index, bar in enumerate(found):
        y = index * _ROW_PX
        x = _LABEL_PX + room * min(max(bar.start_ns / wall_ns, 0), 1)
        length = room * max(bar.spent_ns, 0) / wall_ns
        length = min(max(length, 1.5 if bar.spent_ns > 0 else 0), svg.WIDTH - _VALUE_PX - x + 1.5)
        gloss = text(f"span.{bar.name}", lang) if has(f"span.{bar.name}") else bar.name
        label = bar.name if gloss == bar.name else f"{bar.name} {gloss}"
        height, lift = (8, 7) if bar.depth else (14, 4)
        parts += [
            svg.label(label, x=14 * bar.depth, y=y + 15, classes="sub" if bar.depth else ""),
            svg.rect(x=_LABEL_PX, y=y + lift, width=room, height=height, classes="track"),
            svg.rect(x=x, y=y + lift, width=length, height=height, classes=_bar_class(bar)),
            svg.label(
                f"{spent(bar.spent_ns)} s", x=svg.WIDTH - 58, y=y + 15, anchor="end", classes="num"
            ),
            svg.label(
                f"{100 * bar.share:.1f}%", x=svg.WIDTH, y=y + 15, anchor="end", classes="num sub"
            ),
        ]
    return svg.picture(
        parts,
        height=_ROW_PX * len(found),
        title=text("section.spans", lang),
        description=text("spans.alt", lang),
        ident=ident,
    )
