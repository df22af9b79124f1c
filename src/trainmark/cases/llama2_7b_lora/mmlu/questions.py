"""Read MMLU from a tree of csv files, and format the text of its prompts.

Prompts have the form of lm-eval or that of the published code. Shots are the solved examples before
a question. A level is a degree of shortening: a prompt that is too long at one level is tried at
the next, with less in it. This module does not know tokens or torch. In errors, rows are counted
from 1; there is no header.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from itertools import accumulate, count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainmark.data.splits import translate_read_errors
from trainmark.data.text import parse_csv_rows, read_text
from trainmark.errors import DataError
from trainmark.extras import import_extra
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LETTERS = ("A", "B", "C", "D")
DEV_ROWS = 5  # as published; each is a shot
FIELDS = 6  # of a row: question, four choices, answer
TREE_RULE = "mmlu/ must contain dev/<subject>_dev.csv and test/<subject>_test.csv for 57 subjects"
FETCH = "unpack data.tar of the MMLU publication and copy its folders dev and test into mmlu/"
_make_file_error = partial(
    DataError,
    fix="correct or remove the row",
    rule=(
        "a row must contain a question, four choices and the answer (A, B, C or D); a header row "
        "is not allowed"
    ),
)

_GROUPS: dict[str, list[str]] = read_toml(Path(__file__).with_name("subjects.toml"))
CATEGORIES = {subject: category for category, names in _GROUPS.items() for subject in names}
SUBJECTS = tuple(sorted(CATEGORIES))


@dataclass(frozen=True, slots=True)
class Question:
    """One row: the question, its four choices and the index (0 to 3) of the right one."""

    text: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Subject:
    """The rows of one subject: ``shots`` are solved examples, ``items`` are the test questions."""

    name: str
    shots: Sequence[Question]
    items: Sequence[Question]


Mmlu = tuple[Subject, ...]  # in the order of SUBJECTS


def list_subject_files(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the path of the file of each subject and split."""
    return {
        (subject, split): folder / split / f"{subject}_{split}.csv"
        for subject in SUBJECTS
        for split in ("dev", "test")
    }


def read_mmlu(folder: Path) -> Mmlu:
    """Read all subjects in ``folder``.

    Raises:
        DataError: a file is missing, or a row is invalid.
    """
    files = list_subject_files(folder)
    missing = [file for file in files.values() if not file.is_file()]
    if missing:
        raise DataError(
            f"no such file; missing files: {len(missing)} of {len(files)}",
            where=str(missing[0]),
            rule=TREE_RULE,
            fix=f"{FETCH}, or set mmlu_mode=off",
        )
    return tuple(
        Subject(
            name,
            shots=read_questions(files[name, "dev"]),
            items=read_questions(files[name, "test"]),
        )
        for name in SUBJECTS
    )


def read_questions(file: Path) -> tuple[Question, ...]:
    """Read one csv file; a field in double quotes may hold commas and line breaks.

    Raises:
        DataError: the file is unreadable or empty, or a row is invalid.
    """
    try:
        with translate_read_errors(file, partial(_make_file_error, fix=FETCH)):
            text = read_text(file)
        questions = tuple(
            _parse_question(fields, f"{file}, row {number} (line {line})")
            for number, (line, fields) in enumerate(parse_csv_rows(text), start=1)
        )
    except ValueError as error:
        raise _make_file_error(
            f"not readable as CSV: {error}", where=str(file), fix=FETCH
        ) from None
    if not questions:
        raise _make_file_error("the file has no rows", where=str(file), fix=FETCH)
    return questions


def _parse_question(fields: Sequence[str], where: str) -> Question:
    """Return the question of a row; ``where`` is its place, for errors."""
    if len(fields) != FIELDS:
        raise _make_file_error(f"the row has {len(fields)} column(s)", where=where)
    text, a, b, c, d, answer = fields
    if answer.strip() not in LETTERS:
        raise _make_file_error(f"the answer is {answer!r}", where=where)
    if not text.strip():
        raise _make_file_error("the question is blank", where=where)
    return Question(text, (a, b, c, d), LETTERS.index(answer.strip()))


BLANK_LINE = "\n\n"  # between two blocks of a published prompt


class PromptLevel(NamedTuple):
    """A degree of shortening of prompts; rows that are too long at one level use the next.

    Args:
        shots: number of solved examples before each question.
        is_truncated: whether the questions are truncated.
        text: returns the prompt of a row.
    """

    shots: int
    is_truncated: bool
    text: Callable[[int], str]


def format_head(subject: str) -> str:
    """Return the first line of a prompt and a blank line, as in lm-eval."""
    name = subject.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about {name}.\n\n"


def format_question(question: Question, *, stripped: bool = True) -> str:
    """Return a question and its choices, up to the position of the answer's letter.

    Args:
        stripped: remove white space around the question, as lm-eval does. The program of the
            published results keeps it.
    """
    choices = zip(LETTERS, question.choices, strict=True)
    lines = [f"{letter}. {choice}" for letter, choice in choices]
    return "\n".join([question.text.strip() if stripped else question.text, *lines, "Answer:"])


def format_shot(question: Question, *, stripped: bool = True) -> str:
    """Return a question with its answer, as a solved example in a prompt.

    Args:
        stripped: remove white space around the question, as lm-eval does.
    """
    return f"{format_question(question, stripped=stripped)}{format_answer(question.answer)}\n\n"


def format_answer(number: int) -> str:
    """Return the text after ``Answer:`` if the answer is ``number`` (0 to 3)."""
    return f" {LETTERS[number]}"


def format_prompt(subject: str, shots: Sequence[Question], question: Question) -> str:
    """Return the whole prompt: first lines, solved examples, question."""
    return "".join([format_head(subject), *map(format_shot, shots)]) + format_question(question)


def print_choices_like_pandas(mmlu: Mmlu) -> Mmlu:
    """Return the questions with their choices as pandas reads and prints them.

    The published program does this: missing cells (``NA``, ``None``, empty) become ``nan``, and a
    column of numbers with a fraction or a missing cell becomes floats. Question texts stay
    unchanged: if pandas read one as a number or as missing, the published program would fail.

    Raises:
        EnvironmentFault: pandas is not installed.
    """
    pandas = import_extra("pandas", where="mmlu_mode=legacy")

    def print_like_pandas(questions: Sequence[Question]) -> list[Question]:
        """Return ``questions`` with the choices that pandas reads from a CSV file of choices."""
        file = StringIO(newline="")
        csv.writer(file, lineterminator="\n").writerows(item.choices for item in questions)
        file.seek(0)
        rows = pandas.read_csv(file, header=None).itertuples(index=False)
        return [
            replace(question, choices=tuple(map(str, cells)))
            for question, cells in zip(questions, rows, strict=True)
        ]

    # One call for each file: the type of a column depends on all rows of the file.
    return tuple(
        Subject(
            subject.name,
            shots=print_like_pandas(subject.shots),
            items=print_like_pandas(subject.items),
        )
        for subject in mmlu
    )


def format_published_head(subject: str) -> str:
    """Return the first line of a published prompt, without the blank line after it.

    Unlike lm-eval's, it has two spaces before the subject.
    """
    return format_head(f" {subject}").rstrip()


def build_published_levels(subject: Subject, rows: range, max_shots: int) -> Iterator[PromptLevel]:
    """Yield one subject's prompts in ever shorter forms (levels), as the published program does.

    A prompt is a first line and then blocks, with blank lines between them. A solved example is one
    block, and so is the question at the end; those that contain a blank line have several. The
    first level has all blocks. Each further level drops one more, from the beginning; the first
    line always remains. The caller tries a prompt that is too long at the next level.

    Args:
        rows: numbers of the questions in the subject's file, from 0.
        max_shots: number of solved examples at the first level, if the subject has as many.
    """
    # Not stripped: the published program keeps the white space around a question, and counts the
    # blank lines in it.
    shots = [format_shot(shot, stripped=False) for shot in subject.shots[:max_shots]]
    # Each block of a shot, also the last, ends with a blank line.
    num_blocks_of_shots = [shot.count(BLANK_LINE) for shot in shots]
    # Number of the first block of each shot, from 0, and of the first block after all shots.
    *first_blocks, end_of_shots = accumulate(num_blocks_of_shots, initial=0)
    text_of_shots = "".join(shots)
    blocks_by_row = {}
    for row in rows:
        text = text_of_shots + format_question(subject.items[row], stripped=False)
        blocks_by_row[row] = text.split(BLANK_LINE)

    def format_text(num_dropped: int, row: int) -> str:
        remaining_blocks = blocks_by_row[row][num_dropped:]
        return BLANK_LINE.join([format_published_head(subject.name), *remaining_blocks])

    # Endless: the caller stops when the prompts of all rows fit, at the latest when only the first
    # line remains. ``encode_answers`` has checked that this line fits.
    for num_dropped in count():
        # A shot counts as long as its first block remains, in which its question begins.
        remaining_shots = sum(first_block >= num_dropped for first_block in first_blocks)
        yield PromptLevel(
            remaining_shots,
            # True if blocks of the question itself are dropped.
            is_truncated=num_dropped > end_of_shots,
            text=partial(format_text, num_dropped),
        )
