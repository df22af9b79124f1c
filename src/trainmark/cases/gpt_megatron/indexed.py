"""Megatron's indexed token files: a ``.bin`` of tokens and the ``.idx`` that cuts it.

Owns reading (memory-mapped, checked before use) and writing (whole or not at all). Must not
know vocabularies, splits or samples. Numpy only.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np

from trainmark.errors import DataError, EnvironmentFault

from .index_layout import (
    HEADER,
    INTEGER_CODES,
    MAGIC,
    VERSION,
    bin_file,
    check_documents,
    check_sequences,
    file_bytes,
    header,
    idx_file,
    readable,
    refuse_bin_length,
    refuse_idx_length,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

BLOCK_BYTES = 16 << 20
UINT16_BELOW = 65_500  # Megatron's bound, somewhat below 2**16


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Return the element type that Megatron picks for a vocabulary."""
    return np.dtype("<u2" if vocab_size < UINT16_BELOW else "<i4")


@dataclass(frozen=True, slots=True)
class IndexedReader:
    """A checked pair; make it with ``open``.

    Args:
        prefix: path of the pair without its endings.
        sizes: tokens of each sequence, int32 (sequences,).
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
        lengths = {file: file_bytes(file) for file in (idx, data)}
        dtype, sequences, bounds = header(idx, data)
        refuse_idx_length(idx, lengths[idx], sequences, bounds)
        raw = _map(idx, np.dtype(np.uint8))
        ends = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * bounds])
        sizes, pointers, document_index = (
            raw[start:end].view(kind)
            for start, end, kind in zip(ends, ends[1:], ("<i4", "<i8", "<i8"), strict=False)
        )
        total = check_sequences(idx, sizes, pointers, dtype.itemsize)
        check_documents(idx, document_index, sequences)
        refuse_bin_length(data, lengths[data], total * dtype.itemsize)
        return cls(prefix, sizes, pointers, document_index, _map(data, dtype))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the tokens."""
        return self.tokens.dtype

    @property
    def num_sequences(self) -> int:
        """Sequences in the pair."""
        return len(self.sizes)

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
        inside = sequences < self.num_sequences
        starts[inside] = self.pointers[sequences[inside]] // self.dtype.itemsize
        return starts

    def document(self, number: int) -> NDArray[Any]:
        """Return the tokens of a document, counted from 0."""
        if not 0 <= number < self.num_documents:
            raise IndexError(f"document {number} of {self.num_documents}")
        start, end = self.token_starts(range(number, number + 1))
        return self.tokens[start:end]


def _map(file: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    with readable(file):
        if file.stat().st_size == 0:  # nothing to map; no sequence is a sound, if useless, pair
            return np.empty(0, dtype)
        return np.memmap(file, dtype, mode="r")


class IndexedWriter:
    """Write a pair under staging names; leaving the block without an error puts it in place.

    Args:
        prefix: path of the pair without its endings; a pair already there is replaced.
        dtype: element type of the tokens, a whole-number type of ``INTEGER_CODES``.
    """

    def __init__(self, prefix: Path, dtype: np.dtype[Any] | type[np.integer[Any]]) -> None:
        self.prefix = prefix
        self.dtype = np.dtype(dtype).newbyteorder("<")
        assert self.dtype.name in INTEGER_CODES
        mark = f"{secrets.token_hex(4)}.part"
        self._staged = [file.with_name(f".{file.name}.{mark}") for file in self._files()]
        self._sizes: list[NDArray[np.int32]] = []
        self._bounds: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self._sequences = 0
        self._stream: BinaryIO | None = None
        self._finished = False

    def _files(self) -> list[Path]:
        return [bin_file(self.prefix), idx_file(self.prefix)]

    def __enter__(self) -> Self:
        """Create the staging file of the tokens.

        Raises:
            EnvironmentFault: the folder cannot be written.
        """
        with _writable(self._files()[0]):
            self._stream = self._staged[0].open("xb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish, or leave nothing behind when the block raised."""
        try:
            if kind is None:
                self.finish()
        finally:
            if self._stream is not None:
                with suppress(OSError):  # a full disk was said already; the file goes away
                    self._stream.close()
            for file in self._staged:
                file.unlink(missing_ok=True)

    def add_documents(self, tokens: NDArray[Any], sizes: NDArray[Any]) -> None:
        """Append documents of one sequence each.

        Args:
            tokens: ids of all documents one after another, whole numbers (sum of sizes,).
            sizes: tokens of each document, 0 or more, whole numbers (documents,).

        Raises:
            DataError: an id that the element type cannot hold.
            EnvironmentFault: the disk is full.
        """
        sizes = np.asarray(sizes, np.int64)
        assert not len(tokens) or tokens.dtype.kind in "iu"
        assert int(sizes.sum()) == len(tokens)
        assert not len(sizes) or (sizes.min() >= 0 and sizes.max() <= np.iinfo(np.int32).max)
        limits = np.iinfo(self.dtype)
        if len(tokens) and not limits.min <= tokens.min() <= tokens.max() <= limits.max:
            raise DataError(
                f"token ids from {tokens.min()} to {tokens.max()}",
                where=str(self.prefix),
                rule=f"{self.dtype.name} holds {limits.min} to {limits.max}",
                remedy="write the pair for the vocabulary that the ids come from",
            )
        self._write(np.ascontiguousarray(tokens, self.dtype))
        self._append(sizes, np.arange(1, len(sizes) + 1))

    def merge(self, prefix: Path) -> None:
        """Append all documents of another, finished pair of the same element type.

        Raises:
            DataError: a pair that is damaged, or of another element type.
            EnvironmentFault: the disk is full.
        """
        other = IndexedReader.open(prefix)
        if other.dtype != self.dtype:
            raise DataError(
                f"tokens are {other.dtype.name}, those written so far {self.dtype.name}",
                where=str(bin_file(prefix)),
                rule="pairs of one element type can be joined",
                remedy="prepare both with the same vocabulary",
            )
        step = BLOCK_BYTES // self.dtype.itemsize
        for first in range(0, other.num_tokens, step):
            self._write(other.tokens[first : first + step])
        self._append(other.sizes, other.document_index[1:])

    def _write(self, tokens: NDArray[Any]) -> None:
        assert self._stream is not None
        with _writable(self._files()[0]):
            self._stream.write(tokens.data)

    def _append(self, sizes: NDArray[Any], ends: NDArray[np.int64]) -> None:
        self._sizes.append(np.array(sizes, np.int32))
        self._bounds.append(ends + self._sequences)
        self._sequences += len(sizes)

    def finish(self) -> None:
        """Write the index, bring both files to the disk and give them their names."""
        if self._finished:
            return
        assert self._stream is not None
        tokens, index = self._files()
        with _writable(tokens):
            _sync(self._stream)
            self._stream.close()
        with _writable(index), self._staged[1].open("xb") as stream:
            self._write_index(stream)
            _sync(stream)
        with _writable(tokens):
            index.unlink(missing_ok=True)  # an index never stands beside another's tokens
            for staged, file in zip(self._staged, (tokens, index), strict=True):
                staged.rename(file)
        self._finished = True

    def _write_index(self, stream: BinaryIO) -> None:
        sizes = np.concatenate([np.empty(0, np.int32), *self._sizes])
        bounds = np.concatenate(self._bounds)
        code = INTEGER_CODES[self.dtype.name]
        stream.write(HEADER.pack(MAGIC, VERSION, code, len(sizes), len(bounds)))
        lengths = sizes.astype(np.int64) * self.dtype.itemsize
        for array, kind in ((sizes, "<i4"), (np.cumsum(lengths) - lengths, "<i8"), (bounds, "<i8")):
            stream.write(np.ascontiguousarray(array, kind).data)


@contextmanager
def _writable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write there: {error.strerror or error}",
            where=str(file),
            remedy="free some space, or choose another folder",
        ) from error


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())
