"""Chinese texts of TOML files: full-width punctuation, one rule for spaces.

The rule: one space between Chinese and Latin letters or digits, none beside full-width
punctuation. Words that the founding pages print themselves stand as they print them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainmark
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(trainmark.__file__).parent
HAN = "[\u4e00-\u9fff]"
FULL = "[，。；：！？、（）《》“”‘’]"
# As the founding pages print them.
FOUNDING_TERMS = re.compile(
    r"OS版本|OS kernel版本|CPU型号|单位为GiB|简写为(LBS|MPE|GAS)"
    r"|(运行时长|性能|收敛精度)\([a-zA-Z/]+\)|(收敛|目标)val_loss|(Steps|epoch)数"  # headers
    rf"|(?:[A-Za-z0-9]{HAN}*)?(单|两|四|八|\d+)机(单|\d+)(卡|进程)"  # A100单机8卡
)
FOREIGN_TEXTS_FILE = "columns.toml"  # headers and marks of other people's pages, as they print them
VALUE_STAND_IN = (
    "\ufffc"  # stands for a value: Chinese, Latin or a number, so nothing is asked beside it
)
TYPOGRAPHY_FAULT = re.compile(
    rf"{HAN} ?[,;:!?()'\"]|[,;:!?()'\"] ?{HAN}|{HAN}\.|{HAN}[A-Za-z0-9`]|[A-Za-z0-9`%]{HAN}"
    rf"| {FULL}|{FULL} |{HAN} +{HAN}|\S  +\S"
)


def iterate_strings(value: Any) -> Iterator[str]:
    """Yield the strings of a TOML document that are ours.

    In the published rows of a case, ``cells`` and ``configuration``, the name of a row, are as
    others printed them.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("cells", "configuration"):
                yield from iterate_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from iterate_strings(item)


def list_faulty_texts(texts: list[str]) -> list[str]:
    """Return Chinese texts with half-width punctuation, or with a wrong or a missing space.

    Placeholders and terms of the founding documents may stand beside anything: both are replaced
    by ``VALUE_STAND_IN``, a character that no rule looks at. ``FOUNDING_TERMS`` matches terms that
    those documents print without spaces, ``HAN`` a Chinese character, and ``TYPOGRAPHY_FAULT`` what
    is wrong, such as a comma of ASCII or a Latin letter right behind a Chinese character.
    """
    plain_texts = {
        text: re.sub(r"\{[^{}]*\}", VALUE_STAND_IN, FOUNDING_TERMS.sub(VALUE_STAND_IN, text))
        for text in texts
    }
    return [
        text
        for text, plain_text in plain_texts.items()
        if re.search(HAN, text) and TYPOGRAPHY_FAULT.search(plain_text)
    ]


def test_chinese_texts_follow_one_typographic_rule() -> None:
    """Chinese has full-width punctuation, and a space between it and Latin letters or numbers.

    ``list_faulty_texts`` returns the texts that break this rule; it ignores texts without Chinese.
    """
    # ``SOURCE``: the folder of the package, whose texts are in TOML files. ``FOREIGN_TEXTS_FILE``
    # has headers of other people's pages, which are as they print them.
    paths = [path for path in SOURCE.rglob("*.toml") if path.name != FOREIGN_TEXTS_FILE]
    texts = [text for path in paths for text in iterate_strings(read_toml(path))]
    assert len(texts) > 300  # or the search found no texts
    assert list_faulty_texts(texts) == []
