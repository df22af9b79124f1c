"""Charts drawn: as static SVG by vl-convert, and what a page's script draws.

Owns type and size of every chart. Colours are the CSS variables of ``templates/base.css``, so that
light, dark and print need no script. The same chart gives the same bytes with the same version of
vl-convert and fonts.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import escaped
from trainmark.pages.texts import say

if TYPE_CHECKING:
    from trainmark.pages.document import Chart

_LONGEST = 400  # characters of a string in a chart
_TEMPLATES = Path(__file__).parents[1] / "templates"
# Liberation Sans comes with vl-convert, so that text has the same width on every machine.
_FONTS = "Liberation Sans, Arial, sans-serif"


@cache
def _config() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("config.json").read_bytes())
    return found | {"font": _FONTS}


def document(chart: Chart, lang: str) -> dict[str, Any]:
    """Return what a page's script draws: Vega-Lite with data, as wide as its place."""
    spec = {**chart.spec, "width": "container", "datasets": chart.data}
    return {**_printable(spec, lang), "config": _config()}


def svg(chart: Chart, lang: str) -> str:
    """Return the static picture for a page; its colours are variables of the page."""
    import vl_convert

    spec = _printable({**chart.spec, "datasets": chart.data}, lang) | {"config": _config()}
    drawn: str = vl_convert.vegalite_to_svg(json.dumps(spec, ensure_ascii=False, allow_nan=False))
    return drawn


@cache
def script() -> str:
    """Return the script that draws a page's charts: Vega, Vega-Lite and ``charts.js``.

    It loads nothing else and evaluates no text as code.
    """
    import vl_convert

    loader = (_TEMPLATES / "charts.js").read_text(encoding="utf-8")
    made: str = vl_convert.javascript_bundle(loader)
    return f'(() => {{"use strict";{made}}})();\n'  # a module's names are its own


def _printable(value: Any, lang: str, key: str = "") -> Any:
    """Return what stands under ``key`` with its phrases as text that Vega takes.

    Control characters are shown as text; of a very long word, the table has the rest. Vega-Lite
    puts titles into expressions and escapes quotation marks only: a backslash before one would end
    the string there, and what follows would be evaluated.
    """
    if isinstance(value, dict):
        return {escaped(name): _printable(item, lang, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_printable(item, lang, key) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    text = say(value, lang)
    shown = escaped(text) if len(text) <= _LONGEST else f"{escaped(text[:_LONGEST])}…"
    return shown.replace("\n", " ").replace("\\", "\u2216") if key == "title" else shown
