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
_GZIP_MAGIC = b"\x1f\x8b"  # the first bytes of every gzip file
# Each part of a number has a look-ahead behind it or instead of it, so that the pattern cannot
# match only the beginning of a part: the `1` of `1.-5` is not a number. Atomic groups would do the
# same, but Python 3.10 lacks them.
_EXPONENT = r"(?:[eE][+-]?[0-9]+(?![0-9])|(?![eE][+-]?[0-9]))"
_FRACTION = rf"(?:\.[0-9]*(?![0-9])|(?!\.)){_EXPONENT}"
DIGITS = rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]+(?![0-9])){_FRACTION}"
_OTHERS = rf"\.[0-9]+(?![0-9]){_EXPONENT}|(?i:nan|inf(?:inity)?)(?![A-Za-z_])"
# Dates, versions, clock times and decimal commas begin like a number but are not one. A character
# must follow, because the end of a log may have cut off the other digits of a number.
NUMBER = rf"(?!0[xX])[+-]?(?:{DIGITS}|{_OTHERS})(?![:.\-_,]?[0-9])(?=.)"
# Some trainers print 1.73M for 1,730,000. A lower-case m stands for minutes or milli.
MAGNITUDE = r"[kKMGB](?![A-Za-z])"
OPENING = " \t:='\"(["  # what may stand between a keyword and its number
_MAGNITUDES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def parse_number(text: str, magnitude: str | None = None) -> float:
    """Return the value of a printed number: 1,200,000 for ``1,200`` and the magnitude ``k``.

    Args:
        text: what the pattern ``NUMBER`` matches; commas separate thousands.
        magnitude: what the pattern ``MAGNITUDE`` matches behind it, such as ``k`` or ``M``; None or
            empty: nothing.
    """
    number = float(text.replace(",", ""))
    return number * _MAGNITUDES[magnitude] if magnitude else number


def make_keyword_pattern(keyword: str) -> str:
    """Return the pattern of a keyword that begins a word: ``ips:`` is not in ``avg_ips:``.

    The keyword may end within a word: a user who does not want that adds its end, such as a colon.
    """
    word_start = r"(?<!\w)" if keyword[0].isalnum() else ""
    return word_start + re.escape(keyword)


def make_number_pattern(keyword: str) -> str:
    """Return the pattern of a keyword and the number behind it: ``loss: 1.2k``.

    Its groups are the number and its magnitude, ``k`` of ``1.2k``, which may be missing.
    """
    # ``OPENING`` has the separators of keyword and number: spaces, colons, brackets … At least one
    # must follow a letter or digit, because `loss2` is not the loss 2; none need follow `loss=`.
    repeat = "+" if keyword[-1].isalnum() else "*"
    opening = f"[{re.escape(OPENING)}]{repeat}"
    return f"{make_keyword_pattern(keyword)}{opening}({NUMBER})({MAGNITUDE})?"


def describe_value_count(number: int) -> str:
    """Return ``1 value`` or, for example, ``5 values``."""
    return "1 value" if number == 1 else f"{number} values"


def require_log(log: str) -> None:
    """Refuse a log that does not exist. It is not opened: a pipe can be read only once.

    Args:
        log: a path; ``-`` is standard input.

    Raises:
        DataError: there is no such file.
    """
    if log == STDIN:
        return
    try:
        Path(log).stat()
    except OSError as error:
        raise _make_read_error(log, error) from error


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
            # Only looked at, not read: standard input cannot go back.
            is_packed = raw.peek(2)[:2] == _GZIP_MAGIC
            data: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
            number = 1
            # With newline="", a part ends at any of `\n`, `\r` and `\r\n`, and keeps it.
            with io.TextIOWrapper(data, "utf-8-sig", "replace", newline="") as text:
                for part in text:
                    yield number, _COLOURS.sub("", part) if "\x1b" in part else part
                    if part.endswith("\n"):
                        number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"damaged gzip data: {error}", where=log) from error
    except OSError as error:
        raise _make_read_error(log, error) from error


def _make_read_error(log: str, error: OSError) -> DataError:
    """Return the error of a log that cannot be opened or read."""
    return DataError(f"cannot read: {error.strerror or error}", where=log)
