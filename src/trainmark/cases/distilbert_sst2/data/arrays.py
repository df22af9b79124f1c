"""Read token rows from the published npz format, check them and drop their padding.

Owns the rules of the arrays. The published files hold 512 int64 a row, half a gigabyte, of
which about one fortieth are tokens, so arrays are read one at a time. Pickled members are
never loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from trainmark.errors import DataError

from .texts import FETCH_AGAIN, LABEL_RULE, OTHER_SPLIT
from .tokens import TokenRows

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Members and their number of axes; others are not read.
MEMBERS = {"label": 1, "attention_mask": 2, "input_ids": 2}
MOST_BYTES = 4 << 30  # of an array; the published ones have 275 MB
PREPARE = "run `trainmark prepare distilbert_sst2` to write it"


def read_npz(file: Path, *, seq_length: int | None, vocab_size: int) -> TokenRows:
    """Read and check one split.

    Args:
        seq_length: the recipe's; columns after it must be padding. None: the file's width.
        vocab_size: token ids are in [0, vocab_size).

    Raises:
        DataError: a damaged file, a missing member, or a row that breaks a rule.
    """
    # Opened here because numpy does not close a damaged file.
    with file.open("rb") as stream, _opened(file, stream) as held:
        labels, mask = _member(file, held, "label"), _member(file, held, "attention_mask")
        _refuse_labels(file, labels)
        width = mask.shape[1]
        if seq_length is not None and width < seq_length:
            raise DataError(
                f"rows are {width} tokens wide, the recipe's seq_length is {seq_length}",
                where=str(file),
                rule="rows are at least seq_length wide; shorter rows may hold cut sentences",
                remedy=f"add seq={width}, or prepare the data again",
            )
        prefix, lengths = _checked_mask(file, mask, seq_length or width)
        shape = mask.shape
        del mask
        ids = _member(file, held, "input_ids")
    if ids.shape != shape or len(labels) != len(ids):
        raise DataError(
            f"label has shape {labels.shape}, input_ids {ids.shape}, attention_mask {shape}",
            where=str(file),
            rule="input_ids and attention_mask are (rows, tokens), label has one entry a row",
            remedy=FETCH_AGAIN,
        )
    bad = np.asarray(((ids < 0) | (ids >= vocab_size)).any(1))
    _refuse_row(
        file, "input_ids", bad,
        lambda row: f"token id out of range: smallest {ids[row].min()}, largest {ids[row].max()}",
        rule=f"a token id is in [0, {vocab_size}), the vocab_size of model/config.json",
    )  # fmt: skip
    return TokenRows.of(ids[prefix], lengths, labels)


def _opened(file: Path, stream: BinaryIO) -> Any:
    try:
        held = np.load(stream)
    except Exception as error:  # noqa: BLE001  the library raises whatever damage leads to
        raise _unreadable(file, error) from None
    if isinstance(held, np.ndarray):
        raise _unreadable(file, ValueError("a single array"))
    return held


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"not readable as npz: {error}", where=str(file), remedy=FETCH_AGAIN)


def _member(file: Path, held: Any, name: str) -> NDArray[Any]:
    """Return one array of a bounded size."""
    names = held.files
    if name not in names:
        raise DataError(
            f"no array {name}; there are: {', '.join(names) or 'none'}",
            where=str(file),
            rule=f"the file holds {', '.join(MEMBERS)}",
            remedy=PREPARE,
        )
    size = held.zip.getinfo(f"{name}.npy").file_size
    if size > MOST_BYTES:
        raise DataError(
            f"array {name} has {size:,} bytes", where=str(file),
            rule=f"an array has at most {MOST_BYTES:,} bytes", remedy=FETCH_AGAIN,
        )  # fmt: skip
    try:
        array: NDArray[Any] = held[name]
    except Exception as error:  # noqa: BLE001  the library raises whatever damage leads to
        raise _unreadable(file, error) from None
    if array.ndim != MEMBERS[name] or array.dtype.kind not in "iub":
        raise DataError(
            f"array {name} has shape {array.shape} of {array.dtype}",
            where=str(file),
            rule=f"{name} holds whole numbers along {MEMBERS[name]} axis/axes",
            remedy=PREPARE,
        )
    return array


def _refuse_labels(file: Path, labels: NDArray[Any]) -> None:
    if not len(labels):
        raise DataError(
            "no rows", where=str(file), rule="a split has at least one row", remedy=FETCH_AGAIN
        )
    bad = np.flatnonzero((labels != 0) & (labels != 1))
    if len(bad):
        raise DataError(
            f"label is {labels[bad[0]]}", where=f"{file}, label, row {bad[0] + 1}",
            rule=LABEL_RULE, remedy=OTHER_SPLIT,
        )  # fmt: skip


def _checked_mask(
    file: Path, mask: NDArray[Any], seq_length: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return the mask of tokens, bool (rows, tokens), and the number of tokens of each row."""
    odd = (mask != 0) & (mask != 1)
    _refuse_row(
        file, "attention_mask", odd.any(1), lambda row: f"mask value {mask[row][odd[row]][0]}",
        rule="a mask value is 0 or 1",
    )  # fmt: skip
    lengths = mask.sum(1, dtype=np.int64)
    prefix = np.arange(mask.shape[1]) < lengths[:, None]
    _refuse_row(
        file, "attention_mask", (prefix != mask).any(1) | (lengths == 0),
        lambda _: "mask is not ones followed by zeros",
        rule="a mask is ones, at least one, and then zeros to the end",
    )  # fmt: skip
    _refuse_row(
        file, "attention_mask", lengths > seq_length, lambda row: f"{lengths[row]} tokens",
        rule=f"a row has at most seq_length={seq_length} tokens; rows are never cut silently",
    )  # fmt: skip
    return prefix, lengths


def _refuse_row(file: Path, name: str, bad: NDArray[Any], what: Any, *, rule: str) -> None:
    """Refuse the first bad row; ``what`` describes the fault of a row number."""
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            what(row),
            where=f"{file}, {name}, row {row + 1}",
            rule=rule,
            remedy="give the model folder and the recipe that the data was made for, "
            "or prepare the data again",
        )
