"""MMLU prompts, token for token as the published fine-tuning code builds them.

Owns how that code reads cells (with pandas), builds a prompt and shortens one that is too
long. Must not know torch or the model. Source: FlagPerf's
training/benchmarks/llama2_7b_finetune/pytorch, dataset/dataloader_mmlu.py and
evaluate/evaluator.py, https://github.com/FlagOpen/FlagPerf, read on 2026-11-21. Where that
code stops with an error (pandas reads a question as a number or as missing), the question's
text is used here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import accumulate, count
from typing import TYPE_CHECKING

import numpy as np

from trainmark.errors import DataError

from .plan import Level, Plan, plan_levels
from .prompts import answer
from .questions import LETTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..data.tokens import TextTokenizer
    from .questions import Mmlu, Question, Subject

# Texts that pandas reads as a missing value, printed as `nan`:
# https://pandas.pydata.org/docs/reference/api/pandas.read_csv.html, na_values, 2026-11-21.
MISSING = frozenset({
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
})  # fmt: skip
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
_NUMBER = re.compile(
    r"\s*[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity)\s*",
    re.ASCII | re.IGNORECASE,
)
BLANK_LINE = "\n\n"


def as_read(column: Sequence[str]) -> list[str]:
    """Return the cells of one csv column as pandas reads and then prints them.

    A column of whole numbers only is printed as integers. With a missing value or another
    kind of number in it, all are printed as floats. With any other text in it, all cells are
    printed as they are written.
    """
    known = [cell for cell in column if cell not in MISSING]
    shown: Callable[[str], str] = str
    if all(map(_WHOLE.fullmatch, known)):
        shown = _whole if len(known) == len(column) else _whole_as_float
    elif all(map(_NUMBER.fullmatch, known)):
        shown = _float
    elif {cell.lower() for cell in known} <= {"true", "false"}:
        shown = str.capitalize
    return ["nan" if cell in MISSING else shown(cell) for cell in column]


def _whole(cell: str) -> str:
    return str(int(cell))


def _whole_as_float(cell: str) -> str:
    return repr(float(int(cell)))


def _float(cell: str) -> str:
    return repr(float(cell))


def _rows_as_read(rows: Sequence[Question]) -> list[Question]:
    columns = [as_read(column) for column in zip(*(row.choices for row in rows), strict=True)]
    choices = zip(*columns, strict=True)
    return [replace(row, choices=cells) for row, cells in zip(rows, choices, strict=True)]


def head(subject: str) -> str:
    """Return the prompt's first line, two spaces before the subject; a blank line follows."""
    name = subject.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about  {name}."


def ask(question: Question) -> str:
    """Return a question made of its cells, up to the position of the answer's letter."""
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, question.choices, strict=True)]
    return "\n".join([question.text, *lines, "Answer:"])


def check(tokenizer: TextTokenizer, mmlu: Mmlu, *, max_length: int) -> tuple[int, int, int, int]:
    """Return the ids of the four answers: the first id of each letter, encoded alone.

    Raises:
        DataError: they are not four different ids, or a prompt's first line is too long.
    """
    start = len(tokenizer.begin)
    first = [tuple(ids[start : start + 1]) for ids in tokenizer.prompts(LETTERS)]
    if len(set(first)) < len(LETTERS) or () in first:
        raise DataError(
            "the letters A, B, C, D do not begin with four different tokens",
            where=str(tokenizer.file),
            rule="mmlu_mode=legacy scores an answer by the first token of its letter",
            remedy="use the tokenizer that the model was trained with, or set mmlu_mode=full",
        )
    (a,), (b,), (c,), (d,) = first
    lengths = [len(ids) for ids in tokenizer.prompts([head(subject.name) for subject in mmlu])]
    longest = int(np.argmax(lengths))
    if lengths[longest] > _most_ids(tokenizer, max_length):
        raise DataError(
            f"the first line of {mmlu[longest].name}'s prompts has {lengths[longest]} tokens",
            where=str(tokenizer.file),
            rule=f"mmlu_mode=legacy cuts prompts to seq_length={max_length}, but not that line",
            remedy=f"add seq={lengths[longest] + 1 - start} or more, or set mmlu_mode=full",
        )
    return a, b, c, d


def _most_ids(tokenizer: TextTokenizer, max_length: int) -> int:
    """Return the maximum ids of a prompt; a beginning token counts even if none is added."""
    return max_length - 1 + len(tokenizer.begin)


def plan_scoring(
    tokenizer: TextTokenizer,
    mmlu: Mmlu,
    *,
    shots: int = 5,
    max_length: int,
    rank: int = 0,
    world_size: int = 1,
) -> Plan:
    """Return the prompts that ``rank`` scores; see ``plan.plan_scoring``.

    While a prompt has more than ``max_length`` ids, the text between its first two blank lines
    is removed: usually its first shot, or a part of a question that contains a blank line. If
    the question alone is too long, only the prompt's first line remains.

    Raises:
        DataError: as ``check``.
    """
    letters = check(tokenizer, mmlu, max_length=max_length)

    def levels(subject: Subject, rows: range) -> Iterator[Level]:
        return _levels(tokenizer, subject, rows, most_shots=shots)

    return plan_levels(
        mmlu, letters, levels, most_ids=_most_ids(tokenizer, max_length), rank=rank,
        world_size=world_size,
    )  # fmt: skip


def _levels(
    tokenizer: TextTokenizer, subject: Subject, rows: range, *, most_shots: int
) -> Iterator[Level]:
    """Yield the prompts of one subject's ``rows``, each time with one more block removed."""
    shots = [
        ask(shot) + answer(shot.answer) + BLANK_LINE
        for shot in _rows_as_read(subject.shots)[:most_shots]
    ]
    *starts, end = accumulate((shot.count(BLANK_LINE) for shot in shots), initial=0)
    items = _rows_as_read(subject.items)
    pieces = {row: ("".join(shots) + ask(items[row])).split(BLANK_LINE) for row in rows}

    def encode(dropped: int, left: Sequence[int]) -> Sequence[Sequence[int]]:
        texts = [BLANK_LINE.join([head(subject.name), *pieces[row][dropped:]]) for row in left]
        return tokenizer.prompts(texts)

    for dropped in count():  # the first line alone fits: see ``check``
        whole = sum(start >= dropped for start in starts)
        yield Level(whole, dropped > end, partial(encode, dropped))
