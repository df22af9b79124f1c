"""Turn documents into Markdown and HTML by templates, with charts drawn by Vega.

Text from records is escaped here: by autoescape in HTML, by a filter in Markdown. Charts use the
colours of ``templates/base.css``, so that light, dark and print need no script. The same chart
gives the same bytes with the same version of vl-convert and of the fonts.
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

# Keys of labels that stand alone: their width moves no other part of the chart.
_STANDALONE_KEYS = ("title", "label")
_LANGUAGE_TAGS = {"en": "en", "zh": "zh-Hans"}  # as the attribute `lang` of HTML has them


@cache
def load_templates() -> Environment:
    """Return the environment of the Jinja templates, with its filters, tests and functions.

    A template is rendered in a language, ``lang``. The filters ``translate`` and ``md`` translate a
    phrase, a text that has several languages, into it: ``translate`` on one line, and ``md`` with
    the characters escaped that Markdown would interpret. ``translate_in`` translates into the
    language that is its argument, and keeps the line breaks. ``fence`` gives a row of backticks
    that begins and ends a block of code in Markdown, long enough that the code has no such row.

    The tests tell what a cell of a table is: the text of a number, ``missing`` (a value that is not
    known, with the reason), or a link.
    """
    # Imported here, because commands without pages must not wait for it.
    from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context

    environment = Environment(
        loader=PackageLoader("trainmark.pages"),
        # Markdown escapes by its own filter. Everything else is HTML or goes into HTML, also a
        # template that has no name because it was made from a string; or it is XML, in which the
        # same characters are escaped in the same way.
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
    # For the filter `tojson`: the shortest JSON, with Chinese characters as they are.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.tests["numeric"] = cells.is_number
    environment.tests["missing"] = lambda cell: isinstance(cell, Missing)
    environment.tests["link"] = lambda cell: isinstance(cell, Link)
    environment.globals |= {
        "phrase": phrase,
        "tags": _LANGUAGE_TAGS,  # by our name of a language, its name in HTML
        "draw_static_picture": draw_static_picture,
        "build_script_chart": build_script_chart,
    }
    return environment


def render_template(template: str, lang: str, **values: Any) -> str:
    """Return a template filled in a language.

    Args:
        template: its file name, such as ``page.md.j2``.
        lang: the language, such as ``en``.
        values: variables that the template uses.

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
    texts = []
    for page in pages:
        text = render_template("page.md.j2", lang, page=page)
        # Blocks without content leave several empty lines.
        texts.append(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")
    return "\n".join(texts)


def to_html(
    pages: Sequence[Document],
    lang: str = "en",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Return pages as one HTML file in all languages, which loads no other file.

    Args:
        lang: the language that is shown first.
        progress: called after each chart with the number of charts drawn and of all charts.
    """
    charts = [chart for page in pages for chart in page.charts]
    for number, chart in enumerate(charts, start=1):
        for language in LANGUAGES:
            draw_static_picture(chart, language)  # the picture is cached for the template
        if progress is not None:
            progress(number, len(charts))
    # ``render_template`` escapes the whole page. The digest must be that of the escaped script.
    script = escape_controls(read_shipped_file("report.js"))
    assert "</script" not in script, "it would end the element that has the script"
    digest = b64encode(sha256(script.encode()).digest()).decode()
    script_hash = f"sha256-{digest}"  # the security policy of the page allows no other script
    bodies = {
        language: [
            Markup(to_body_html(page, language, anchor_prefix=f"{language}-")) for page in pages
        ]
        for language in LANGUAGES
    }
    return render_template(
        "page.html.j2", lang, pages=pages, bodies=bodies, script=Markup(script), hash=script_hash
    )


def to_body_html(
    page: Document, lang: str, *, anchor_prefix: str = "", script_draws_charts: bool = False
) -> str:
    """Return head and sections of a page as HTML, to be inserted into an HTML document.

    Args:
        anchor_prefix: begins the page's anchors, before the page's own prefix.
        script_draws_charts: whether a script of that document draws the charts; else they are
            static pictures.
    """
    return render_template(
        "body.html.j2",
        lang,
        page=page,
        anchor_prefix=anchor_prefix + page.anchor_prefix,
        script_draws_charts=script_draws_charts,
    )


def read_shipped_file(name: str) -> str:
    """Return the text of a file of the templates."""
    return files("trainmark.pages").joinpath(f"templates/{name}").read_text(encoding="utf-8")


# The font comes with vl-convert, so that text has the same width on every machine.
_CONFIG: dict[str, Any] = json.loads(read_shipped_file("charts.json"))


def complete_spec(chart: Chart, lang: str, *, with_title: bool = False) -> dict[str, Any]:
    """Return a chart's specification for Vega-Lite, with its data and our style, in a language.

    Args:
        chart: its specification names datasets; its data are these datasets by name.
        with_title: draw the title into the picture, for a file of its own; a page has the title
            above the picture.
    """
    parts = chart.spec | {"datasets": chart.data}
    if with_title:
        parts["title"] = chart.title
    return {**_translate_texts(parts, lang), "config": _CONFIG}  # the style of all charts


def build_script_chart(chart: Chart, lang: str) -> dict[str, Any]:
    """Return the specification that a page's script draws, as wide as the space for it."""
    return complete_spec(chart, lang) | {"width": "container"}


def draw_static_picture(chart: Chart, lang: str) -> Markup:
    """Return the static picture for a page as SVG; its colours are variables of the page.

    A label stands alone if no other part of the picture depends on its width, such as the title of
    an axis. If languages differ only in such labels, the picture is drawn once, in the first
    language, and the labels are replaced in it: drawing takes most of the time of a report.
    """
    # Labels in the first language with their translations; None: a label does not stand alone.
    labels = _find_standalone_labels([chart.spec, chart.data], lang)
    if lang == LANGUAGES[0] or labels is None:
        return Markup(_draw_svg(_to_spec_json(chart, lang)))
    picture = _draw_svg(_to_spec_json(chart, LANGUAGES[0]))
    for label, translation in labels.items():
        if f">{label}</text>" not in picture:  # Vega has shortened the label to fit its place
            return Markup(_draw_svg(_to_spec_json(chart, lang)))
        picture = picture.replace(f">{label}</text>", f">{translation}</text>")
    return Markup(picture)


def _to_spec_json(chart: Chart, lang: str) -> str:
    """Return a chart's specification as JSON."""
    return json.dumps(complete_spec(chart, lang), ensure_ascii=False, allow_nan=False)


@lru_cache(maxsize=1024)
def _draw_svg(spec: str) -> str:
    """Return the picture of a specification as SVG; Vega escapes every string.

    Args:
        spec: specification for Vega-Lite with its data, as JSON text.
    """
    import vl_convert  # an optional package, which only charts need

    picture: str = vl_convert.vegalite_to_svg(spec)
    return picture


def _find_standalone_labels(value: Any, lang: str, key: str = "") -> dict[str, str] | None:
    """Return labels in the first language with their translations, escaped as in an SVG picture.

    A label is a phrase, which has a text in each language. It stands alone if no other part of the
    picture depends on its width. None if a label whose text differs between the languages does not
    stand alone, as in a legend of several words.

    Args:
        value: a part of a chart's specification or data.
        lang: the language of the translations.
        key: the key of the part in the dictionary that contains it, directly or as an item of a
            list. Labels under the keys in ``_STANDALONE_KEYS`` stand alone.
    """
    if isinstance(value, dict):
        items = [(str(name), item) for name, item in value.items()]
    elif isinstance(value, list):
        items = [(key, item) for item in value]
    elif value is None or isinstance(value, str | int | float):
        return {}  # the same in all languages
    else:  # a phrase, which is a label
        label = escape(translate(value, LANGUAGES[0]), quote=False)
        translation = escape(translate(value, lang), quote=False)
        if label == translation:
            return {}
        return {label: translation} if key in _STANDALONE_KEYS else None
    labels: dict[str, str] = {}
    for name, item in items:
        item_labels = _find_standalone_labels(item, lang, name)
        if item_labels is None:
            return None
        labels |= item_labels
    return labels


@cache
def build_chart_script() -> str:
    """Return the script that draws a page's charts: Vega, Vega-Lite and ``charts.js``.

    It loads nothing else and evaluates no text as code.
    """
    import vl_convert  # an optional package, which only charts need

    bundle: str = vl_convert.javascript_bundle(read_shipped_file("charts.js"))
    # In a function of its own, so that its names are not global.
    return f'(() => {{"use strict";{bundle}}})();\n'


def _translate_texts(value: Any, lang: str, key: str = "") -> Any:
    """Return a part of a specification with its phrases as text that is safe for Vega.

    Control characters are escaped. Vega-Lite puts titles into expressions and escapes only
    quotation marks in them: a backslash before one would end the string, and what follows would be
    evaluated. So backslashes in titles are replaced by a similar character, and line feeds by
    spaces.

    Args:
        value: a part of a specification with data. It has dictionaries, lists and numbers as in
            JSON; all else is a phrase, which is a plain text or one in several languages.
        key: the key of the part in the dictionary that contains it, directly or as an item of a
            list.
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
    text = escape_controls(translate(value, lang))
    if key == "title":
        text = text.replace("\n", " ").replace("\\", "\u2216")
    return text
