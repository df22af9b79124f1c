"""Megatron's indexed token files: a ``.bin`` of tokens and the ``.idx`` that cuts it.

Owns the byte layout, reading (memory-mapped, every rule checked before use) and writing. Must
not know vocabularies, splits or samples. Numpy only.

An ``.idx`` is little endian and packed: magic (9 bytes), version (int64), element type
(uint8), number of sequences S and of document bounds D (int64 each), then the arrays
sizes (int32, S), pointers (int64, S; where each sequence begins in the ``.bin``, in bytes)
and document bounds (int64, D; sequence numbers from 0 to S). A document is any number of
sequences, usually one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

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
UINT16_BELOW = 65_500  # Megatron's bound, somewhat below 2**16
AGAIN = "copy both files of the pair again, or prepare the data again"

readable = partial(
    input_files.readable,
    rule="an indexed data set is a readable .bin with its .idx",
    remedy="check the name and the permissions, or prepare the data again",
)


def idx_file(prefix: Path) -> Path:
    """Return the index of a pair; a prefix may contain dots."""
    return Path(f"{prefix}.idx")


def bin_file(prefix: Path) -> Path:
    """Return the tokens of a pair."""
    return Path(f"{prefix}.bin")


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Return the element type that Megatron picks for a vocabulary."""
    return np.dtype("<u2" if vocab_size < UINT16_BELOW else "<i4")


@dataclass(frozen=True, slots=True)
class IndexedReader:
    """A checked pair; make it with ``open``.

    Args:
        prefix: path of the pair without its endings.
        sizes: tokens of each sequence, int32 (sequences,).
        pointers: where each sequence begins in the ``.bin``, bytes, int64 (sequences,).
        document_index: where each document begins and the last ends, sequence numbers,
            int64 (documents + 1,).
        tokens: all tokens one sequence after another, mapped, (num_tokens,).
    """

    prefix: Path
    sizes: NDArray[np.int32]
    pointers: NDArray[np.int64]
    document_index: NDArray[np.int64]
    tokens: NDArray[Any]

    @classmethod
    def open(cls, prefix: Path) -> Self:
        """Map a pair after checking its header, lengths and every row of its index.

        Raises:
            DataError: the first fault found, with file and row.
        """
        idx, data = idx_file(prefix), bin_file(prefix)
        lengths = {}
        for file in (idx, data):
            with readable(file):
                lengths[file] = input_files.file_bytes(file)
        dtype, sequences, bounds = _read_header(idx, data)
        _check_idx_length(idx, lengths[idx], sequences, bounds)
        raw = _map(idx, np.dtype(np.uint8))
        ends = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * bounds])
        sizes, pointers, document_index = (
            raw[start:end].view(kind)
            for start, end, kind in zip(ends, ends[1:], ("<i4", "<i8", "<i8"), strict=False)
        )
        needed = _check_sequences(idx, sizes, pointers, dtype.itemsize) * dtype.itemsize
        _check_documents(idx, document_index, sequences)
        if (length := lengths[data]) != needed:
            how = "cut short" if length < needed else "more than its index cuts"
            rule = f"the index beside it cuts {needed} bytes"
            raise _fault(f"{length} bytes, {how}", data, rule)
        return cls(prefix, sizes, pointers, document_index, _map(data, dtype))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the tokens."""
        return self.tokens.dtype

    @property
    def num_documents(self) -> int:
        """Documents in the pair, empty ones included."""
        return len(self.document_index) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens in the pair."""
        return len(self.tokens)

    def token_starts(self, documents: range) -> NDArray[np.int64]:
        """Return where contiguous documents begin and the last ends, int64 (documents + 1,)."""
        assert documents.step == 1
        sequences = self.document_index[documents.start : documents.stop + 1]
        # Empty documents at the end begin at a sequence that is not there.
        starts = np.full(len(sequences), self.num_tokens, np.int64)
        inside = sequences < len(self.sizes)
        starts[inside] = self.pointers[sequences[inside]] // self.dtype.itemsize
        return starts


def write_pair(
    prefix: Path, tokens: NDArray[Any], sizes: NDArray[np.int32], dtype: np.dtype[Any]
) -> None:
    """Write documents of one sequence each into a folder that nobody reads yet.

    Args:
        prefix: path of the pair without its endings.
        tokens: ids of all documents one after another, whole numbers that ``dtype`` holds
            (sum of sizes,).
        sizes: tokens of each document, 0 or more (documents,).
        dtype: element type to write, one of ``INTEGER_CODES``.
    """
    limits = np.iinfo(dtype)
    assert not len(tokens) or limits.min <= tokens.min() <= tokens.max() <= limits.max
    assert int(sizes.sum()) == len(tokens)
    bin_file(prefix).write_bytes(np.ascontiguousarray(tokens, dtype).data)
    write_index(idx_file(prefix), sizes, dtype)


def write_index(idx: Path, sizes: NDArray[np.int32], dtype: np.dtype[Any]) -> None:
    """Write the index of documents of one sequence each; see ``write_pair``."""
    lengths = sizes.astype(np.int64) * dtype.itemsize
    bounds = np.arange(len(sizes) + 1)
    with idx.open("wb") as stream:
        code = INTEGER_CODES[dtype.name]
        stream.write(HEADER.pack(MAGIC, VERSION, code, len(sizes), len(bounds)))
        for array, kind in ((sizes, "<i4"), (np.cumsum(lengths) - lengths, "<i8"), (bounds, "<i8")):
            stream.write(np.ascontiguousarray(array, kind).data)


def _fault(what: str, where: Path | str, rule: str, remedy: str = AGAIN) -> DataError:
    return DataError(what, where=str(where), rule=rule, remedy=remedy)


def _map(file: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    with readable(file):
        if file.stat().st_size == 0:  # nothing to map; no sequence is a sound, if useless, pair
            return np.empty(0, dtype)
        return np.memmap(file, dtype, mode="r")


def _first_bytes(file: Path) -> bytes:
    with readable(file), file.open("rb") as stream:
        return stream.read(HEADER.size)


def _read_header(idx: Path, data: Path) -> tuple[np.dtype[Any], int, int]:
    """Return element type, number of sequences and of document bounds as an index claims."""
    start = _first_bytes(idx)
    if not start.startswith(MAGIC):
        what, remedy = f"no index: it begins with {start[: len(MAGIC)].hex() or 'nothing'}", AGAIN
        if start.startswith(OLD_MAGIC):
            what = "an index of the older form that is not memory-mapped"
            remedy = "preprocess with --dataset-impl mmap, or prepare the data again"
        elif _first_bytes(data).startswith(MAGIC):
            what = f"{data.name} is the index: the two files are swapped"
            remedy = "swap the names of the two files"
        raise _fault(what, idx, f"an index begins with {MAGIC.hex()}", remedy)
    if len(start) < HEADER.size:
        rule = f"an index begins with {HEADER.size} bytes of header"
        raise _fault(f"the header ends after {len(start)} bytes", idx, rule)
    _, version, code, sequences, bounds = HEADER.unpack(start)
    if version != VERSION:
        remedy = "write it again with a current preprocess_data.py, or prepare the data again"
        raise _fault(f"version {version}", idx, "version 1, little endian, is read", remedy)
    names = {number: name for name, number in INTEGER_CODES.items()}
    if code not in names:
        what = f"element type {code}" + (f" ({FLOAT_CODES[code]})" if code in FLOAT_CODES else "")
        known = ", ".join(f"{number} {name}" for number, name in sorted(names.items()))
        remedy = "give an index of tokens, or prepare the data again"
        raise _fault(what, idx, f"tokens are whole numbers: {known}", remedy)
    return np.dtype(names[code]).newbyteorder("<"), sequences, bounds


def _check_idx_length(idx: Path, length: int, sequences: int, bounds: int) -> None:
    """Refuse an index whose length is not what its counts need; nothing is allocated yet."""
    if sequences < 0 or bounds < 1:
        what = f"the header counts {sequences} sequences and {bounds} document bounds"
        raise _fault(what, idx, "sequences are counted from 0, document bounds from 1")
    needed = HEADER.size + 12 * sequences + 8 * bounds
    if length == needed:
        return
    remedy = AGAIN
    if sequences and length == needed + sequences:
        what = "a multimodal index, with a mode for each sequence"
        remedy = "give a text-only index: other modes than tokens are not trained on"
    else:
        what = f"{length} bytes, {'cut short' if length < needed else 'more than its header says'}"
    rule = f"{sequences} sequences and {bounds} document bounds take {needed} bytes"
    raise _fault(what, idx, rule, remedy)


def _check_sequences(
    idx: Path, sizes: NDArray[np.int32], pointers: NDArray[np.int64], item_bytes: int
) -> int:
    """Check that every size and pointer keeps the layout; return the number of tokens."""
    total = 0
    for first in range(0, len(sizes), BLOCK_ROWS):
        size = sizes[first : first + BLOCK_ROWS].astype(np.int64)
        ends = total + np.cumsum(size)
        expected = (ends - size) * item_bytes
        bad = (size < 0) | (pointers[first : first + BLOCK_ROWS] != expected)
        if bad.any():
            at = int(np.argmax(bad))
            raise _fault(
                f"size {size[at]}, pointer {pointers[first + at]}, where {expected[at]} is due",
                f"{idx}, sequence {first + at} (counted from 0)",
                "sizes are 0 or more, each pointer is the bytes of all sequences before",
            )
        total = int(ends[-1])
    return total


def _check_documents(idx: Path, bounds: NDArray[np.int64], sequences: int) -> None:
    """Check that document bounds rise from 0 to the number of sequences."""
    rule = f"document bounds rise from 0 to the number of sequences, {sequences}"
    for at, due in ((0, 0), (len(bounds) - 1, sequences)):
        if bounds[at] != due:
            where = f"{idx}, document bound {at} (counted from 0)"
            raise _fault(f"{bounds[at]} where {due} is due", where, rule)
    for first in range(0, len(bounds), BLOCK_ROWS):
        block = bounds[first : first + BLOCK_ROWS + 1]
        falls = block[1:] < block[:-1]
        if falls.any():
            at = int(np.argmax(falls))
            where = f"{idx}, document bound {first + at + 1} (counted from 0)"
            raise _fault(f"{block[at + 1]} after {block[at]}", where, rule)
