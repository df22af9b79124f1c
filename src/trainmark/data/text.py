"""Read the text of data files: UTF-8, with or without byte-order mark, lines end in LF or CR LF.

``str.splitlines`` and files opened as text also split at characters that occur within sentences,
such as a lone carriage return or U+2028. Therefore every reader of data uses these functions.
"""

from __future__ import annotations

import codecs
import csv
import re
from functools import partial
from io import StringIO
from typing import IO, TYPE_CHECKING

from trainmark.documents import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

BYTE_ORDER_MARK = codecs.BOM_UTF8
MAX_LINE_BYTES = 256 << 20
_LONE_RETURN = re.compile(r"\r(?!\n)")
# Code points that Unicode reserves for programs, chapter 23: texts do not contain them.
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


def read_text(file: Path) -> str:
    """Return the text of a UTF-8 file without its byte order mark; line ends are unchanged.

    Raises:
        ValueError: not UTF-8, or more than 256 MiB.
        OSError: it cannot be read.
    """
    return read_bytes(file).decode("utf-8-sig")


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their ends."""
    lines = text.split("\n")
    if not lines[-1]:  # the text ends in a line end
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def enumerate_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number, from 1, and the content of each line of a binary stream, with its end.

    A line longer than ``MAX_LINE_BYTES`` comes in pieces, which are numbered like lines: a hole in
    a file reads as one huge line, which would fill the memory. A byte order mark is left out.
    """
    lines = iter(partial(stream.readline, MAX_LINE_BYTES), b"")  # until the stream ends
    for number, line in enumerate(lines, start=1):
        yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def read_tsv(file: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a tab-separated file as dicts; its first line names the fields.

    Quotes have no special meaning. Empty lines are skipped.

    Raises:
        ValueError: the file is not UTF-8, or a row has more or fewer fields than the header.
        OSError: it cannot be read.
    """
    lines = enumerate(split_lines(read_text(file)), start=1)
    yield from _name_fields((number, line.split("\t")) for number, line in lines if line)


def parse_csv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV text: the number of its last line, from 1, and its fields.

    A field in double quotes may contain commas, quotes (doubled) and line breaks. Empty lines are
    skipped.

    Raises:
        ValueError: a quote does not end, or text follows it; the error has the line's number.
    """
    # The library would end a row at a carriage return without line feed. A character that the text
    # does not contain replaces it; each field gets it back below.
    placeholder = next(character for character in _NONCHARACTERS if character not in text)
    lines = StringIO(_LONE_RETURN.sub(placeholder, text), newline="\n")
    reader = csv.reader(lines, strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, [field.replace(placeholder, "\r") for field in fields]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None


def read_csv(file: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file as dicts; its first line names the fields.

    A quoted field may contain commas, quotes (doubled) and line breaks. Empty lines are skipped.

    Raises:
        ValueError: the file is not UTF-8 or not CSV, or a row has more or fewer fields than the
            header.
        OSError: it cannot be read.
    """
    yield from _name_fields(parse_csv_rows(read_text(file)))


def _name_fields(rows: Iterable[tuple[int, list[str]]]) -> Iterator[dict[str, str]]:
    """Yield every row after the first as a dict; the first row names the fields.

    Args:
        rows: the number of the line and the fields of each row.

    Raises:
        ValueError: a row has more or fewer fields than the first one.
    """
    header: list[str] | None = None
    for line, fields in rows:
        if header is None:
            header = fields
        elif len(fields) == len(header):
            yield dict(zip(header, fields, strict=True))
        else:
            raise ValueError(
                f"line {line} has {len(fields)} fields, but the header has {len(header)}"
            )
