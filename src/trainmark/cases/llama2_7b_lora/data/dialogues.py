"""Read dialogues and summaries from the published file formats, and check each row.

Owns the places and formats of the splits: JSON, JSON lines and parquet. Must not know
prompts, tokens or torch. Rows and lines are counted from 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.data.files import Form
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# The corpus says val, the hub validation.
SPLITS = {"train": ("train",), "validation": ("val", "validation", "eval")}
FOLDERS = (".", "data", "samsum", "corpus")  # where archive and hub keep the files
COLUMNS = ("dialogue", "summary")
LAYOUT_RULE = (
    "a data folder holds train and val (or validation) as .jsonl, .json or .parquet (in the "
    "folder itself, data/, samsum/ or corpus/)"
)
FETCH = "fetch the file again, or run `trainmark prepare llama2_7b_lora --from RAW --data DIR`"
# The template of the published fine-tuning; another one would change the training set.
INSTRUCTION = "Summarize this dialog:\n{dialogue}\n---\nSummary:\n"
FORMS = [  # the first that exists is read
    Form(kind, {split: [f"{x}.{kind}" for x in names] for split, names in SPLITS.items()}, FOLDERS)
    for kind in ("jsonl", "json", "parquet")
]
_fault = partial(
    DataError, remedy=FETCH,
    rule="a row has dialogue and summary as text, the summary with at least one word",
)  # fmt: skip


def training_text(dialogue: str, summary: str) -> str:
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
    found = Dialogues([], [])
    for file in files:
        for number, row in enumerate(_rows(file), start=1):
            texts = [row.get(name) if isinstance(row, dict) else None for name in COLUMNS]
            if not all(map(_is_text, texts)) or not str(texts[1]).strip():
                raise _fault(f"holds {row!r:.80}", where=f"{file}, row {number}")
            found.dialogues.append(str(texts[0]))
            found.summaries.append(str(texts[1]))
    if not len(found):
        raise _fault("the split is empty", where=str(files[0]))
    return found


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:  # half a character: valid in JSON, but no tokenizer accepts it
        return False


def _rows(file: Path) -> Iterator[Any]:
    """Yield each row of a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".parquet":
            yield from pq.read_table(file).to_pylist()
            return
        text = file.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            yield from json.loads(text)
            return
    except (pa.ArrowException, OSError, ValueError) as error:
        what = f"not readable as {file.suffix[1:]}: {str(error).partition(chr(10))[0]}"
        raise _fault(what, where=str(file)) from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                where = f"{file}, line {number}"
                raise _fault(f"not readable as JSON: {error}", where=where) from None
