"""Rows of token ids without padding, their readers, and the batches made of them.

Every rank holds all rows in one flat array of ids, so that SST-2 takes a few megabytes instead of
hundreds. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainmark.data.splits import Ragged, compute_starts, read_parquet_rows
from trainmark.data.text import read_tsv
from trainmark.errors import DataError
from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """One split; see ``trainmark.data.splits.Split``.

    Args:
        ids: token ids of all rows, without padding.
        labels: 0 or 1, int64 (rows,).
        seq_length: number of tokens that rows are padded to in a batch.
        pad_token_id: the id to pad with.
        num_truncated: number of rows that the tokenizer truncated to the sequence length.
    """

    ids: Ragged
    labels: NDArray[np.int64]
    seq_length: int
    pad_token_id: int
    num_truncated: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def batch(
        self, rows: NDArray[np.int64]
    ) -> tuple[tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]], Counts]:
        """Return a batch of the rows with these numbers, and how many samples and tokens it has.

        The batch is ids and mask, both (B, T), and labels (B,).
        """
        ids, mask = pad_rows(
            self.ids, rows, seq_length=self.seq_length, pad_token_id=self.pad_token_id
        )
        counts = Counts(
            samples=len(rows),
            sequences=len(rows),
            tokens=int(mask.sum()),
            tokens_padded=ids.size,
        )
        return (ids, mask, self.labels[rows]), counts


def pad_rows(
    ids: Ragged, rows: NDArray[np.int64], *, seq_length: int, pad_token_id: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return padded ids and mask of ``rows``, both (B, seq_length).

    Args:
        ids: token ids of all rows of the split; no row is longer than ``seq_length``.
        rows: numbers of the rows to return (B,).
    """
    # ``ids.starts`` has the index in ``ids.values`` at which each row begins and the last one ends,
    # so row r ends where r + 1 begins.
    starts = ids.starts[rows][:, None]  # (B, 1)
    lengths = ids.starts[rows + 1][:, None] - starts  # (B, 1)
    columns = np.arange(seq_length)
    mask = columns < lengths  # (B, seq_length): True where a row has a token
    padded_ids = np.full((len(rows), seq_length), pad_token_id, np.int64)
    padded_ids[mask] = ids.values[(starts + columns)[mask]]
    return padded_ids, mask


MEMBERS = ("label", "attention_mask", "input_ids")
EXTRA_MEMBERS = ("idx", "sentence")  # of the published files: number and text of each row
RULE = (
    "arrays must contain integers; input_ids and attention_mask must have shape (rows, tokens); "
    "each row of the mask must be one or more ones followed by zeros; each label must be 0 or 1"
)
NPZ_FIX = "use the model folder and the recipe for which the data was prepared, or a complete file"


def read_npz(
    file: Path, *, seq_length: int | None, vocab_size: int, pad_token_id: int
) -> tuple[Ragged, NDArray[np.int64]]:
    """Return the token ids of one split, without padding, and the labels.

    Args:
        seq_length: of the recipe; columns after it must be padding. None: the file's width.
        vocab_size: token ids are in [0, vocab_size).
        pad_token_id: the id that must stand wherever the mask is 0. Any other id there is a token
            that a wrong mask hides.

    Raises:
        DataError: the file is damaged, a member is missing, or a row breaks a rule.
    """
    members = _read_members(file)
    ids = members.ids
    mask = members.mask
    labels = members.labels
    _check_extra_members(file, members.extra, len(ids))
    width = mask.shape[1]
    max_length = width if seq_length is None else seq_length
    lengths = mask.sum(1, dtype=np.int64)  # number of tokens of each row
    prefix = np.arange(width) < lengths[:, None]  # the only valid mask for these lengths
    # One value for each row.
    is_wrong_label = (labels != 0) & (labels != 1)
    is_wrong_mask = (prefix != mask).any(1) | (lengths == 0)
    has_wrong_id = ((ids < 0) | (ids >= vocab_size)).any(1)
    # The id that an error shows for a row: a wrong one, if the row has one.
    shown_ids = np.where((ids < 0).any(1), ids.min(1), ids.max(1))
    has_masked_token = ((ids != pad_token_id) & ~prefix).any(1)
    length_rule = (
        f"a row must have at most seq_length={seq_length} tokens; rows are never truncated"
    )
    id_rule = (
        "token ids must be at least 0 and less than the vocab_size in model/config.json "
        f"({vocab_size})"
    )
    padding_rule = (
        "where the mask is 0, input_ids must equal the pad_token_id in model/config.json "
        f"({pad_token_id})"
    )
    # The first check that fails is reported. Those after the mask's assume that it is valid. An
    # error shows one number of the row; for a mask, which has many, that is its sum.
    for member, is_invalid, shown_values, rule in (
        ("label", is_wrong_label, labels, "labels must be 0 or 1"),
        ("attention_mask", is_wrong_mask, lengths, RULE),
        ("attention_mask", lengths > max_length, lengths, length_rule),
        ("input_ids", has_wrong_id, shown_ids, id_rule),
        ("attention_mask", has_masked_token, lengths, padding_rule),
    ):
        if is_invalid.any():
            row = int(is_invalid.argmax())  # the first one
            raise DataError(
                f"{member} is not valid: {shown_values[row]}",
                where=f"{file}, {member}, row {row + 1}",
                rule=rule,
                fix=NPZ_FIX,
            )
    rows = Ragged(ids[prefix].astype(np.int32), compute_starts(lengths))
    return rows, labels.astype(np.int64)


class _NpzMembers(NamedTuple):
    """The arrays of an npz file.

    Args:
        labels: integers (rows,).
        mask, ids: integers (rows, tokens).
        extra: those of ``EXTRA_MEMBERS`` that the file has, by name.
    """

    labels: NDArray[Any]
    mask: NDArray[Any]
    ids: NDArray[Any]
    extra: dict[str, NDArray[Any]]


def _read_members(file: Path) -> _NpzMembers:
    """Return the arrays of an npz file; refuse labels, mask or ids of a wrong type or shape.

    The members ``idx`` and ``sentence`` may be missing, and are not checked here.
    """
    try:
        with np.load(file) as arrays:
            # The order is that of ``MEMBERS``: label, attention_mask, input_ids.
            labels, mask, ids = (arrays[name] for name in MEMBERS)
            extra = {name: arrays[name] for name in EXTRA_MEMBERS if name in arrays}
    except Exception as error:  # noqa: BLE001  the library raises whatever damage leads to
        what = f"not readable as npz with {', '.join(MEMBERS)}: {error}"
        raise DataError(what, where=str(file), rule=RULE, fix=NPZ_FIX) from None
    # numpy's kinds of integers, unsigned integers and bool.
    are_integers = all(array.dtype.kind in "iub" for array in (labels, mask, ids))
    shapes_agree = ids.ndim == 2 and mask.shape == ids.shape and labels.shape == ids.shape[:1]
    if not are_integers or not shapes_agree or not ids.size:  # ids: at least one row and one token
        forms = (
            f"{name}: {array.dtype} {array.shape}"
            for name, array in zip(MEMBERS, (labels, mask, ids), strict=True)
        )
        raise DataError(", ".join(forms), where=str(file), rule=RULE, fix=NPZ_FIX)
    return _NpzMembers(labels, mask, ids, extra)


def _check_extra_members(file: Path, extra: dict[str, NDArray[Any]], num_rows: int) -> None:
    """Refuse an extra member whose length differs from the labels, or a repeated ``idx``.

    Args:
        extra: ``idx`` (the number of each row) and ``sentence``, if the file has them.
        num_rows: number of labels.
    """
    for name, array in extra.items():
        if array.shape != (num_rows,):
            raise DataError(
                f"{name} has shape {array.shape}, but label has {num_rows} rows",
                where=f"{file}, {name}",
                rule="all arrays must have the same number of rows",
                fix=NPZ_FIX,
            )
    if "idx" not in extra:
        return
    numbers, counts = np.unique(extra["idx"], return_counts=True)
    if counts.max() > 1:
        raise DataError(
            f"row {numbers[counts.argmax()]} appears {counts.max()} times",
            where=f"{file}, idx",
            rule="idx must contain each row number exactly once",
            fix=NPZ_FIX,
        )


COLUMNS = ("sentence", "label")
ROW_RULE = "a row must have a sentence with at least one word, and a label that is 0 or 1"
_make_text_error = partial(DataError, rule=ROW_RULE)


@dataclass(frozen=True, slots=True)
class Texts:
    """The rows of one split: unchanged sentences, and labels, 0 or 1."""

    sentences: list[str]
    labels: list[int]


def read_texts(files: Sequence[Path]) -> Texts:
    """Read one split from its files in order.

    Raises:
        DataError: a file is damaged or has no rows, or a row breaks a rule.
    """
    texts = Texts([], [])
    for file in files:
        rows_before = len(texts.labels)
        for row, (sentence, label) in enumerate(_read_rows(file), start=1):
            if not isinstance(sentence, str) or not sentence.strip():
                raise _make_text_error(
                    f"the sentence is {sentence!r}",
                    where=f"{file}, row {row}, sentence",
                    fix="fill in the sentence, or remove the row",
                )
            if label not in (0, 1):
                raise _make_text_error(
                    f"the label is {label!r}",
                    where=f"{file}, row {row}, label",
                    fix=(
                        "correct the label, or remove the row; GLUE's test file has no labels: "
                        "use its train and validation files"
                    ),
                )
            texts.sentences.append(sentence)
            # A column of a parquet file may have another type, such as floats: 1.0 becomes 1.
            texts.labels.append(int(label))
        if len(texts.labels) == rows_before:
            raise _make_text_error(
                "the file has no rows", where=str(file), fix="use a file that has rows"
            )
    return texts


def _read_rows(file: Path) -> Iterator[tuple[Any, Any]]:
    """Yield sentence and label of each row of a TSV or parquet file, without checking their values.

    A label 0 or 1 of a TSV file, which has only text, is yielded as an integer. A label of a
    parquet file has the type of its column.
    """
    rows: Iterable[dict[str, Any]]
    try:
        rows = read_parquet_rows(file) if file.suffix == ".parquet" else read_tsv(file)
        for row in rows:
            label = row["label"]
            if label in ("0", "1"):
                label = int(label)
            yield row["sentence"], label
    except (OSError, ValueError, KeyError) as error:
        what = f"not readable as {file.suffix[1:]} with {' and '.join(COLUMNS)}: {error}"
        fix = f"use a complete file with the columns {' and '.join(COLUMNS)}"
        raise _make_text_error(what, where=str(file), fix=fix) from None
