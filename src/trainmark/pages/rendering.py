"""Documents as Markdown and as HTML: the templates, what they are given, charts drawn by Vega.

Foreign text is escaped here: by autoescape in HTML, by a filter in Markdown. Charts have
the colours of ``templates/base.css``, so that light, dark and print need no script; the same
chart gives the same bytes with the same version of vl-convert and fonts.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from functools import cache, lru_cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from trainmark.errors import UsageError, escape_controls, suggest_nearest, to_one_line
from trainmark.pages import cells
from trainmark.pages.texts import LANGUAGES, Link, Missing, Phrase, phrase, translate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jinja2 import Environment
    from jinja2.runtime import Context

    from trainmark.pages.document import Chart, Document

_ALONE = ("title", "label")  # keys of labels of which a chart has one in a place
_TAGS = {"en": "en", "zh": "zh-Hans"}  # of languages, as HTML has them


@cache
def load_templates() -> Environment:
    """Return the templates; their filters put phrases into the language ``lang`` they are given."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context

    environment = Environment(
        loader=PackageLoader("trainmark.pages"),
        # Markdown escapes by its own filter; everything else is HTML or goes into HTML.
        autoescape=lambda name: name is None or not name.endswith(".md.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    @pass_context
    def translate_cleaned(context: Context, content: Phrase) -> str:
        return to_one_line(translate(content, context["lang"]))

    @pass_context
    def translate_to_markdown(context: Context, content: Phrase) -> str:
        return cells.escape_markdown(translate(content, context["lang"]))

    environment.filters |= {
        "translate": translate_cleaned,
        "translate_in": translate,
        "md": translate_to_markdown,
        "fence": cells.choose_code_fence,
    }
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.tests["numeric"] = cells.is_number
    environment.tests["missing"] = lambda cell: isinstance(cell, Missing)
    environment.tests["link"] = lambda cell: isinstance(cell, Link)
    environment.globals |= {
        "phrase": phrase,
        "tags": _TAGS,
        "drawn": draw_static_picture,
        "drawn_by_script": build_script_chart,
    }
    return environment


def render_template(template: str, lang: str, **values: Any) -> str:
    """Return a template filled in a language.

    Raises:
        UsageError: no such language.
    """
    if lang not in LANGUAGES:
        raise UsageError(
            f"there is no page in {lang!r}", where="--lang", fix=suggest_nearest(lang, LANGUAGES)
        )
    return escape_controls(load_templates().get_template(template).render(lang=lang, **values))


def to_markdown(pages: Sequence[Document], lang: str = "en") -> str:
    """Return pages as GitHub-flavoured Markdown, one below the other."""
    written = (render_template("page.md.j2", lang, page=page) for page in pages)
    return "\n".join(re.sub(r"\n{3,}", "\n\n", one).strip() + "\n" for one in written)


def to_html(
    pages: Sequence[Document],
    lang: str = "en",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Return pages as one HTML file in all languages; it never asks for another.

    Args:
        lang: which of the languages is shown first.
        progress: called with the charts drawn and all charts, of which each takes a moment.
    """
    charts = [chart for page in pages for chart in page.charts]
    for number, chart in enumerate(charts, start=1):
        for language in LANGUAGES:
            draw_static_picture(chart, language)  # which is remembered
        if progress is not None:
            progress(number, len(charts))
    script = escape_controls(read_shipped_file("report.js"))
    assert "</script" not in script
    digest = b64encode(sha256(script.encode()).digest()).decode()
    script_hash = f"sha256-{digest}"
    bodies = {
        language: [Markup(to_body_html(page, language, ident=f"{language}-")) for page in pages]
        for language in LANGUAGES
    }
    return render_template(
        "page.html.j2", lang, pages=pages, bodies=bodies, script=Markup(script), hash=script_hash
    )


def to_body_html(page: Document, lang: str, *, ident: str = "", live: bool = False) -> str:
    """Return head and sections of a page as HTML, to stand in a document of another.

    Args:
        ident: begins the page's anchors.
        live: a script of that document draws the charts.
    """
    return render_template("body.html.j2", lang, page=page, ident=ident + page.ident, live=live)


def read_shipped_file(name: str) -> str:
    """Return the text of a file of the templates."""
    return files("trainmark.pages").joinpath(f"templates/{name}").read_text(encoding="utf-8")


# The font comes with vl-convert, so that text has the same width on every machine.
_CONFIG: dict[str, Any] = json.loads(read_shipped_file("charts.json"))


def complete_spec(chart: Chart, lang: str, *, with_title: bool = False) -> dict[str, Any]:
    """Return what Vega-Lite draws: a chart's specification with its data and our style."""
    parts = chart.spec | {"datasets": chart.data}
    if with_title:
        parts["title"] = chart.title
    return {**_translate_texts(parts, lang), "config": _CONFIG}


def build_script_chart(chart: Chart, lang: str) -> dict[str, Any]:
    """Return what a page's script draws: Vega-Lite with data, as wide as its place."""
    return complete_spec(chart, lang) | {"width": "container"}


def draw_static_picture(chart: Chart, lang: str) -> Markup:
    """Return the static picture for a page; its colours are variables of the page.

    A picture is drawn once for all languages if they differ only in labels that stand alone:
    drawing takes most of the time of a report.
    """
    labels = _translate_labels([chart.spec, chart.data], lang)
    if lang == LANGUAGES[0] or labels is None:
        return Markup(_draw_svg(_to_script_json(chart, lang)))
    picture = _draw_svg(_to_script_json(chart, LANGUAGES[0]))
    for label, translation in labels.items():
        if f">{label}</text>" not in picture:  # it was cut
            return Markup(_draw_svg(_to_script_json(chart, lang)))
        picture = picture.replace(f">{label}</text>", f">{translation}</text>")
    return Markup(picture)


def _to_script_json(chart: Chart, lang: str) -> str:
    return json.dumps(complete_spec(chart, lang), ensure_ascii=False, allow_nan=False)


@lru_cache(maxsize=1024)
def _draw_svg(spec: str) -> str:
    """Return the picture of a specification with its data; Vega escapes every string."""
    import vl_convert

    picture: str = vl_convert.vegalite_to_svg(spec)
    return picture


def _translate_labels(value: Any, lang: str, key: str = "") -> dict[str, str] | None:
    """Return the translation of each label, as a picture has both; None: their places depend on it.

    A legend of several words has places that depend on how wide they are.
    """
    labels: dict[str, str] = {}
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(str(name), item) for name, item in value.items()]
    elif isinstance(value, list):
        items = [(key, item) for item in value]
    elif value is not None and not isinstance(value, str | int | float):
        first, other = (
            escape(translate(value, language), quote=False) for language in (LANGUAGES[0], lang)
        )
        if first != other and key not in _ALONE:
            return None
        return {first: other} if first != other else {}
    for name, item in items:
        below = _translate_labels(item, lang, name)
        if below is None:
            return None
        labels |= below
    return labels


@cache
def build_chart_script() -> str:
    """Return the script that draws a page's charts: Vega, Vega-Lite and ``charts.js``.

    It loads nothing else and evaluates no text as code.
    """
    import vl_convert

    made: str = vl_convert.javascript_bundle(read_shipped_file("charts.js"))
    return f'(() => {{"use strict";{made}}})();\n'  # a module's names are its own


def _translate_texts(value: Any, lang: str, key: str = "") -> Any:
    """Return what stands under ``key`` with its phrases as text that Vega takes.

    Control characters are shown as text; Vega-Lite
    puts titles into expressions and escapes quotation marks only: a backslash before one would end
    the string there, and what follows would be evaluated.
    """
    if isinstance(value, dict):
        return {
            escape_controls(name): _translate_texts(item, lang, name)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_translate_texts(item, lang, key) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    shown = escape_controls(translate(value, lang))
    return shown.replace("\n", " ").replace("\\", "\u2216") if key == "title" else shown
