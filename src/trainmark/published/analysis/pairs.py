"""Find the numbers in a line, each with its key before it and the unit behind it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from trainmark.published.analysis.quantities import UNIT
from trainmark.published.log import MAGNITUDE, NUMBER, parse_number

# The part of a line that is searched. No trainer prints longer lines; other files may be one line
# of many megabytes, which would take minutes.
_MAX_CHARACTERS = 20_000
# A key is up to eight words. It may count: `Eval Time for 681 iters`, `Total img/sec on 8 GPU(s)`.
_WORD = r"[^\W\d][\w.%&+/-]{0,60}"
_COUNTED = r"[0-9]+k? ?(?:iters|iterations|its|steps|batches|GPUs?|devices|chips|nodes|ranks)(?!\w)"
_IN_BRACKETS = r"(?: ?\([^()\n]{1,40}\))"
_WORDS = rf"(?:{_COUNTED} )?{_WORD}(?: (?:#?{_WORD}|{_COUNTED})){{0,7}}{_IN_BRACKETS}?"
_KEY = rf"(?<![\w.])(?P<key>{_WORDS})"
_SEPARATOR = (
    r"(?:['\"]?[ \t]*[:=：][ \t]*['\"(\[]{0,2}[ \t]*"
    r"|['\"]?[ \t]+[#'\"(\[]?[ \t]*|[ \t]*\[[ \t]*)"
)
_BEHIND = rf"(?P<magnitude>{MAGNITUDE})?(?P<unit> ?{UNIT})?(?P<total>[ \t]*/[ \t]*[0-9]+(?![\w.]))?"
_PAIR = re.compile(
    rf"(?:{_KEY}{_SEPARATOR})(?P<number>{NUMBER}){_BEHIND}"
    rf"|(?<![\w.,:])(?P<bare>{NUMBER})(?P<bare_magnitude>{MAGNITUDE})?(?P<bare_unit> ?{UNIT})",
    re.ASCII | re.DOTALL,
)
_FOLLOWING = re.compile(r" ?([A-Za-z%/]+)(?![A-Za-z%/]|['\"]?[ \t]*[:=])")
_LEVEL = re.compile(r"^(?:INFO|DEBUG|WARN|WARNING|ERROR|CRITICAL|TRACE) +")


class Pair(NamedTuple):
    """A number in a line.

    Args:
        key: the text before it, without level and separators; empty: its unit says what it is.
        text: the number as printed.
        magnitude: ``K`` of ``1.2K``; empty: there is none.
        unit: the unit of time or rate behind it; empty: none that is known.
        following: the word behind it.
        total: of ``120/149`` the second number; 0: there is none.
        start: place of the number in the line.
    """

    key: str
    text: str
    magnitude: str
    unit: str
    following: str
    total: int
    start: int

    @property
    def value(self) -> float:
        """The number, which may be infinite or not a number.

        The magnitude is a letter behind it that multiplies it, ``K`` of ``1.2K``, or empty.
        """
        return parse_number(self.text, self.magnitude)


@lru_cache(maxsize=4096)
def _clean_key(text: str) -> str:
    """Return a key without the log level before it, such as ``INFO``, and with single spaces."""
    return " ".join(_LEVEL.sub("", text).split())


def find_pairs(line: str) -> list[Pair]:
    """Return the numbers of a line that have a key or a unit, from left to right.

    The key is the text before the number. The magnitude is a letter behind it, ``K`` of ``1.2K``.
    """
    pairs = []
    searched_text = line[:_MAX_CHARACTERS]
    for match in _PAIR.finditer(searched_text):
        # The second alternative of the pattern is a number without a key, whose known unit says
        # what it is. The groups of this alternative begin with ``bare``.
        if match["key"] is None:
            unit = match["bare_unit"].strip()
            pairs.append(
                Pair(
                    key="",
                    text=match["bare"],
                    magnitude=match["bare_magnitude"] or "",
                    unit=unit,
                    following=unit,
                    total=0,
                    start=match.start("bare"),
                )
            )
            continue
        end = match.end("magnitude") if match["magnitude"] else match.end("number")
        # The word behind the number, a unit or not.
        following = _FOLLOWING.match(searched_text, end)
        pairs.append(
            Pair(
                key=_clean_key(match["key"]),
                text=match["number"],
                magnitude=match["magnitude"] or "",
                unit=(match["unit"] or "").strip(),
                following=following[1] if following else "",
                # 500 of `step 3/500`; 0: there is none.
                total=int(match["total"].strip().lstrip("/")) if match["total"] else 0,
                start=match.start("number"),
            )
        )
    return pairs
