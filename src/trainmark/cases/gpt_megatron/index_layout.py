"""The byte layout of Megatron's ``.idx``, and every rule that a sound pair keeps.

Owns what is refused and how it is said. Must not know tokens, vocabularies or samples.

An ``.idx`` is little endian and packed: magic (9 bytes), version (int64), element type
(uint8), number of sequences S and of document bounds D (int64 each), then the arrays
sizes (int32, S), pointers (int64, S; where each sequence begins in the ``.bin``, in bytes)
and document bounds (int64, D; sequence numbers from 0 to S). A document is any number of
sequences, usually one.
"""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data import input_files
from trainmark.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"MMIDIDX\x00\x00"
OLD_MAGIC = b"TNTIDX\x00\x00"  # the unmapped form that came before
HEADER = struct.Struct("<9sqBqq")
VERSION = 1
INTEGER_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
FLOAT_CODES = {6: "float64", 7: "float32"}
BLOCK_ROWS = 1 << 20  # index rows checked at a time, to bound memory
AGAIN = "copy both files of the pair again, or prepare the data again"


def idx_file(prefix: Path) -> Path:
    """Return the index of a pair; a prefix may hold dots of its own."""
    return Path(f"{prefix}.idx")


def bin_file(prefix: Path) -> Path:
    """Return the tokens of a pair."""
    return Path(f"{prefix}.bin")


readable = partial(
    input_files.readable,
    rule="an indexed data set is a readable .bin with its .idx",
    remedy="check the name and the permissions, or prepare the data again",
)


def file_bytes(file: Path) -> int:
    """Return the length of a regular file that can be opened."""
    with readable(file):
        return input_files.file_bytes(file)


def _start(file: Path) -> bytes:
    with readable(file), file.open("rb") as stream:
        return stream.read(HEADER.size)


def header(idx: Path, data: Path) -> tuple[np.dtype[Any], int, int]:
    """Return element type, number of sequences and of document bounds as an index claims."""
    start = _start(idx)
    if not start.startswith(MAGIC):
        _refuse_magic(idx, data, start)
    if len(start) < HEADER.size:
        raise DataError(
            f"the header ends after {len(start)} bytes",
            where=str(idx), rule=f"an index begins with {HEADER.size} bytes of header",
            remedy=AGAIN,
        )  # fmt: skip
    _, version, code, sequences, bounds = HEADER.unpack(start)
    if version != VERSION:
        raise DataError(
            f"version {version}", where=str(idx), rule="version 1, little endian, is read",
            remedy="write it again with a current preprocess_data.py, or prepare the data again",
        )  # fmt: skip
    names = {number: name for name, number in INTEGER_CODES.items()}
    if code not in names:
        known = ", ".join(f"{number} {name}" for number, name in sorted(names.items()))
        raise DataError(
            f"element type {code}" + (f" ({FLOAT_CODES[code]})" if code in FLOAT_CODES else ""),
            where=str(idx), rule=f"tokens are whole numbers: {known}",
            remedy="give an index of tokens, or prepare the data again",
        )  # fmt: skip
    return np.dtype(names[code]).newbyteorder("<"), sequences, bounds


def _refuse_magic(idx: Path, data: Path, start: bytes) -> None:
    what, remedy = f"no index: it begins with {start[: len(MAGIC)].hex() or 'nothing'}", AGAIN
    if start.startswith(OLD_MAGIC):
        what = "an index of the older form that is not memory-mapped"
        remedy = "preprocess with --dataset-impl mmap, or prepare the data again"
    elif _start(data).startswith(MAGIC):
        what = f"{data.name} is the index: the two files are swapped"
        remedy = "swap the names of the two files"
    raise DataError(what, where=str(idx), rule=f"an index begins with {MAGIC.hex()}", remedy=remedy)


def refuse_idx_length(idx: Path, length: int, sequences: int, bounds: int) -> None:
    """Refuse an index whose length is not what its counts need; nothing is allocated yet."""
    if sequences < 0 or bounds < 1:
        raise DataError(
            f"the header counts {sequences} sequences and {bounds} document bounds",
            where=str(idx), rule="sequences are counted from 0, document bounds from 1",
            remedy=AGAIN,
        )  # fmt: skip
    needed = HEADER.size + 12 * sequences + 8 * bounds
    if length == needed:
        return
    remedy = AGAIN
    if sequences and length == needed + sequences:
        what = "a multimodal index, with a mode for each sequence"
        remedy = "give a text-only index: other modes than tokens are not trained on"
    else:
        what = f"{length} bytes, {'cut short' if length < needed else 'more than its header says'}"
    raise DataError(
        what, where=str(idx),
        rule=f"{sequences} sequences and {bounds} document bounds take {needed} bytes",
        remedy=remedy,
    )  # fmt: skip


def check_sequences(
    idx: Path, sizes: NDArray[np.int32], pointers: NDArray[np.int64], item_bytes: int
) -> int:
    """Hold every size and pointer to the layout; return the number of tokens."""
    total = 0
    for first in range(0, len(sizes), BLOCK_ROWS):
        size = sizes[first : first + BLOCK_ROWS].astype(np.int64)
        ends = total + np.cumsum(size)
        expected = (ends - size) * item_bytes
        bad = (size < 0) | (pointers[first : first + BLOCK_ROWS] != expected)
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(
                f"size {size[at]}, pointer {pointers[first + at]}, where {expected[at]} is due",
                where=f"{idx}, sequence {first + at} (counted from 0)",
                rule="sizes are 0 or more, each pointer is the bytes of all sequences before",
                remedy=AGAIN,
            )
        total = int(ends[-1])
    return total


def check_documents(idx: Path, bounds: NDArray[np.int64], sequences: int) -> None:
    """Hold every document bound to the layout."""
    rule = f"document bounds rise from 0 to the number of sequences, {sequences}"
    for at, due in ((0, 0), (len(bounds) - 1, sequences)):
        if bounds[at] != due:
            raise DataError(
                f"{bounds[at]} where {due} is due",
                where=f"{idx}, document bound {at} (counted from 0)", rule=rule, remedy=AGAIN,
            )  # fmt: skip
    for first in range(0, len(bounds), BLOCK_ROWS):
        block = bounds[first : first + BLOCK_ROWS + 1]
        falls = block[1:] < block[:-1]
        if falls.any():
            at = int(np.argmax(falls))
            raise DataError(
                f"{block[at + 1]} after {block[at]}",
                where=f"{idx}, document bound {first + at + 1} (counted from 0)",
                rule=rule, remedy=AGAIN,
            )  # fmt: skip


def refuse_bin_length(data: Path, length: int, needed: int) -> None:
    """Refuse a ``.bin`` that is not as long as its index says."""
    if length != needed:
        raise DataError(
            f"{length} bytes, {'cut short' if length < needed else 'more than its index cuts'}",
            where=str(data), rule=f"the index beside it cuts {needed} bytes", remedy=AGAIN,
        )  # fmt: skip
