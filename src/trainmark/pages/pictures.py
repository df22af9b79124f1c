"""A chart as a file of its own, SVG or PNG: with its title, in the colours of the light page."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from trainmark.errors import UsageError, suggest_nearest
from trainmark.pages.document import find_charts
from trainmark.pages.rendering import complete_spec, read_shipped_file, render_template
from trainmark.pages.texts import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.pages.document import Chart, Document

PNG_SCALE = 2.0  # pixels of a picture per pixel of the page
# A colour in the style sheet: its name, and its value on a light page.
_COLOUR = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), #[0-9a-f]{6}\)")
_VARIABLE = re.compile(r"var\(--([\w-]+)\)")


def list_charts(pages: Sequence[Document]) -> dict[str, Chart]:
    """Return the charts of pages by their names, which begin with ``anchor_prefix`` of the page."""
    return {f"{page.anchor_prefix}{chart.name}": chart for page in pages for chart in page.charts}


def choose_chart(pages: Sequence[Document], name: str | None) -> Chart:
    """Return the chart of this name; None: the first of all pages, as a rule that of the loss.

    Raises:
        UsageError: there is no such chart; the error suggests similar names of charts. Or there is
            no chart at all.
    """
    charts = list_charts(pages)
    if not charts:
        rule = "a curve needs at least two steps"
        raise UsageError("these runs have no chart", where="--chart", rule=rule)
    if name is None:
        return next(iter(charts.values()))
    if name not in charts:
        fix = suggest_nearest(name, charts)
        raise UsageError(f"there is no chart {name!r}", where="--chart", fix=fix)
    return charts[name]


def to_svg(chart: Chart, lang: str) -> str:
    """Return a chart as an SVG picture that needs no page around it.

    It contains its title and its colours, which on a page come from the page.
    """
    import vl_convert  # an optional package, which only charts need

    picture: str = vl_convert.vegalite_to_svg(_build_standalone_spec(chart, lang))
    return picture


def to_notebook_html(page: Document) -> str:
    """Return the top of a page, above its sections, as HTML for a notebook, in English.

    Its charts are pictures. They are left out if ``vl_convert``, which draws them, is missing.
    """
    pictures = []
    if find_spec("vl_convert") is not None:
        # `lead`: the blocks of the page above its sections.
        charts = [chart for block in page.lead for chart in find_charts(block)]
        pictures = [Markup(to_svg(chart, LANGUAGES[0])) for chart in charts]
    return render_template("notebook.html.j2", LANGUAGES[0], page=page, pictures=pictures)


def to_png(chart: Chart, lang: str) -> bytes:
    """Return a chart as a PNG file, with its title, in a language."""
    import vl_convert  # an optional package, which only charts need

    picture: bytes = vl_convert.vegalite_to_png(
        _build_standalone_spec(chart, lang), scale=PNG_SCALE
    )
    return picture


def _build_standalone_spec(chart: Chart, lang: str) -> str:
    """Return a chart's specification as JSON, with its title and with the colours' values.

    On a page, colours are variables of its style sheet; a picture by itself has no style sheet.
    """
    # The pattern's groups are a colour's name and its value on a light page. The style sheet
    # defines each colour once, with its values on a light and on a dark page.
    colours: dict[str, str] = dict(_COLOUR.findall(read_shipped_file("base.css")))
    spec: dict[str, Any] = complete_spec(chart, lang, with_title=True)
    spec["background"] = "var(--paper)"
    text = json.dumps(spec, ensure_ascii=False, allow_nan=False)
    # Each `var(--paper)` becomes the colour of the name, which is group 1.
    return _VARIABLE.sub(lambda match: colours[match[1]], text)
