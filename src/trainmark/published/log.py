"""The lines of a log, and which text in them is a number.

Owns what counts as a number, for tables of others too.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

STDIN = "-"
# A part is taken whole or is not there, so `1` is no number in `1.-5`: Python 3.10 has no atomic
# groups.
_EXPONENT = r"(?:[eE][+-]?[0-9]+(?![0-9])|(?![eE][+-]?[0-9]))"
_FRACTION = rf"(?:\.[0-9]*(?![0-9])|(?!\.)){_EXPONENT}"
DIGITS = rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]+(?![0-9])){_FRACTION}"
_OTHERS = rf"\.[0-9]+(?![0-9]){_EXPONENT}|(?i:nan|inf(?:inity)?)(?![A-Za-z_])"
# Dates, versions, clock times and decimal commas begin like a number but are not one. Neither is
# what the end of the log cuts: a character must follow.
NUMBER = rf"(?!0[xX])[+-]?(?:{DIGITS}|{_OTHERS})(?![:.\-_,]?[0-9])(?=.)"
# Some trainers print 1.73M for 1,730,000. A lower-case m stands for minutes or milli.
MAGNITUDE = r"[kKMGB](?![A-Za-z])"
OPENING = " \t:='\"(["  # what may stand between a keyword and its number
_MAGNITUDES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def parse_number(text: str, magnitude: str | None = None) -> float:
    """Return the number that ``NUMBER`` matched, times what ``MAGNITUDE`` behind it stands for."""
    number = float(text.replace(",", ""))
    return number * _MAGNITUDES[magnitude] if magnitude else number


def make_keyword_pattern(keyword: str) -> str:
    """Return the pattern of a whole word: ``ips:`` is not in ``avg_ips:``."""
    return (r"(?<!\w)" if keyword[0].isalnum() else "") + re.escape(keyword)


def make_number_pattern(keyword: str) -> str:
    """Return the pattern of the number behind a keyword, and of its magnitude."""
    repeat = "+" if keyword[-1].isalnum() else "*"
    opening = f"[{re.escape(OPENING)}]{repeat}"
    return f"{make_keyword_pattern(keyword)}{opening}({NUMBER})({MAGNITUDE})?"


def read_numbered_lines(log: str) -> Iterator[tuple[int, str]]:
    r"""Yield the text of ``log``, plain or gzip, without colours, with the numbers of its lines.

    Lines end with ``\n`` or ``\r\n``, so that their numbers are those of an editor. A progress bar
    draws itself anew after a bare ``\r``: each of its states is yielded alone, under the number of
    the one line that holds them all.

    Args:
        log: a path; ``-`` is standard input.

    Raises:
        DataError: for a log that cannot be opened or is damaged.
    """
    try:
        raw: Any
        with sys.stdin.buffer if log == STDIN else Path(log).open("rb") as raw:
            is_packed = raw.peek(2)[:2] == b"\x1f\x8b"
            data: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
            number = 1
            with io.TextIOWrapper(data, "utf-8-sig", "replace", newline="") as text:
                for part in text:
                    yield number, _COLOURS.sub("", part) if "\x1b" in part else part
                    if part.endswith("\n"):
                        number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"damaged gzip data: {error}", where=log) from error
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=log) from error
