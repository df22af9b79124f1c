"""Columns of a click log into the bytes that training reads, each day at its place.

Owns how values are stored and that a day's bytes in every file are the ones that were
written. Must not know lines, nor how categories got their numbers.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cache
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from .layout import CATEGORY_BYTES, LABEL_BYTES, NUMERICAL_BYTES, smallest_dtype
from .prepare_rows import NUM_NUMERICAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .prepare_rows import Columns
    from .prepare_vocabulary import Vocabulary

KNOWN_LOGARITHMS = 1 << 16
HASHED_BYTES = 1 << 24


def file_types(cardinalities: Sequence[int]) -> dict[str, str]:
    """Return the files of a split in order, with the type of their elements."""
    types = [smallest_dtype(cardinality) for cardinality in cardinalities]
    categories = {f"cat_{number}.bin": dtype for number, dtype in enumerate(types)}
    return {"label.bin": "bool", "numerical.bin": "float16", **categories}


def row_bytes(cardinalities: Sequence[int]) -> dict[str, int]:
    """Return the bytes of a row in each file of a split, in order."""
    sizes = {**CATEGORY_BYTES, "bool": LABEL_BYTES, "float16": NUMERICAL_BYTES * NUM_NUMERICAL}
    return {name: sizes[dtype] for name, dtype in file_types(cardinalities).items()}


def encode(
    columns: Columns, vocabularies: Sequence[Vocabulary], types: Mapping[str, str]
) -> list[NDArray[Any]]:
    """Return the arrays of the files in order, a row in each first index."""
    arrays: list[NDArray[Any]] = [columns.labels, logarithms(columns.numericals)]
    categories = zip(columns.categories, columns.missing, vocabularies, strict=True)
    for (values, missing, vocabulary), dtype in zip(
        categories, list(types.values())[2:], strict=True
    ):
        numbers = vocabulary.look_up(values, missing)
        arrays.append(numbers.astype(np.dtype(dtype).newbyteorder("<"), copy=False))
    return arrays


def logarithms(values: NDArray[np.int64]) -> NDArray[np.float16]:
    """Return ``log(x + 1)`` as float16 (rows, 13) of (13, rows); what is below 0 counts as 0."""
    raised = np.maximum(values, 0)
    found = _first_logarithms()[np.minimum(raised, KNOWN_LOGARITHMS - 1)]
    large = np.nonzero(raised >= KNOWN_LOGARITHMS)
    found[large] = np.log1p(raised[large].astype(np.float64))
    return np.ascontiguousarray(found.T)


@cache
def _first_logarithms() -> NDArray[np.float16]:
    found = np.log1p(np.arange(KNOWN_LOGARITHMS, dtype=np.float64)).astype("<f2")
    found.setflags(write=False)
    return found


class PartWriter:
    """Write some consecutive rows of a split into each of its files; a context.

    Args:
        folder: of the split.
        sizes: bytes of a row by file, in order.
        first_row: the split's row that comes first.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int], first_row: int) -> None:
        self._folder = folder
        self._sizes = sizes
        self._first_row = first_row
        self._hashes = [sha256() for _ in sizes]
        self._streams: list[IO[bytes]] = []
        self._stack = ExitStack()
        self._rows = 0

    def __enter__(self) -> PartWriter:
        """Open the files, each at its place."""
        self._folder.mkdir(exist_ok=True)
        with ExitStack() as stack:
            for name, size in self._sizes.items():
                handle = os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o666)
                stream = stack.enter_context(os.fdopen(handle, "r+b", buffering=0))
                stream.seek(self._first_row * size)
                self._streams.append(stream)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._stack.close()

    def add(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Write further rows, in the order of the files."""
        self._rows += len(arrays[0])
        for stream, digest, array in zip(self._streams, self._hashes, arrays, strict=True):
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            digest.update(data)
            written = 0
            while written < len(data):  # the system may take less than it was given
                written += stream.write(data[written:])

    def close(self) -> dict[str, Any]:
        """Have all bytes on the disk; return what ``part_is_sound`` needs."""
        for stream in self._streams:
            os.fsync(stream.fileno())
        return {
            "first_row": self._first_row,
            "rows": self._rows,
            "sha256": [digest.hexdigest() for digest in self._hashes],
        }


def part_is_sound(folder: Path, sizes: Mapping[str, int], part: Mapping[str, Any]) -> bool:
    """Tell whether a part's bytes are the ones that were written."""
    for (name, size), expected in zip(sizes.items(), part["sha256"], strict=True):
        file, digest, left = folder / name, sha256(), size * part["rows"]
        if not file.is_file():
            return False
        with file.open("rb") as stream:
            stream.seek(size * part["first_row"])
            while left and (data := stream.read(min(left, HASHED_BYTES))):
                digest.update(data)
                left -= len(data)
        if digest.hexdigest() != expected:
            return False
    return True
