"""Charts drawn: as static SVG and PNG by vl-convert, and what a page's script draws.

Owns colours, type and size of every chart. In a page colours are the CSS variables of
``templates/base.css``, so that light, dark and print need no script; a file of its own has the
light ones. The same chart gives the same bytes with the same version of vl-convert and fonts.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import escaped

if TYPE_CHECKING:
    from trainmark.pages.document import Chart

WIDTH = 760  # px of a static picture, axes and legends included
_LONGEST = 400  # characters of a string in a chart
_TEMPLATES = Path(__file__).with_name("templates")
_COLOUR = re.compile(r"--([a-z]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")
_VARIABLE = re.compile(r'"var\(--([a-z]+)\)"')
# Liberation Sans comes with vl-convert, so that text has the same width on every machine.
_FONTS = "Liberation Sans, Arial, sans-serif"
# A file takes all its text from the first of these that the system has, if any of it is Chinese.
_CHINESE_FONTS = f"Noto Sans CJK SC, PingFang SC, Microsoft YaHei, {_FONTS}"
_CHINESE = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")
_SOFT = {"labelColor": "var(--soft)", "titleColor": "var(--soft)"}
_CONFIG = {
    "font": _FONTS,
    "autosize": {"type": "fit-x", "contains": "padding"},
    "background": None,
    "view": {"stroke": None},
    "axis": _SOFT
    | {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8}
    | {"gridColor": "var(--rule)", "domainColor": "var(--soft)", "tickColor": "var(--soft)"},
    "axisQuantitative": {"format": "~r"},
    "axisX": {"tickCount": {"expr": "ceil(width / 90)"}},
    "legend": {
        "symbolOpacity": 1,
        "labelColor": "var(--ink)",
        "titleColor": "var(--soft)",
        "labelFontSize": 12,
    }
    | {"titleFontSize": 12, "titleFontWeight": "normal", "orient": "top"},
    "header": _SOFT | {"labelFontSize": 12, "titleFontSize": 12},
    "title": {"color": "var(--ink)", "anchor": "start", "fontSize": 15},
    # The whole picture is described once, and the table behind it has the values.
    "mark": {"color": "var(--accent)", "aria": False},
    "text": {"color": "var(--ink)", "fontSize": 12},
    "line": {"strokeWidth": 1.5, "strokeCap": "round", "strokeJoin": "round"},
    "style": {"cell": {"stroke": None}},
}


@cache
def colours(*, dark: bool = False) -> dict[str, str]:
    """Return the page's colours by name as ``#rrggbb``, from ``templates/base.css``."""
    css = (_TEMPLATES / "base.css").read_text(encoding="utf-8")
    return {name: pair[dark] for name, *pair in _COLOUR.findall(css)}


def document(chart: Chart) -> dict[str, Any]:
    """Return what a page's script draws: Vega-Lite with data, as wide as its place."""
    width = {"width": "container"} if "width" in chart.spec else {}
    return {
        **_printable(chart.spec),
        **width,
        "datasets": _printable(chart.data),
        "config": _CONFIG,
    }


def svg(chart: Chart) -> str:
    """Return the static picture for a page; its colours are variables of the page."""
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(_static(chart))
    return drawn


def svg_file(chart: Chart) -> str:
    """Return the picture as a file of its own, with its title and light colours."""
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(_standalone(chart))
    return drawn


def png(chart: Chart, *, scale: float = 2) -> bytes:
    """Return the picture as PNG, with its title and light colours.

    Args:
        scale: pixels for each pixel of the SVG.
    """
    import vl_convert

    drawn: bytes = vl_convert.vegalite_to_png(_standalone(chart), scale=scale)
    return drawn


@cache
def scripts() -> str:
    """Return the script that draws a page's charts: Vega, Vega-Lite and ``charts.js``.

    It loads nothing else and evaluates no text as code.
    """
    import vl_convert

    loader = (_TEMPLATES / "charts.js").read_text(encoding="utf-8")
    made: str = vl_convert.javascript_bundle(loader)
    return f'(() => {{"use strict";{made}}})();\n'  # a module's names are its own


def _static(chart: Chart, **further: Any) -> str:
    """Return the specification without layers that answer a pointer, as JSON."""
    spec = {**chart.spec}
    if "layer" in spec:
        spec["layer"] = [layer for layer in spec["layer"] if "params" not in layer]
    whole = {**_printable({**spec, **further, "datasets": chart.data}), "config": _CONFIG}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False)


def _printable(value: Any, key: str = "") -> Any:
    """Return what stands under ``key`` with text that Vega takes, in a time that ends.

    Control characters are shown as text; of a very long word, the table has the rest. Vega-Lite
    puts titles into expressions and escapes quotation marks only: a backslash before one would end
    the string there, and what follows would be evaluated.
    """
    if isinstance(value, dict):
        return {escaped(name): _printable(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    if not isinstance(value, str):
        return value
    shown = escaped(value) if len(value) <= _LONGEST else f"{escaped(value[:_LONGEST])}…"
    return shown.replace("\n", " ").replace("\\", "\u2216") if key == "title" else shown


def _standalone(chart: Chart) -> str:
    light = colours()
    spec = _static(chart, title=chart.title, background="var(--paper)", padding=16)
    if _CHINESE.search(spec):
        spec = spec.replace(_FONTS, _CHINESE_FONTS)
    return _VARIABLE.sub(lambda found: f'"{light[found[1]]}"', spec)
