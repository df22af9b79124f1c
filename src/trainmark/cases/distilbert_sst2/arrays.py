"""Token rows out of the published npz form, checked and kept without their padding.

Owns reading ``.npz`` members in blocks of rows: the published files hold 512 int64 a row,
half a gigabyte, of which about one fortieth are tokens. Pickled members are never loaded.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.errors import DataError

from .columns import FETCH_AGAIN, LABEL_RULE, refuse_empty_file
from .tokens import TokenRows

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from numpy.typing import NDArray

MEMBERS = ("label", "input_ids", "attention_mask")  # idx and sentence are not read
BLOCK_ROWS = 4_096
# What the zip reader raises for damaged, encrypted and unknown content.
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)
# What numpy's header reader raises besides ValueError for a header that is no literal.
BAD_HEADER = (tokenize.TokenError, SyntaxError, MemoryError, OverflowError, TypeError)


def read_npz(file: Path, *, seq_length: int | None, vocab_size: int) -> TokenRows:
    """Read and check one split.

    Args:
        seq_length: the recipe's; columns past it must be padding. None: take the file's.
        vocab_size: token ids lie in [0, vocab_size).

    Raises:
        DataError: a damaged file, a missing member, or a row that breaks a rule.
    """
    refuse_empty_file(file)
    try:
        with zipfile.ZipFile(file) as archive:
            shapes = _shapes(archive, file)
            width = shapes["input_ids"][1]
            _refuse_narrow(file, width, seq_length)
            labels = _labels(archive, file)
            parts = []
            # Streams are closed before the archive, whatever a row's check raises.
            with (
                closing(_blocks(archive, "input_ids")) as all_ids,
                closing(_blocks(archive, "attention_mask")) as all_masks,
            ):
                first = 0
                for ids, mask in zip(all_ids, all_masks, strict=True):
                    length = seq_length or width
                    parts.append(_checked(file, first, ids, mask, length, vocab_size=vocab_size))
                    first += len(ids)
    except (*DAMAGE, *BAD_HEADER, OSError, ValueError) as error:
        raise DataError(
            f"not readable as npz: {error}", where=str(file), remedy=FETCH_AGAIN
        ) from None
    tokens = np.concatenate([tokens for tokens, _ in parts])
    lengths = np.concatenate([lengths for _, lengths in parts])
    return TokenRows.of(tokens, lengths, labels)


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a ``.npy`` header: shape, Fortran order, element type; no pickle is touched."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def _shapes(archive: zipfile.ZipFile, file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array, after checking names, types and lengths."""
    # What is no array (a README, a folder entry) is not ours to read.
    members = [
        name.removesuffix(".npy")
        for name in archive.namelist()
        if name.endswith(".npy") and not name.endswith("/.npy")
    ]
    missing = [name for name in MEMBERS if name not in members]
    if missing:
        raise DataError(
            f"no array {', '.join(missing)}; there are: {', '.join(members) or 'none'}",
            where=str(file),
            rule=f"the file holds {', '.join(MEMBERS)}",
            remedy="run `trainmark prepare distilbert_sst2` to write it",
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for name in members:
        with archive.open(f"{name}.npy") as stream:
            shape, fortran, kind = _header(stream)
        shapes[name] = shape
        if name not in MEMBERS:
            continue
        dims = 1 if name == "label" else 2
        if len(shape) != dims or kind.kind not in "iub" or fortran:
            raise DataError(
                f"array {name} has shape {shape} of {kind}",
                where=str(file),
                rule=f"{name} is a row-major array of whole numbers with {dims} axis/axes",
                remedy="run `trainmark prepare distilbert_sst2` to write it",
            )
    _refuse_shapes(file, shapes)
    return shapes


def _refuse_shapes(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    lengths = {name: shape[0] for name, shape in shapes.items() if shape}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"arrays differ in length: {', '.join(f'{k} {v}' for k, v in lengths.items())}",
            where=str(file),
            rule="every array has one entry a row",
            remedy=FETCH_AGAIN,
        )
    if lengths["label"] == 0:
        raise DataError(
            "no rows", where=str(file), rule="a split has at least one row", remedy=FETCH_AGAIN
        )
    if shapes["input_ids"] != shapes["attention_mask"]:
        raise DataError(
            f"input_ids is {shapes['input_ids']}, attention_mask {shapes['attention_mask']}",
            where=str(file),
            rule="both have the same shape (rows, tokens)",
            remedy=FETCH_AGAIN,
        )


def _refuse_narrow(file: Path, width: int, seq_length: int | None) -> None:
    if seq_length is not None and width < seq_length:
        raise DataError(
            f"input_ids is {width} tokens wide, the recipe's seq_length is {seq_length}",
            where=str(file),
            rule="rows are at least seq_length wide, or sentences may have been cut",
            remedy=f"add seq={width}, or prepare the data again",
        )


def _blocks(archive: zipfile.ZipFile, name: str) -> Generator[NDArray[Any]]:
    """Yield an array's rows in blocks of ``BLOCK_ROWS``."""
    with archive.open(f"{name}.npy") as stream:
        shape, _, kind = _header(stream)
        row_bytes = kind.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        for first in range(0, shape[0], BLOCK_ROWS):
            rows = min(BLOCK_ROWS, shape[0] - first)
            data = stream.read(rows * row_bytes)
            if len(data) != rows * row_bytes:
                raise EOFError(f"array {name} ends early")
            yield np.frombuffer(data, kind).reshape(rows, *shape[1:])
        stream.read(1)  # to the member's end, where its checksum is compared


def _labels(archive: zipfile.ZipFile, file: Path) -> NDArray[Any]:
    labels = np.concatenate(list(_blocks(archive, "label")))
    bad = np.flatnonzero((labels != 0) & (labels != 1))
    if len(bad):
        raise DataError(
            f"label is {labels[bad[0]]}",
            where=f"{file}, label, row {bad[0] + 1}",
            rule=LABEL_RULE,
            remedy="use the train and validation splits; GLUE's test split has no labels",
        )
    return labels


def _checked(
    file: Path,
    first: int,
    ids: NDArray[Any],
    mask: NDArray[Any],
    seq_length: int,
    *,
    vocab_size: int,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a block's tokens without padding and each row's length.

    Args:
        first: rows before this block, for messages.
    """
    _refuse_rows(
        file, "attention_mask", first, ((mask != 0) & (mask != 1)).any(1), mask,
        rule="a mask value is 0 or 1",
    )  # fmt: skip
    lengths = mask.sum(1, dtype=np.int64)
    prefix = np.arange(mask.shape[1]) < lengths[:, None]
    _refuse_rows(
        file, "attention_mask", first, (prefix != mask).any(1) | (lengths == 0), mask,
        rule="a mask is ones, at least one, and then zeros to the end",
    )  # fmt: skip
    outside: NDArray[Any] = np.logical_or(ids < 0, ids >= vocab_size)
    _refuse_rows(
        file, "input_ids", first, np.asarray(outside.any(axis=1)), ids,
        rule=f"a token id lies in [0, {vocab_size}), the vocab_size of model/config.json",
    )  # fmt: skip
    _refuse_rows(
        file, "attention_mask", first, lengths > seq_length, lengths[:, None],
        rule=f"a row has at most seq_length={seq_length} tokens; rows are never cut silently",
    )  # fmt: skip
    return ids[prefix], lengths


def _refuse_rows(
    file: Path, name: str, first: int, bad: NDArray[Any], values: NDArray[Any], *, rule: str
) -> None:
    if not bad.any():
        return
    at = int(np.flatnonzero(bad)[0])
    row = values[at]
    if name == "input_ids":
        what = f"token id out of range: smallest {row.min()}, largest {row.max()}"
    elif len(row) == 1:
        what = f"{row[0]} tokens"
    else:
        odd = row[(row != 0) & (row != 1)]
        what = f"mask value {odd[0]}" if len(odd) else "mask is not ones followed by zeros"
    raise DataError(
        what,
        where=f"{file}, {name}, row {first + at + 1}",
        rule=rule,
        remedy="give the model folder and the recipe that the data was made for, "
        "or prepare the data again",
    )
