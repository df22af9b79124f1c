"""Read and check dialogues with their summaries, and pack them into rows of tokens.

Splits may be JSON, JSON lines, parquet or CSV. No torch. Rows and lines are counted from 1.
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

# File names: the corpus says val, the hub validation.
SPLITS = {"train": ("train",), "validation": ("val", "validation", "eval")}
FOLDERS = (".", "data", "samsum", "corpus")  # where archive and hub keep the files
COLUMNS = ("dialogue", "summary")
make_layout_error = partial(
    DataError,
    fix="run `trainmark prepare llama2_7b_lora --from RAW --data DIR`",
    rule=(
        "a data folder must contain train and val (or validation) as .jsonl, .json, .parquet or "
        ".csv (in the folder itself, or in data/, samsum/ or corpus/)"
    ),
)
# The template of the published fine-tuning; another one would change the training set.
INSTRUCTION = "Summarize this dialog:\n{dialogue}\n---\nSummary:\n"


def _make_form(kind: str) -> Form:
    """Return the form of a data folder whose splits are files with the suffix ``.kind``.

    ``SPLITS`` lists the names that the file of a split may have, and ``FOLDERS`` the subfolders in
    which it may lie.
    """
    file_names = {}
    for split, stems in SPLITS.items():
        file_names[split] = [f"{stem}.{kind}" for stem in stems]
    return Form(kind, names=file_names, folders=FOLDERS)


# The first form of which all files exist is read.
FORMS = [_make_form(kind) for kind in ("jsonl", "json", "parquet", "csv")]
_make_row_error = partial(
    DataError,
    rule=(
        "a row must contain a dialogue and a summary as text, and the summary must contain at "
        "least one word"
    ),
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
    """Read one split from its files in order; a split may be stored in several parts.

    Raises:
        DataError: a file cannot be read, a row is invalid, or there are no rows.
    """
    dialogues = Dialogues([], [])
    for file in files:
        for number, row in enumerate(_read_rows(file), start=1):
            dialogue, summary = _check_row(row, f"{file}, row {number}")
            dialogues.dialogues.append(dialogue)
            dialogues.summaries.append(summary)
    if not len(dialogues):  # of several empty files, the error names the first
        raise _make_row_error(
            "the file has no rows", where=str(files[0]), fix="use a file that has rows"
        )
    return dialogues


def _check_row(row: Any, where: str) -> tuple[str, str]:
    """Return dialogue and summary of a row.

    Args:
        where: the file and the number of the row, for the error.

    Raises:
        DataError: the row is no mapping, or one of the texts is missing or invalid.
    """
    if not isinstance(row, dict):
        raise _make_row_error(
            f"the row is {row!r:.80}", where=where, fix="correct or remove the row"
        )
    for name in COLUMNS:
        text = row.get(name)
        # A dialogue of the published corpus is empty, that of id 13828807. With an empty summary,
        # the row would train the model to write nothing.
        if not isinstance(text, str) or (name == "summary" and not text.strip()):
            if name in row:
                fault = f"{name} is {text!r:.80}"
            else:
                fault = f"the row has no {name}; its keys are {', '.join(row)}"
            raise _make_row_error(
                fault,
                where=f"{where}, {name}",
                fix=f"fill in the {name}, or remove the row",
            )
    return row["dialogue"], row["summary"]


def _read_rows(file: Path) -> Iterator[Any]:
    """Yield each row of a file as it stands there; ``_check_row`` checks it.

    Raises:
        DataError: the file or a line of it is not readable.
    """
    try:
        if file.suffix == ".parquet":
            yield from read_parquet_rows(file)
            return
        if file.suffix == ".csv":
            yield from read_csv(file)
            return
        text = read_text(file)
        if text.lstrip().startswith("["):  # one list in the file; else one row in each line
            yield from json.loads(text)
            return
    except (OSError, ValueError) as error:
        what = f"not readable as {file.suffix[1:]}: {error}"
        raise _make_row_error(what, where=str(file), fix="replace or repair the file") from None
    for number, line in enumerate(split_lines(text), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                where = f"{file}, line {number}"
                fix = "correct or remove the line"
                raise _make_row_error(
                    f"not readable as JSON: {error}", where=where, fix=fix
                ) from None


IGNORED = -100  # label of a token without loss; torch's default ``ignore_index``


@dataclass(frozen=True, slots=True)
class PackedDialogues:
    """One split; see ``trainmark.data.splits.Split``.

    Args:
        ids: token ids, int64 (rows, seq_length); the last row is padded.
        labels: the token at the same position if a model must predict it from the tokens before it
            in the row, else ``IGNORED``, int64 (rows, seq_length). The first column is ignored,
            because no token precedes it.
        tokens: number of tokens of each row without padding, int64 (rows,).
        targets: number of labels of each row other than ``IGNORED``, int64 (rows,).
        num_documents: number of documents that were packed.
    """

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    num_documents: int

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: NDArray[np.int64]) -> tuple[tuple[Any, Any], Counts]:
        """Return ids and labels, both (B, T), and how many rows and tokens they are."""
        ids = self.ids[rows]
        counts = Counts(
            samples=len(rows),
            sequences=len(rows),
            tokens=int(self.tokens[rows].sum()),
            tokens_padded=ids.size,
        )
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
        documents: token ids of each document, at least one document and one id in each.
        pad_id: the id that pads the last row.
        drop_short: drop the last row if it is not full; there are no rows if all tokens together
            do not fill one.
    """
    assert len(documents) > 0
    lengths = np.fromiter((len(item) for item in documents), np.int64, len(documents))
    assert lengths.min() > 0
    total = int(lengths.sum())
    rows = total // seq_length
    if not drop_short and total % seq_length:
        rows += 1
    size = rows * seq_length
    num_tokens = min(total, size)
    ids = np.full(size, pad_id, np.int64)
    all_tokens = np.concatenate([np.asarray(item, np.int64) for item in documents])
    ids[:num_tokens] = all_tokens[:num_tokens]
    is_token = (np.arange(size) < num_tokens).reshape(rows, seq_length)
    is_target = is_token.copy()
    is_target[:, 0] = False  # no token of the row precedes it
    return PackedDialogues(
        ids=ids.reshape(rows, seq_length),
        labels=np.where(is_target, ids.reshape(rows, seq_length), IGNORED),
        tokens=is_token.sum(1, dtype=np.int64),
        targets=is_target.sum(1, dtype=np.int64),
        num_documents=len(lengths),
    )
