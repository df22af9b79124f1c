"""Megatron's indexed token files: a pair of a ``.bin`` with tokens and an ``.idx``, its index.

This module reads pairs (memory-mapped, with a consistency check of the index), writes them, and
scans all tokens for ids outside a vocabulary. It does not know splits or samples. Numpy only.

An ``.idx`` is little endian and packed: magic (9 bytes), version (int64), element type
(uint8), number of sequences S and of document bounds D (int64 each), then the arrays
sizes (int32, S), pointers (int64, S; where each sequence begins in the ``.bin``, in bytes)
and document bounds (int64, D; sequence numbers from 0 to S, ascending). A document is any number
of sequences, usually one. Pointers follow from sizes: a sequence begins where the one before ends.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainmark.data import splits
from trainmark.data.cache import Extremes, compute_extremes, load_or_scan
from trainmark.data.prepared import MANIFEST_FILE, read_manifest
from trainmark.data.tokenizer import refuse_short_vocabulary
from trainmark.digests import hash_stream
from trainmark.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sqBqq")
VERSION = 1
INTEGER_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
UINT16_BELOW = 65_500  # Megatron's bound of vocabularies with ids of 16 bits; below 2**16
_make_pair_error = partial(
    DataError, fix="copy both files of the pair again, or prepare the data again"
)

PADDING_MULTIPLE = 128  # Megatron pads to this multiple: 50257 tokens of GPT-2, a table of 50304
BLOCK_BYTES = 16 << 20
BLOCK_SEQUENCES = 1 << 20  # sequences of an index that are checked at a time

translate_read_errors = partial(
    splits.translate_read_errors,
    make_error=partial(
        DataError,
        rule="an indexed dataset must be a readable .bin with its .idx",
        fix="check the names and the permissions of the files, or prepare the data again",
    ),
)


def get_index_file(prefix: Path) -> Path:
    """Return the path of a pair's index; ``prefix`` may contain dots."""
    return Path(f"{prefix}.idx")


def get_tokens_file(prefix: Path) -> Path:
    """Return the path of a pair's tokens."""
    return Path(f"{prefix}.bin")


def choose_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the element type that Megatron uses for a vocabulary of this size."""
    return np.dtype("<u2" if vocab_size < UINT16_BELOW else "<i4")


@dataclass(frozen=True, slots=True)
class IndexedReader:
    """A pair of files, tokens (``.bin``) and their index (``.idx``); ``open`` checks and makes it.

    Args:
        prefix: path of the pair without its endings.
        sizes: number of tokens of each sequence, int32 (sequences,).
        pointers: byte offset of each sequence in the ``.bin``, int64 (sequences,).
        document_index: number of the first sequence of each document, then the number of all
            sequences, int64 (documents + 1,).
        tokens: all tokens, concatenated and memory-mapped (num_tokens,).
    """

    prefix: Path
    sizes: NDArray[np.int32]
    pointers: NDArray[np.int64]
    document_index: NDArray[np.int64]
    tokens: NDArray[Any]

    @classmethod
    def open(cls, prefix: Path) -> Self:
        """Open a pair, memory-mapped, and check its index and the length of its tokens.

        A pair is a ``.bin`` with tokens and an ``.idx``, which has the size of each sequence, its
        pointer (where it begins in the ``.bin``) and the first sequence of each document.

        Args:
            prefix: path of the ``.bin`` and ``.idx`` files without these endings.

        Raises:
            DataError: the first fault, with its file.
        """
        index_file = get_index_file(prefix)
        tokens_file = get_tokens_file(prefix)
        header = _read_header(index_file)
        sizes, pointers, document_index = _map_index(index_file, header)
        _refuse_wrong_pointers(index_file, sizes, pointers, header.dtype.itemsize)
        _refuse_wrong_bounds(index_file, document_index, header.num_sequences)
        tokens = _map_file(tokens_file, header.dtype)
        num_tokens = int(sizes.sum(dtype=np.int64))
        if num_tokens != len(tokens):
            what = f"the file has {len(tokens)} tokens, but its index lists {num_tokens}"
            rule = "the two files of a pair must belong together"
            raise _make_pair_error(what, where=str(tokens_file), rule=rule)
        return cls(prefix, sizes, pointers, document_index, tokens)

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

    def find_token_starts(self, documents: range) -> NDArray[np.int64]:
        """Return where in ``tokens`` each document begins and the last ends, (documents + 1,).

        A document consists of sequences, usually one; the index has a pointer for each sequence.

        Args:
            documents: consecutive document numbers.
        """
        assert documents.step == 1
        # The number of the first sequence of each document, and of that after the last document.
        first_sequences = self.document_index[documents.start : documents.stop + 1]
        # A sequence that does not exist begins at the end of the file: the one after the last
        # document, and those of empty documents before it.
        starts = np.full(len(first_sequences), self.num_tokens, np.int64)
        exists = first_sequences < len(self.sizes)  # ``sizes`` has one entry for each sequence
        # Pointers count bytes, starts count tokens.
        starts[exists] = self.pointers[first_sequences[exists]] // self.dtype.itemsize
        return starts


def write_pair(
    prefix: Path, tokens: NDArray[Any], sizes: NDArray[np.int32], dtype: np.dtype[Any]
) -> None:
    """Write a ``.bin`` with tokens and its index, an ``.idx``, with one sequence for each document.

    Args:
        prefix: path of both files without these endings.
        tokens: ids of all documents, concatenated; integers that fit ``dtype`` (sum of sizes,).
        sizes: number of tokens of each document, 0 or more (documents,).
        dtype: element type to write, one of ``INTEGER_CODES``.
    """
    assert int(sizes.sum()) == len(tokens)
    get_tokens_file(prefix).write_bytes(np.ascontiguousarray(tokens, dtype).data)
    write_index(get_index_file(prefix), sizes, dtype)


def write_index(file: Path, sizes: NDArray[np.int32], dtype: np.dtype[Any]) -> None:
    """Write the ``.idx`` to a ``.bin`` with tokens, with one sequence for each document.

    It is in Megatron's format: a header, then the number of tokens of each sequence, where each
    sequence begins in the ``.bin`` (a pointer, in bytes), and the first sequence of each document.

    Args:
        file: the ``.idx`` to write.
        sizes: number of tokens of each document (documents,).
        dtype: element type of the tokens in the ``.bin``.
    """
    lengths = sizes.astype(np.int64) * dtype.itemsize  # in bytes
    pointers = np.cumsum(lengths) - lengths  # a sequence begins where the ones before it end
    # Document ``i`` has the sequences from bound ``i`` up to bound ``i + 1``: here one each.
    document_bounds = np.arange(len(sizes) + 1)
    code = INTEGER_CODES[dtype.name]  # the format's number of the element type
    with file.open("wb") as stream:
        stream.write(HEADER.pack(MAGIC, VERSION, code, len(sizes), len(document_bounds)))
        stream.write(np.ascontiguousarray(sizes, "<i4").data)
        stream.write(np.ascontiguousarray(pointers, "<i8").data)
        stream.write(np.ascontiguousarray(document_bounds, "<i8").data)


def _refuse_wrong_pointers(
    index_file: Path, sizes: NDArray[np.int32], pointers: NDArray[np.int64], itemsize: int
) -> None:
    """Refuse negative sizes and pointers that contradict the sizes.

    Both are memory-mapped and checked in blocks, to limit the memory.

    Args:
        index_file: the index of the pair, for errors.
        sizes: number of tokens of each sequence.
        pointers: where each sequence begins in the file of the tokens, in bytes.
        itemsize: bytes of a token.

    Raises:
        DataError: names one such sequence, counted from 0: in the first block that has any, the
            first one with a negative size, or else the first one with a wrong pointer.
    """
    num_earlier_tokens = 0  # in the blocks before the current one
    for first in range(0, len(sizes), BLOCK_SEQUENCES):
        block = sizes[first : first + BLOCK_SEQUENCES].astype(np.int64)
        is_negative = block < 0
        if is_negative.any():
            number = int(is_negative.argmax())  # the first such sequence of the block
            raise _make_pair_error(
                f"sequence {first + number} has {block[number]} tokens",
                where=f"{index_file}, sizes",
                rule="a sequence must have 0 or more tokens",
            )
        ends = num_earlier_tokens + np.cumsum(block)
        expected = (ends - block) * itemsize  # where each sequence must begin, in bytes
        stored = pointers[first : first + BLOCK_SEQUENCES]
        differs = stored != expected
        if differs.any():
            number = int(differs.argmax())
            raise _make_pair_error(
                f"sequence {first + number} begins at byte {stored[number]}, but the previous "
                f"one ends at byte {expected[number]}",
                where=f"{index_file}, pointers",
                rule="the first sequence must begin at byte 0, and every other sequence must begin "
                "where the previous one ends",
            )
        num_earlier_tokens = int(ends[-1])


def _refuse_wrong_bounds(index_file: Path, bounds: NDArray[np.int64], num_sequences: int) -> None:
    """Refuse document bounds that fall, or that do not go from 0 to the number of sequences.

    Bound ``i`` is the number of the first sequence of document ``i``. Equal bounds are valid: a
    document may be empty. They are memory-mapped and checked in blocks, to limit the memory.

    Args:
        index_file: the file with the bounds, for errors.
        bounds: the document bounds, one more than documents.
        num_sequences: number of sequences in the index.

    Raises:
        DataError: the first bound, counted from 0, that breaks the rule.
    """
    make_error = partial(
        _make_pair_error,
        where=f"{index_file}, document index",
        rule=f"document bounds must ascend from 0 to the number of sequences ({num_sequences})",
    )
    if bounds[0] != 0 or bounds[-1] != num_sequences:
        raise make_error(f"the bounds begin with {bounds[0]} and end with {bounds[-1]}")
    for first in range(0, len(bounds) - 1, BLOCK_SEQUENCES):
        block = bounds[first : first + BLOCK_SEQUENCES + 1]  # with the first of the next block
        is_falling = np.diff(block) < 0
        if is_falling.any():
            number = int(is_falling.argmax())
            raise make_error(
                f"bound {first + number} is {block[number]}, but the next one is "
                f"{block[number + 1]}"
            )


def _map_file(file: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the elements of a file, memory-mapped.

    Args:
        dtype: type of an element.

    Raises:
        DataError: the file cannot be read, or ends within an element.
    """
    with translate_read_errors(file):
        length = file.stat().st_size
        if length % dtype.itemsize:
            rule = f"the length must be a multiple of the element size ({dtype.itemsize} bytes)"
            raise _make_pair_error(f"the file has {length} bytes", where=str(file), rule=rule)
        # An empty file cannot be mapped. It is valid: a pair may have no sequence.
        return np.memmap(file, dtype, mode="r") if length else np.empty(0, dtype)


class _Header(NamedTuple):
    """The header of an index.

    Args:
        dtype: element type of the tokens.
        num_sequences: number of sequences.
        num_bounds: number of document bounds, one more than documents.
    """

    dtype: np.dtype[Any]
    num_sequences: int
    num_bounds: int


def _read_header(index_file: Path) -> _Header:
    """Read and check the header of an index.

    Raises:
        DataError: the file cannot be read, is not an index, ends within the header, or has a
            version, an element type or a count that is not valid.
    """
    with translate_read_errors(index_file), index_file.open("rb") as stream:
        start = stream.read(HEADER.size)
    if not start.startswith(MAGIC):
        what = f"not an index: the file begins with {start[: len(MAGIC)].hex() or 'nothing'}"
        rule = f"a memory-mapped index must begin with {MAGIC.hex()}"
        raise _make_pair_error(what, where=str(index_file), rule=rule)
    if len(start) < HEADER.size:
        what = f"the file has {len(start)} bytes"
        rule = f"an index must begin with a header of {HEADER.size} bytes"
        raise _make_pair_error(what, where=str(index_file), rule=rule)
    _magic, version, code, num_sequences, num_bounds = HEADER.unpack(start)
    names = {number: name for name, number in INTEGER_CODES.items()}  # of the element types
    if version != VERSION or code not in names:
        supported = ", ".join(f"{number} {name}" for number, name in sorted(names.items()))
        what = f"the header has version {version} and element type {code}"
        rule = f"only version {VERSION} with integer types is supported: {supported}"
        raise _make_pair_error(what, where=str(index_file), rule=rule)
    # A document lies between two bounds, so that an index without documents has one bound.
    if num_sequences < 0 or num_bounds < 1:
        what = f"the header counts {num_sequences} sequences and {num_bounds} document bounds"
        rule = "an index must have 0 or more sequences and at least one document bound"
        raise _make_pair_error(what, where=str(index_file), rule=rule)
    return _Header(np.dtype(names[code]).newbyteorder("<"), num_sequences, num_bounds)


def _map_index(
    index_file: Path, header: _Header
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return sizes, pointers and document bounds of an index, memory-mapped.

    They follow the header in this order: for each sequence, its number of tokens; for each
    sequence, where it begins in the file of the tokens, in bytes; and for each document, the
    number of its first sequence, with the number of all sequences at the end.

    Args:
        header: with the numbers of sequences and of bounds.

    Raises:
        DataError: the length of the file does not match the header.
    """
    content = _map_file(index_file, np.dtype(np.uint8))
    # In bytes: a size takes 4, a pointer or a bound 8.
    sizes_end = HEADER.size + 4 * header.num_sequences
    pointers_end = sizes_end + 8 * header.num_sequences
    bounds_end = pointers_end + 8 * header.num_bounds
    if len(content) != bounds_end:
        raise _make_pair_error(
            f"the index has {len(content)} bytes, but {header.num_sequences} sequences and "
            f"{header.num_bounds} document bounds take {bounds_end} bytes",
            where=str(index_file),
            rule="the length of an index must match its header",
        )
    sizes = content[HEADER.size : sizes_end].view("<i4")
    pointers = content[sizes_end:pointers_end].view("<i8")
    bounds = content[pointers_end:].view("<i8")
    return sizes, pointers, bounds


def check_tokens(reader: IndexedReader, cache_folder: Path, *, vocab_size: int) -> Extremes:
    """Refuse ids outside the vocabulary; return digest, smallest and largest id of a pair.

    Args:
        reader: the opened pair: the file of the tokens and its index. It has at least one token:
            the cases refuse data that are shorter than a sample before.
        cache_folder: folder in which the result of the scan is cached.
        vocab_size: of the recipe. It may be the tokenizer's number of tokens, padded to a multiple
            of ``PADDING_MULTIPLE``.

    Raises:
        DataError: an id is outside the vocabulary, or the manifest of ``prepare`` names a
            tokenizer whose vocabulary is too small for ``vocab_size``.
    """
    folder = reader.prefix.parent
    index_file = get_index_file(reader.prefix)
    tokens_file = get_tokens_file(reader.prefix)

    def scan() -> dict[str, Extremes]:
        """Return the digest of both files, and the smallest and largest id, under one name."""
        with translate_read_errors(index_file), index_file.open("rb") as stream:
            digest = hash_stream(stream)  # the digest of the tokens continues that of the index
        block_tokens = BLOCK_BYTES // reader.dtype.itemsize
        blocks = (
            reader.tokens[start : start + block_tokens]
            for start in range(0, reader.num_tokens, block_tokens)
        )
        return {"tokens": compute_extremes(blocks, digest=digest)}

    with translate_read_errors(tokens_file):
        inputs = {file.name: file for file in (index_file, tokens_file)}
        extremes = load_or_scan(cache_folder / "content.json", inputs, scan)["tokens"]
    # The number of tokens of the tokenizer; None: another program has prepared the data.
    tokenizer_size = read_manifest(folder).get("vocab_size")
    if extremes.smallest < 0 or extremes.largest >= vocab_size:
        known_size = f" ({tokenizer_size})" if tokenizer_size else ""
        raise DataError(
            f"the token ids range from {extremes.smallest} to {extremes.largest}",
            where=str(tokens_file),
            rule=(
                f"token ids must be at least 0 and less than the recipe's vocab_size ({vocab_size})"
            ),
            fix=(
                "set vocab_size to the vocabulary size of the tokenizer that was used to prepare "
                f"the data{known_size}, or prepare the data again"
            ),
        )
    # Even if all ids are valid: a tokenizer with fewer tokens was cut, or belongs to another model.
    # Training would not notice it.
    if tokenizer_size is not None:
        refuse_short_vocabulary(
            folder / MANIFEST_FILE,
            entries=tokenizer_size,
            vocab_size=vocab_size,
            size_source="the recipe",
            multiple=PADDING_MULTIPLE,
            fix=f"set vocab_size={tokenizer_size}",
        )
    return extremes
