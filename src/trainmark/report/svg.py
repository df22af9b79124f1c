"""Pieces of inline SVG. Every string is escaped here; colours are classes of the page's CSS."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trainmark.report.cells import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH = 760


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def rect(*, x: float, y: float, width: float, height: float, classes: str) -> str:
    """Return a rectangle with softened corners."""
    round_px = min(2.0, max(width, 0) / 2)
    return (
        f'<rect x="{_px(x)}" y="{_px(y)}" width="{_px(max(width, 0))}" height="{_px(height)}" '
        f'rx="{_px(round_px)}" class="{escape(classes)}"/>'
    )


def line(*, x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    """Return a straight line."""
    return (
        f'<line x1="{_px(x1)}" y1="{_px(y1)}" x2="{_px(x2)}" y2="{_px(y2)}" '
        f'class="{escape(classes)}"/>'
    )


def dot(*, x: float, y: float, classes: str) -> str:
    """Return a small disc."""
    return f'<circle cx="{_px(x)}" cy="{_px(y)}" r="4.5" class="{escape(classes)}"/>'


def label(text: str, *, x: float, y: float, anchor: str = "start", classes: str = "") -> str:
    """Return text with its baseline at ``y``."""
    place = "" if anchor == "start" else f' text-anchor="{escape(anchor)}"'
    kind = f' class="{escape(classes)}"' if classes else ""
    return f'<text x="{_px(x)}" y="{_px(y)}"{place}{kind}>{escape(clean(text))}</text>'


def polyline(runs: Iterable[Sequence[tuple[float, float]]], *, classes: str) -> str:
    """Return a line through each run of points; a lone point is a dot."""
    words = []
    for run in runs:
        (x, y), *rest = run
        words.append(f"M{_px(x)} {_px(y)}")
        words += [f"L{_px(x)} {_px(y)}" for x, y in rest] or ["h0.1"]
    return f'<path d="{"".join(words)}" class="{escape(classes)}"/>'


def picture(
    parts: Sequence[str], *, height: float, title: str, description: str, ident: str
) -> str:
    """Return a whole picture that scales with the page and reads aloud as a sentence."""
    name = escape(ident)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_px(height)}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(clean(title))}</title>'
        f'<desc id="{name}-desc">{escape(clean(description))}</desc>'
        f"{''.join(parts)}</svg>"
    )
