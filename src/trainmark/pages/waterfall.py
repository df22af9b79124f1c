"""The spans of a record as bars, and these as lines of text.

A record keeps the sum of each span, not every occurrence. Bars are therefore stacked in
the order of the run, and evaluations between training steps show as one bar after them.
The stages of the training steps are shown separately below, because they are not spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.pages.cells import spent
from trainmark.pages.texts import has, text

if TYPE_CHECKING:
    from trainmark.record.record import Record, Spans

# Spans whose windows ``train_parts_ns`` takes apart; they follow each other in a run.
STEPPED = ("compile", "warmup", "train")
REST = "other"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_GLOSS_COLUMNS = 17
_GLOSSED_COLUMNS = 76  # narrower than this, bars need the room more than words do


@dataclass(frozen=True, slots=True)
class Bar:
    """One row; ``share`` is of wall time for a span, of the stepped spans for a part."""

    name: str
    start_ns: int
    spent_ns: int
    share: float

    @property
    def shown(self) -> bool:
        """Tell whether to show the bar: if it has any time, or is the rest."""
        return self.name == REST or spent(self.spent_ns) != spent(0)


def bars(spans: Spans) -> list[Bar]:
    """Return the spans that took time, in the order of the run, the rest last."""
    wall_ns = spans.wall_ns or 0
    names = [name for name in spans.by_name_ns if name != REST]
    if REST in spans.by_name_ns:
        names.append(REST)
    found, offset_ns = [], 0
    for name in names:
        spent_ns = spans.by_name_ns[name]
        found.append(Bar(name, offset_ns, spent_ns, spent_ns / wall_ns if wall_ns else 0.0))
        offset_ns += spent_ns
    return [bar for bar in found if bar.shown]


def parts(spans: Spans) -> list[Bar]:
    """Return what the stepped spans consist of together.

    The parts alternate from step to step and have no start of their own: all start at 0.
    """
    total_ns = sum(spans.train_parts_ns.values())
    if total_ns <= 0:
        return []
    found = [Bar(name, 0, ns, ns / total_ns) for name, ns in spans.train_parts_ns.items()]
    return [bar for bar in found if bar.shown]


def gloss(name: str, lang: str, *, part: bool = False) -> str:
    """Return a span's name in words; nothing where there are none."""
    if part and name == REST:
        return text("spans.edges", lang)
    return text(f"span.{name}", lang) if has(f"span.{name}") else ""


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
    found, taken_apart = bars(spans), parts(spans)
    if not found:
        return text("spans.none", lang)
    longest = max(len(bar.name) for bar in [*found, *taken_apart]) + 2
    # In Chinese the name alone is shown, so that columns are one cell a character.
    glossed = lang == "en" and width >= _GLOSSED_COLUMNS

    def line(bar: Bar, *, part: bool) -> str:
        name = f"{'  ' if part else ''}{bar.name:<{longest - 2 * part}}"
        if glossed:
            name += f"{gloss(bar.name, lang, part=part):<{_GLOSS_COLUMNS}}"
        start = "" if part else spent(bar.start_ns)
        head = f"{name} {start:>8} {spent(bar.spent_ns):>8} s {100 * bar.share:>5.1f}% "
        room = max(width - len(head), 1)
        return head + _blocks(bar, spans.wall_ns or 0, room, unicode=unicode)

    lines = [line(bar, part=False) for bar in found]
    if taken_apart:
        lines.append(text("spans.of", lang))
        lines += [line(bar, part=True) for bar in taken_apart]
    return "\n".join(line[:width].rstrip() for line in lines)
