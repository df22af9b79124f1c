"""Lines of a click log into columns of numbers, many rows at once.

Owns what a row looks like and what is refused in one. Must not know files, splits or how
categories are numbered.

Nothing here walks over rows in Python: tabs are found for a whole piece, every field is
taken as one 8-byte word, and two characters at a time are looked up in a table. Only a
piece in which something is wrong is read row by row, to say what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

NUM_NUMERICAL, NUM_CATEGORIES = 13, 26
NUM_FIELDS = 1 + NUM_NUMERICAL + NUM_CATEGORIES
PIECE_BYTES = 1 << 21  # its columns stay in a core's cache
WORD_BYTES = 8
ZEROS = np.uint64(0x3030303030303030)  # eight digits 0
DIGITS, HEX_DIGITS = b"0123456789", b"0123456789abcdefABCDEF"
# Published rows have at most 8 characters, sign included; longer ones are read one by one.
INTEGER = re.compile(rb"-?[0-9]{1,18}")
CATEGORY = re.compile(rb"[0-9a-fA-F]{8}")


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows by column.

    Args:
        labels: uint8 (rows,), 0 or 1.
        numericals: int64 (13, rows); an empty field is 0.
        categories: uint32 (26, rows); an empty field is 0.
        missing: bool (26, rows): where a category's field is empty.
    """

    labels: NDArray[np.uint8]
    numericals: NDArray[np.int64]
    categories: NDArray[np.uint32]
    missing: NDArray[np.bool_]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)


class RowFault(Exception):
    """A row that is none.

    Args:
        number: which row of the lines given, from 0.
        what: the fault.
        rule: what would have been right.
    """

    def __init__(self, number: int, what: str, rule: str) -> None:
        super().__init__(number, what, rule)
        self.number = number
        self.what = what
        self.rule = rule


def columns_of(lines: bytes) -> Columns:
    r"""Return whole lines, each ended by ``\n``, as columns.

    Raises:
        RowFault: the first row that is not label, 13 integers and 26 categories.
    """
    pieces = []
    rows = 0
    for piece in _pieces(lines):
        columns = _columns_of_piece(piece)
        if columns is None:
            fault = next(_faults(piece))
            raise RowFault(rows + fault.number, fault.what, fault.rule)
        pieces.append(columns)
        rows += len(columns)
    return Columns(
        np.concatenate([piece.labels for piece in pieces]),
        np.concatenate([piece.numericals for piece in pieces], axis=1),
        np.concatenate([piece.categories for piece in pieces], axis=1),
        np.concatenate([piece.missing for piece in pieces], axis=1),
    )


def _pieces(lines: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(lines):
        end = lines.rfind(b"\n", start, start + PIECE_BYTES) + 1
        if not end:  # a line longer than a piece
            end = lines.index(b"\n", start) + 1
        yield lines[start:end]
        start = end


def _columns_of_piece(piece: bytes) -> Columns | None:
    """Return the columns; None where any row is faulty."""
    found = _bounds(piece)
    if found is None:
        return None
    starts, lengths = found
    # One word at every byte: ``words[i]`` ends before character i, ``words[i + 8]`` begins there.
    edge = b"0" * WORD_BYTES
    words = np.ndarray((len(piece) + 1 + WORD_BYTES,), "<u8", edge + piece + edge, strides=(1,))
    labels = words[starts[0] + 1] >> np.uint64(56)  # the word that ends with the field
    if (lengths[0] != 1).any() or ((labels | np.uint64(1)) != ord("1")).any():
        return None
    numericals = _integers(words, starts[1 : 1 + NUM_NUMERICAL], lengths[1 : 1 + NUM_NUMERICAL])
    lengths = lengths[1 + NUM_NUMERICAL :]
    missing = lengths == 0
    if numericals is None or (~missing & (lengths != WORD_BYTES)).any():
        return None
    fields = words[starts[1 + NUM_NUMERICAL :] + WORD_BYTES]
    fields[missing] = ZEROS
    pairs = _pair_values(HEX_DIGITS, 16).take(fields.view("<u2"))
    if pairs.min() < 0:
        return None
    categories = pairs.astype(np.uint8).view(">u4").astype(np.uint32)
    return Columns((labels & np.uint64(1)).astype(np.uint8), numericals, categories, missing)


def _bounds(piece: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return where every field starts and its length, (40, rows); None if rows differ."""
    characters = np.frombuffer(piece, np.uint8)
    ends = np.flatnonzero(characters <= ord("\n"))  # below it only the tab may occur
    if len(ends) % NUM_FIELDS:
        return None
    table = ends.reshape(-1, NUM_FIELDS)
    marks = characters[table]
    if (marks[:, -1] != ord("\n")).any() or (marks[:, :-1] != ord("\t")).any():
        return None
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    by_column = np.ascontiguousarray(starts.reshape(-1, NUM_FIELDS).T)
    return by_column, np.ascontiguousarray(table.T) - by_column


def _integers(
    words: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return the fields as whole numbers, empty ones as 0; None if one is no integer."""
    fields = words[starts + lengths]  # the words that end with the fields
    first = words[starts + WORD_BYTES].astype(np.uint8)  # the lowest byte comes first
    negative = (first == ord("-")) & (lengths > 1)
    digits = np.minimum(lengths - negative, WORD_BYTES)
    # Characters before the field become leading zeros.
    shift = ((WORD_BYTES - digits) * 8).astype(np.uint64)
    kept = np.left_shift(np.uint64(0xFFFFFFFFFFFFFFFF), shift)  # a shift by 64 gives 0
    kept[digits == 0] = 0
    fields = (fields & kept) | (ZEROS & ~kept)
    pairs = _pair_values(DIGITS, 10).take(fields.view("<u2")).reshape(*fields.shape, 4)
    if pairs.min() < 0:
        return None
    fours = pairs[..., ::2].astype(np.int32) * 100 + pairs[..., 1::2]
    values = (fours[..., 0] * 10_000 + fours[..., 1]).astype(np.int64)
    np.negative(values, where=negative, out=values)
    return _mend_long(values, words, starts, lengths)


def _mend_long(
    values: NDArray[np.int64],
    words: NDArray[np.uint64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Put in the numbers of more characters than a word has; None if one is no integer."""
    for place in zip(*np.nonzero(lengths > WORD_BYTES), strict=True):
        start, length = int(starts[place]), int(lengths[place])
        field = words[start + WORD_BYTES : start + WORD_BYTES + length : 1].astype(np.uint8)
        text = field.tobytes()
        if not INTEGER.fullmatch(text):
            return None
        values[place] = int(text)
    return values


@cache
def _pair_values(digits: bytes, base: int) -> NDArray[np.int16]:
    """Return the value of two characters by the 16-bit word they make; -1: not of digits."""
    values = np.full(1 << 16, -1, np.int16)
    for high in digits:
        for low in digits:
            values[high | low << 8] = int(bytes((high, low)), base)
    values.setflags(write=False)
    return values


def _faults(piece: bytes) -> Iterator[RowFault]:
    """Yield what is wrong, row by row."""
    for number, line in enumerate(piece.removesuffix(b"\n").split(b"\n")):
        fields = line.split(b"\t")
        if len(fields) != NUM_FIELDS:
            rule = "a row is a label, 13 integers and 26 categories with tabs between"
            yield RowFault(number, f"{len(fields)} fields, not {NUM_FIELDS}", rule)
            continue
        if fields[0] not in {b"0", b"1"}:
            yield RowFault(number, f"the label is {_shown(fields[0])}", "a label is 0 or 1")
        for column, field in enumerate(fields[1 : 1 + NUM_NUMERICAL]):
            if field and not INTEGER.fullmatch(field):
                rule = "a number is empty or an integer of at most 18 digits"
                yield RowFault(number, f"integer column {column} is {_shown(field)}", rule)
        for column, field in enumerate(fields[1 + NUM_NUMERICAL :]):
            if field and not CATEGORY.fullmatch(field):
                rule = "a category is empty or 8 hexadecimal digits"
                yield RowFault(number, f"category column {column} is {_shown(field)}", rule)
    raise AssertionError("a piece was refused for no fault of its rows")


def _shown(field: bytes) -> Any:
    return repr(field[:40].decode("ascii", "backslashreplace"))
