"""The text of an MMLU prompt, as lm-eval has it. Must not know files, tokens or torch."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import accumulate, count, takewhile
from typing import TYPE_CHECKING, NamedTuple

from .questions import LETTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .questions import Question, Subject


class Level(NamedTuple):
    """One way to shorten prompts; rows that are too long at one level try the next.

    Args:
        shots: solved examples before each question.
        cut: the questions are truncated.
        text: returns the prompt of a row.
    """

    shots: int
    cut: bool
    text: Callable[[int], str]


def head(subject: str) -> str:
    """Return the first lines of a prompt, as lm-eval has them."""
    name = subject.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about {name}.\n\n"


def ask(question: Question, *, stripped: bool = True) -> str:
    """Return a question and its choices, up to the position of the answer's letter.

    Args:
        stripped: without white space around the question, as in lm-eval.
    """
    choices = zip(LETTERS, question.choices, strict=True)
    lines = [f"{letter}. {choice}" for letter, choice in choices]
    return "\n".join([question.text.strip() if stripped else question.text, *lines, "Answer:"])


def shown(question: Question, *, stripped: bool = True) -> str:
    """Return a question with its answer: a shot shown before the question to be answered."""
    return f"{ask(question, stripped=stripped)}{answer(question.answer)}\n\n"


def answer(number: int) -> str:
    """Return what follows the colon when the answer is ``number`` (0 to 3)."""
    return f" {LETTERS[number]}"


def prompt(subject: str, shots: Sequence[Question], question: Question) -> str:
    """Return the whole prompt: head, shots with their answers, the question."""
    return "".join([head(subject), *map(shown, shots)]) + ask(question)


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
    printed as they are written. A whole number beyond int64 changes that; see ``_beyond_int64``.
    """
    known = [cell for cell in column if cell not in MISSING]
    shown: Callable[[str], object] = str
    whole = list(takewhile(_WHOLE.fullmatch, known))  # what the parser reads before another text
    if any(not -(2**63) <= int(cell) < 2**63 for cell in whole):
        positive = [cell for cell in known if not cell.lstrip().startswith("-")]
        whole = list(takewhile(_WHOLE.fullmatch, positive))
        if len(whole) == len(positive) or any(int(cell) >= 2**64 for cell in whole):
            return _beyond_int64(column, known)
    if len(whole) == len(known):
        shown = int if len(known) == len(column) else lambda cell: float(int(cell))
    elif all(map(_NUMBER.fullmatch, known)):
        shown = float
    elif {cell.lower() for cell in known} <= {"true", "false"}:
        shown = str.capitalize
    return ["nan" if cell in MISSING else str(shown(cell)) for cell in column]


def _beyond_int64(column: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the cells of a column in which a whole number beyond int64 comes first.

    They are integers, but as they are written, missing ones too, where uint64 would hold the
    large ones and a negative or missing one stands beside them, or where one is no whole number.
    """
    numbers = [int(cell) for cell in known if _WHOLE.fullmatch(cell)]
    signed = any(cell.lstrip().startswith("-") for cell in known)
    unsigned = max(numbers) >= 2**63
    conflict = unsigned and max(numbers) < 2**64 and (signed or len(known) < len(column))
    if conflict or len(numbers) < len(known):
        return list(column)
    return ["nan" if cell in MISSING else str(int(cell)) for cell in column]


def _rows_as_read(rows: Sequence[Question]) -> list[Question]:
    columns = [as_read(column) for column in zip(*(row.choices for row in rows), strict=True)]
    choices = zip(*columns, strict=True)
    return [replace(row, choices=cells) for row, cells in zip(rows, choices, strict=True)]


def published_head(subject: str) -> str:
    """Return the prompt's first line, two spaces before the subject; a blank line follows."""
    return head(f" {subject}").rstrip()


def published_levels(subject: Subject, rows: range, most_shots: int) -> Iterator[Level]:
    """Yield the prompts of one subject's ``rows``, each time with one more block removed.

    A block is the text between the first two blank lines: usually the first shot, or a part of
    a question that contains a blank line. At last only the prompt's first line remains.
    """
    shots = [shown(shot, stripped=False) for shot in _rows_as_read(subject.shots)[:most_shots]]
    *starts, end = accumulate((shot.count(BLANK_LINE) for shot in shots), initial=0)
    items = _rows_as_read(subject.items)
    before = "".join(shots)
    pieces = {row: (before + ask(items[row], stripped=False)).split(BLANK_LINE) for row in rows}

    def text(dropped: int, row: int) -> str:
        return BLANK_LINE.join([published_head(subject.name), *pieces[row][dropped:]])

    for dropped in count():  # the first line alone fits: see ``plan.answer_ids``
        whole = sum(start >= dropped for start in starts)
        yield Level(whole, dropped > end, partial(text, dropped))
