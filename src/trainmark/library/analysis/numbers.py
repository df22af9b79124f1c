"""What counts as a number in logs and tables, and how a rule finds it in a line."""

from __future__ import annotations

import re
from typing import Final

from trainmark.errors import UsageError

_THOUSANDS = r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|"
_FRACTION = r"(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"
DIGITS = rf"(?:{_THOUSANDS}[0-9]+){_FRACTION}"
_OTHERS = r"\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?i:nan|inf(?:inity)?)(?![A-Za-z_])"
_OPENING = r"\s:='\"(\["


class Rule:
    """Which word of which line is the value.

    The leading number of the word counts, so that units may be glued to it. Dates, versions,
    clock times and decimal commas begin with digits too: those are refused, not cut.

    Args:
        keyword: a line counts when it holds this text.
        separator: what words stand between; empty: white space.
        position: the word's place in the line, from 0, from the end if negative; None: the
            word after the keyword.
        cut: which characters of the word count, ``N`` or ``A:B``; empty: all.
        whole: a keyword inside another word does not count.

    Raises:
        UsageError: for an empty keyword or a cut of another form.
    """

    def __init__(
        self,
        keyword: str,
        separator: str = "",
        position: int | None = None,
        cut: str = "",
        *,
        whole: bool = False,
    ) -> None:
        if not keyword or "\n" in keyword:
            remedy = "give keyword=TEXT, as in the log, or preset=auto"
            raise UsageError("no keyword to look for", where="keyword", remedy=remedy)
        self.keyword: Final = keyword
        self._separator, self._position, self._whole = separator, position, whole
        self._slice = _slice(cut)
        comma = "," not in separator
        digits = DIGITS if comma else rf"[0-9]+{_FRACTION}"
        number = rf"(?>(?!0[xX])[+-]?(?:{digits}|{_OTHERS}))"
        ahead = rf"(?![:.\-_{',' if comma else ''}]?\d)"
        self._number = re.compile(rf"[{_OPENING}]*({number}){ahead}")
        # Between keyword and value: something, after a letter.
        gap = rf"[{_OPENING}{re.escape(separator.strip())}]{'+' if _letter(keyword[-1]) else '*'}"
        self._word = re.compile(rf"{gap}([^\s{re.escape(separator)}]*)")

    def value(self, line: str) -> float | None:
        """Return the number that the rule means; None: there is none, or the end of it is cut.

        The keyword as a word of its own goes before one inside another word, ``ips:``
        before ``avg_ips:``; of several the first that a number follows.
        """
        if self._position is not None:
            words = line.strip().split(self._separator or None)
            inside = -len(words) <= self._position < len(words)
            return self._parse(words[self._position], line) if inside else None
        places = [found.start() for found in re.finditer(re.escape(self.keyword), line)]
        alone = [at for at in places if at == 0 or not _letter(line[at - 1])]
        for at in alone or (places if not self._whole else ()):
            word = self._word.match(line, at + len(self.keyword))
            if word and (value := self._parse(word[1], line)) is not None:
                return value
        return None

    def _parse(self, word: str, line: str) -> float | None:
        if not line.endswith("\n") and line.endswith(word):  # more of it may be missing
            return None
        found = self._number.match(word[self._slice])
        return float(found[1].replace(",", "")) if found else None


def _letter(character: str) -> bool:
    return character.isalnum() or character == "_"


def _slice(cut: str) -> slice:
    found = re.fullmatch(r"(?:(-?\d{0,9}):)?(-?\d{0,9})", cut)
    ends = found.groups() if found else ("-",)
    if "-" in ends:
        rule = "N for the first N characters, or A:B as Python cuts"
        raise UsageError(f"cannot cut by {cut!r}", where="range", rule=rule)
    return slice(*(int(end) if end else None for end in ends))
