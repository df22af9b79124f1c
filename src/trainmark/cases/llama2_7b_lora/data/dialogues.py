"""Dialogues and summaries: read from the published files, checked, and packed as tokens.

Owns the places and formats of the splits (JSON, JSON lines, parquet, CSV), where a document ends
in a packed row and which tokens a model is to predict. No torch. Rows and lines are counted
from 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.splits import Form, read_parquet_rows
from trainmark.data.text import read_csv, read_text, split_lines
from trainmark.errors import DataError
from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

# The corpus says val, the hub validation.
SPLITS = {"train": ("train",), "validation": ("val", "validation", "eval")}
FOLDERS = (".", "data", "samsum", "corpus")  # where archive and hub keep the files
COLUMNS = ("dialogue", "summary")
LAYOUT_FAULT = partial(
    DataError,
    fix="run `trainmark prepare llama2_7b_lora --from RAW --data DIR`",
    rule="a data folder holds train and val (or validation) as .jsonl, .json, .parquet or .csv (in "
    "the folder itself, data/, samsum/ or corpus/)",
)
# The template of the published fine-tuning; another one would change the training set.
INSTRUCTION = "Summarize this dialog:\n{dialogue}\n---\nSummary:\n"
FORMS = [  # the first that exists is read
    Form(kind, {split: [f"{x}.{kind}" for x in names] for split, names in SPLITS.items()}, FOLDERS)
    for kind in ("jsonl", "json", "parquet", "csv")
]
_fault = partial(
    DataError, rule="a row has dialogue and summary as text, the summary with at least one word"
)


def format_training_text(dialogue: str, summary: str) -> str:
    """Return the training text of one dialogue; the end token follows it."""
    return INSTRUCTION.format(dialogue=dialogue) + summary


@dataclass(frozen=True, slots=True)
class Dialogues:
    """One split: the texts of its files, unchanged and in order."""

    dialogues: list[str]
    summaries: list[str]

    def __len__(self) -> int:
        return len(self.summaries)


def read_dialogues(files: Sequence[Path]) -> Dialogues:
    """Read one split from its files in order.

    Raises:
        DataError: a file cannot be read, or a row is invalid, or there are no rows.
    """
    dialogues = Dialogues([], [])
    for file in files:
        for number, row in enumerate(_read_rows(file), start=1):
            dialogue, summary = _check_row(row, f"{file}, row {number}")
            dialogues.dialogues.append(dialogue)
            dialogues.summaries.append(summary)
    if not len(dialogues):
        raise _fault("no rows", where=str(files[0]), fix="give a file with rows")
    return dialogues


def _check_row(row: Any, where: str) -> tuple[str, str]:
    """Return dialogue and summary of a row.

    Raises:
        DataError: the row has no such text, naming its key.
    """
    if not isinstance(row, dict):
        raise _fault(f"the row is {row!r:.80}", where=where, fix="correct or remove the row")
    for name in COLUMNS:
        text = row.get(name)
        if not isinstance(text, str) or (name == "summary" and not text.strip()):
            what = (
                f"{name} is {text!r:.80}" if name in row else f"no {name}; keys: {', '.join(row)}"
            )
            raise _fault(
                what,
                where=f"{where}, {name}",
                fix=f"write the {name} there, or remove the row",
            )
    return row["dialogue"], row["summary"]


def _read_rows(file: Path) -> Iterator[Any]:
    """Yield each row of a file."""
    try:
        if file.suffix == ".parquet":
            yield from read_parquet_rows(file)
            return
        if file.suffix == ".csv":
            yield from read_csv(file)
            return
        text = read_text(file)
        if text.lstrip().startswith("["):
            yield from json.loads(text)
            return
    except (OSError, ValueError) as error:
        what = f"not readable as {file.suffix[1:]}: {error}"
        raise _fault(what, where=str(file), fix="give the file whole, or mend it") from None
    for number, line in enumerate(split_lines(text), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                where = f"{file}, line {number}"
                fix = "correct or remove the line"
                raise _fault(f"not readable as JSON: {error}", where=where, fix=fix) from None


IGNORED = -100  # a label without loss; torch's default ``ignore_index``


@dataclass(frozen=True, slots=True)
class PackedDialogues:
    """One split; all arrays are (rows, seq_length) unless stated otherwise.

    See ``trainmark.data.splits.Split``.

    Args:
        ids: tokens, int64; the last row is filled up with the padding id.
        labels: int64; the token at the same place where a model must predict it from
            those before it in the row, else ``IGNORED``. The first column is ignored: no token
            precedes it.
        tokens: real tokens of each row, int64 (rows,).
        targets: labels of each row other than ``IGNORED``, int64 (rows,).
        num_documents: documents packed.
    """

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    num_documents: int

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: NDArray[np.int64]) -> tuple[tuple[Any, Any], Counts]:
        """Return ids and labels, both (B, T)."""
        ids = self.ids[rows]
        counts = Counts(len(rows), len(rows), int(self.tokens[rows].sum()), ids.size)
        return (ids, self.labels[rows]), counts


def pack(
    documents: Sequence[Sequence[int] | NDArray[Any]],
    *,
    seq_length: int,
    pad_id: int,
    drop_short: bool = False,
) -> PackedDialogues:
    """Concatenate documents and cut them into rows of ``seq_length`` tokens.

    Args:
        pad_id: fills the last row up.
        drop_short: drop a last row that is not full; the result has no rows if all tokens
            together do not fill one.
    """
    assert len(documents) > 0
    lengths = np.fromiter((len(item) for item in documents), np.int64, len(documents))
    assert lengths.min() > 0
    total = int(lengths.sum())
    rows = total // seq_length if drop_short else -(-total // seq_length)
    size, held = rows * seq_length, min(total, rows * seq_length)
    ids = np.full(size, pad_id, np.int64)
    ids[:held] = np.concatenate([np.asarray(item, np.int64) for item in documents])[:held]
    real = (np.arange(size) < held).reshape(rows, seq_length)
    counts = real.copy()
    counts[:, 0] = False
    return PackedDialogues(
        ids=ids.reshape(rows, seq_length),
        labels=np.where(counts, ids.reshape(rows, seq_length), IGNORED),
        tokens=real.sum(1, dtype=np.int64),
        targets=counts.sum(1, dtype=np.int64),
        num_documents=len(lengths),
    )
