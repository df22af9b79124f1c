"""Templates of the site, and the files that every page loads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError, escaped
from trainmark.pages.texts import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Environment

    from trainmark.pages.site.links import Links

_STATIC = Path(__file__).with_name("static")
# ``charts``: the page has some, which its script draws.
_USUAL = {"charts": False, "here": "", "static": False, "live": True}
_TONES = {"error": "bad", "warning": "warn", "note": "plain"}
# Columns of runs that hold numbers.
NUMBERS = ("world", "p_train", "p_core", "MFU", "mem", "quality_value")
FILES = ("site.css", "site.js", "charts.js", "icon.svg")


@cache
def _templates() -> Environment:
    from jinja2 import ChoiceLoader, PackageLoader

    from trainmark.pages.page import templates

    report = templates()
    assert report.loader is not None
    loaders = [PackageLoader("trainmark.pages.site"), report.loader]
    made = report.overlay(loader=ChoiceLoader(loaders))
    made.globals = made.globals | {"tones": _TONES, "numbers": NUMBERS}
    return made


def rendered(template: str, links: Links, address: Callable[[Links], str], **values: Any) -> str:
    """Return a page.

    Args:
        address: of this page, by the links of a language.
    """
    asked = {one.lang: replace(one, asked=not links.static) for one in (links, links.other)}
    translations = [(lang, address(asked[lang])) for lang in LANGUAGES]
    page = _templates().get_template(f"{template}.html.j2")
    values = _USUAL | {"page": {"lang": links.lang, "ident": ""}} | values
    return escaped(page.render(links=links, translations=translations, **values))


@cache
def file(name: str) -> str:
    """Return the text of a style sheet or script.

    Raises:
        UsageError: no such file.
    """
    if name not in FILES:
        raise UsageError(f"no file {name!r}", rule=f"files are {', '.join(FILES)}")
    if name == "charts.js":
        from trainmark.pages.drawing import scripts

        return scripts()
    from trainmark.pages.embedding import shipped

    text = (_STATIC / name).read_text(encoding="utf-8")
    return shipped("base.css") + text if name == "site.css" else text
