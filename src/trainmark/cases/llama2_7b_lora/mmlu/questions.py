"""MMLU as a tree of csv files: the 57 subjects, their categories, and every row checked.

Owns the table of subjects and the csv form. Must not know prompts, tokens or torch. Rows
are counted from 1; there is no header.
"""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.data.files import readable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

LETTERS = ("A", "B", "C", "D")
DEV_ROWS = 5  # as published; each is a shot
FIELDS = 6
ROW_RULE = "a row is question, A, B, C, D, answer, the answer one of A, B, C, D; no header"
TREE_RULE = "mmlu/ holds dev/<subject>_dev.csv and test/<subject>_test.csv for 57 subjects"
FETCH = "unpack data.tar of the MMLU publication and put its dev and test folders into mmlu/"

with Path(__file__).with_name("subjects.toml").open("rb") as _table:
    _GROUPS: dict[str, list[str]] = tomllib.load(_table)
CATEGORIES = {subject: category for category, names in _GROUPS.items() for subject in names}
SUBJECTS = tuple(sorted(CATEGORIES))


@dataclass(frozen=True, slots=True)
class Question:
    """One row: the question, its four choices and the number (0 to 3) of the right one."""

    text: str
    choices: tuple[str, str, str, str]
    answer: int


@dataclass(frozen=True, slots=True)
class Subject:
    """The rows of one subject: ``shots`` are shown with their answers, ``items`` are asked."""

    name: str
    shots: Sequence[Question]
    items: Sequence[Question]


Mmlu = tuple[Subject, ...]  # in the order of SUBJECTS


def read_mmlu(folder: Path) -> Mmlu:
    """Read every subject below ``folder``.

    Raises:
        DataError: a missing file, or a row that breaks the rule.
    """
    files = {
        (subject, split): folder / split / f"{subject}_{split}.csv"
        for subject in SUBJECTS
        for split in ("dev", "test")
    }
    missing = [file for file in files.values() if not file.is_file()]
    if missing:
        raise DataError(
            f"no such file; {len(missing)} of {len(files)} files are missing",
            where=str(missing[0]),
            rule=TREE_RULE,
            remedy=f"{FETCH}, or set mmlu_mode=off",
        )
    return tuple(
        Subject(name, read_questions(files[name, "dev"]), read_questions(files[name, "test"]))
        for name in SUBJECTS
    )


def read_questions(file: Path) -> tuple[Question, ...]:
    """Read one csv file; a field in double quotes may hold commas and line breaks.

    Raises:
        DataError: an unreadable or empty file, or the first row that breaks the rule.
    """
    with readable(file, rule=ROW_RULE, remedy=FETCH):
        raw = file.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _fault(f"not UTF-8: {error}", str(file)) from None
    questions = []
    rows = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        for number, fields in enumerate(rows, start=1):
            questions.append(_question(fields, f"{file}, row {number} (line {rows.line_num})"))
    except csv.Error as error:
        raise _fault(f"not readable as csv: {error}", f"{file}, line {rows.line_num}") from None
    if not questions:
        raise _fault("no rows", str(file))
    return tuple(questions)


def _fault(what: str, where: str) -> DataError:
    return DataError(what, where=where, rule=ROW_RULE, remedy=FETCH)


def _question(fields: Sequence[str], where: str) -> Question:
    if len(fields) != FIELDS:
        raise _fault(f"{len(fields)} column(s)", where)
    text, a, b, c, d, answer = fields
    if answer.strip() not in LETTERS:
        raise _fault(f"the answer is {answer!r}", where)
    if not text.strip():
        raise _fault("the question is blank", where)
    return Question(text, (a, b, c, d), LETTERS.index(answer.strip()))
