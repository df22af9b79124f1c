"""What counts as a number in a log, and how a rule finds it in a line.

Owns the grammar of values and the rule's options. Must not know blocks or files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trainmark.errors import UsageError

LARGEST_COUNT = 10**15  # of devices, steps or words: below it floats count exactly
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_DIGITS = rf"\d+(?:\.\d*)?{_EXPONENT}"
_OTHERS = rf"\.\d+{_EXPONENT}|(?i:nan|inf(?:inity)?)(?![A-Za-z_])"
_THOUSANDS = r"\d{1,3}(?:,\d{3})+(?:\.\d*)?(?!\d)|"
_OPENING = r"\s:='\"(\["


def _grammar(separator: str) -> tuple[str, str]:
    """Return the pattern of a number and what must not follow it.

    The leading number of a word counts, so that units may be glued to it. Dates, versions,
    clock times and decimal commas begin with digits too: those are refused, not cut.
    """
    comma = "," not in separator
    number = rf"(?!0[xX])[+-]?(?:{_THOUSANDS if comma else ''}{_DIGITS}|{_OTHERS})"
    return rf"(?>{number})", rf"(?![:.\-_{',' if comma else ''}]?\d)"


@dataclass(frozen=True)
class Rule:
    """Which word of which line is the value.

    Args:
        keyword: a line counts when it holds this text.
        separator: what words stand between; empty: white space.
        position: the word's place in the line, from 0, from the end if negative; none: the
            word after the keyword.
        whole: a keyword inside another word does not count.
        cut: which characters of the word count, ``N`` or ``A:B``; empty: all.

    Raises:
        UsageError: for an empty keyword or a cut of another form.
    """

    keyword: str
    separator: str = ""
    position: int | None = None
    cut: str = ""
    whole: bool = False
    _slice: slice = field(init=False, repr=False)
    _number: re.Pattern[str] = field(init=False, repr=False)
    _word: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.keyword or "\n" in self.keyword:
            remedy = "give --keyword TEXT, as in the log, or --preset auto"
            raise UsageError("no keyword to look for", where="--keyword", remedy=remedy)
        number, ahead = _grammar(self.separator)
        spaces = re.escape(self.separator.strip())
        stop = rf"\s{re.escape(self.separator)}"
        object.__setattr__(self, "_slice", _slice(self.cut))
        object.__setattr__(self, "_number", re.compile(rf"[{_OPENING}]*({number}){ahead}"))
        object.__setattr__(self, "_word", re.compile(rf"{self._gap(spaces)}([^{stop}]*)"))

    def _gap(self, more: str) -> str:
        """Return what may stand between keyword and value: something, after a letter."""
        last = self.keyword[-1]
        return rf"[{_OPENING}{more}]{'+' if last.isalnum() or last == '_' else '*'}"

    @property
    def plain(self) -> re.Pattern[bytes] | None:
        """Pattern of a matching line from its first keyword on; none: words decide.

        Group 1 is the value where the line is plain: the keyword stands alone and a number
        without commas follows. Else it is empty, and ``value`` must look at the line. The
        pattern begins with the keyword's own bytes, so that the search for it is fast.
        """
        if self.position is not None or self.cut:
            return None
        key = re.escape(self.keyword.encode())
        gap = self._gap(re.escape(self.separator.strip())).replace(r"\s", r" \t").encode()
        number = rf"(?>[+-]?{_DIGITS})".encode()
        ahead = (_grammar(self.separator)[1] + "(?![xX])").encode()
        alone = rb"(?<![0-9A-Za-z_\x80-\xff]" + key + rb")"
        return re.compile(
            key + rb"(?:" + alone + gap + rb"(" + number + rb")" + ahead + rb")?[^\n]*"
        )

    def value(self, line: str) -> tuple[float, str] | None:
        """Return the number the rule means and the word it stands in; none: there is none.

        The keyword as a word of its own goes before one inside another word, ``ips:``
        before ``avg_ips:``; of several the first that a number follows.
        """
        if self.position is not None:
            enough = self.position + 1 if self.position >= 0 else -1
            words = line.strip().split(self.separator or None, enough)
            if not -len(words) <= self.position < len(words):
                return None
            return self._parse(words[self.position])
        alone = False
        for found in re.finditer(re.escape(self.keyword), line):
            if not _in_word(line, found.start()):
                alone = True
                if value := self._behind(line, found.end()):
                    return value
        if alone or self.whole:
            return None
        places = re.finditer(re.escape(self.keyword), line)  # anew: lines may hold millions
        return next(filter(None, (self._behind(line, found.end()) for found in places)), None)

    def _behind(self, line: str, end: int) -> tuple[float, str] | None:
        word = self._word.match(line, end)
        return self._parse(word[1]) if word else None

    def _parse(self, word: str) -> tuple[float, str] | None:
        found = self._number.match(word[self._slice])
        return (float(found[1].replace(",", "")), word) if found else None


def _in_word(line: str, at: int) -> bool:
    return at > 0 and (line[at - 1].isalnum() or line[at - 1] == "_")


def _slice(cut: str) -> slice:
    found = re.fullmatch(r"(?:(-?\d*):)?(-?\d*)", cut)
    try:
        ends = [int(part) if part else None for part in found.groups()] if found else None
    except ValueError:
        ends = None
    if ends is None:
        rule = "N for the first N characters, or A:B as Python cuts"
        raise UsageError(f"cannot cut by {cut!r}", where="--range", rule=rule)
    return slice(*ends)
