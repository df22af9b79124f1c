"""Measure and wrap text in columns of characters, of which a Chinese character takes two.

Imports nothing heavy: ``--help`` starts with it.
"""

from __future__ import annotations

import re

_WIDE = "\u2e80-\uffef"  # Chinese characters and punctuation
# A word, or one Chinese character with the punctuation that must not be parted from it.
# Compiled at its first use: compiling it takes milliseconds of every start of the command line.
_TOKEN = rf"\s+|[（“《]*[{_WIDE}][，。；：、）！？”》]*|[^\s{_WIDE}]+"


def measure_width(text: str) -> int:
    """Return the columns that a text takes on a terminal; two for a Chinese character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # takes time, which an ASCII text does not need

    return cell_len(text)


def measure_longest_word(text: str) -> int:
    """Return the columns of the longest part of a text that ``wrap`` keeps on one line."""
    words = (token for token in re.findall(_TOKEN, text) if not token.isspace())
    return max(map(measure_width, words), default=0)


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines; a line ends inside a word only if the word is wider than ``width``.

    A line may also end between Chinese characters.
    """
    lines: list[str] = []
    line = ""
    blank = ""  # between the line and the next token
    for token in re.findall(_TOKEN, text):  # words, blanks between them, single Chinese characters
        if token.isspace():
            blank = " " if line else ""
            continue
        if line and measure_width(line + blank + token) > width:
            lines.append(line)
            line = ""
            blank = ""
        line += blank + token
        blank = ""
        while measure_width(line) > width and len(line) > 1:  # a word wider than the screen
            end = _count_fitting_characters(line, width)
            lines.append(line[:end])
            line = line[end:]
    return [*lines, line]


def _count_fitting_characters(text: str, width: int) -> int:
    """Return how many characters of a text fit into ``width`` columns, one at least."""
    end = 1
    while end < len(text) and measure_width(text[: end + 1]) <= width:
        end += 1
    return end
