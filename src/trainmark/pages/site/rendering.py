"""Templates of the site, and the files that every page loads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.pages.charts import drawing
from trainmark.pages.rendering import rendered as filled
from trainmark.pages.rendering import shipped
from trainmark.pages.texts import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.pages.site.links import Links

_STATIC = Path(__file__).with_name("static")
# ``charts``: the page has some, which its script draws.
_USUAL = {"charts": False, "here": "", "static": False, "live": True, "ident": ""}
_TONES = {"error": "bad", "warning": "warn", "note": "plain"}
# Columns of runs that hold numbers.
NUMBERS = ("world", "p_train", "p_core", "MFU", "mem", "quality_value")
FILES = ("site.css", "site.js", "charts.js", "icon.svg")


def rendered(template: str, links: Links, address: Callable[[Links], str], **values: Any) -> str:
    """Return a page.

    Args:
        address: of this page, by the links of a language.
    """
    asked = {one.lang: replace(one, asked=not links.static) for one in (links, links.other)}
    translations = [(lang, address(asked[lang])) for lang in LANGUAGES]
    told = {"numbers": NUMBERS, "finding_tones": _TONES, "translations": translations}
    return filled(f"site/{template}.html.j2", links.lang, links=links, **(_USUAL | told | values))


@cache
def file(name: str) -> str:
    """Return the text of a style sheet or script.

    Raises:
        UsageError: no such file.
    """
    if name not in FILES:
        raise UsageError(f"no file {name!r}", rule=f"files are {', '.join(FILES)}")
    if name == "charts.js":
        return drawing.script()
    text = (_STATIC / name).read_text(encoding="utf-8")
    return shipped("base.css") + text if name == "site.css" else text
