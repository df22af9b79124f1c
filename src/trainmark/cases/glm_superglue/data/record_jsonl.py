"""Read ReCoRD as SuperGLUE releases it: each line is a passage with entities and questions.

This module checks every line and normalizes its texts. It does not know tokens or sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field, ValidationError

from trainmark.data import splits
from trainmark.data.text import enumerate_lines
from trainmark.errors import DataError
from trainmark.validation import describe_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLACEHOLDER = "@placeholder"
HIGHLIGHT = "@highlight\n"  # before each highlight in the release
DASH = "- "  # before each highlight in the published setup
# Each sign is replaced by a single one, so the positions of entities stay valid.
PLAIN_SIGNS = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "–": "-"})
ROW_RULE = (
    "each line must be a passage with text, entities and queries; each query must have one "
    "@placeholder and at least one answer that is an entity; the test split cannot be used, "
    "because it has no answers"
)
LINE_FIX = "correct or remove the line, or use train.jsonl and val.jsonl of SuperGLUE's ReCoRD"

translate_read_errors = partial(
    splits.translate_read_errors,
    make_error=partial(
        DataError,
        rule="a split must be one readable .jsonl file",
        fix="check the name and the permissions of the file",
    ),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence with a gap.

    Args:
        left, right: the text before and after the gap, each with the space beside the gap: the
            tokenizer ignores spaces.
        answers: indices of the right answers among the passage's names, without repetition.
    """

    left: str
    right: str
    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """One line of the file.

    Args:
        line: its number in the file, from 1.
        text: the passage; highlights are formatted as list entries.
        names: the distinct entities, sorted; then the answers that are not entities.
        num_entities: number of entities among ``names``, at least 1.
        questions: in the order of the line.
    """

    line: int
    text: str
    names: tuple[str, ...]
    num_entities: int
    questions: tuple[Question, ...]


class _Span(BaseModel):
    start: int
    end: int  # inclusive


class _Answer(BaseModel):
    text: str


class _Query(BaseModel):
    query: str
    answers: Annotated[list[_Answer], Field(min_length=1)]


class _Text(BaseModel):
    text: str
    entities: Annotated[list[_Span], Field(min_length=1)]


class _Row(BaseModel):
    passage: _Text
    qas: list[_Query]


def read_passages(file: Path) -> Iterator[Passage]:
    """Yield the passages of a split in order, with one line in memory at a time.

    Raises:
        DataError: a line is invalid; the error has its number.
    """
    has_passage = False
    with translate_read_errors(file), file.open("rb") as stream:
        for number, line in enumerate_lines(stream):
            if not line.strip():
                continue
            has_passage = True
            try:
                yield _parse_passage(number, _Row.model_validate_json(line, strict=True))
            except ValidationError as error:  # the line is not JSON, or has other fields or types
                raise _make_line_error(describe_error(error), file, number) from None
            except ValueError as error:  # ``_parse_passage`` refuses the content
                raise _make_line_error(str(error), file, number) from None
    if not has_passage:
        # The error must name a line: the first one.
        raise _make_line_error("the file contains no passages", file, 1)


def _make_line_error(what: str, file: Path, line: int) -> DataError:
    """Return the error for a line of ``file``; lines are counted from 1."""
    return DataError(what, where=f"{file}, line {line}", rule=ROW_RULE, fix=LINE_FIX)


def _parse_passage(line: int, row: _Row) -> Passage:
    """Return the passage of a line; raise ValueError if an entity or a question is invalid.

    Args:
        line: number of the line, from 1.
    """
    # Typographic quotes and dashes become plain ones. Each is one character before and after, so
    # the offsets of the entities stay valid.
    text = row.passage.text.translate(PLAIN_SIGNS)
    entities = set()
    for span in row.passage.entities:
        if not 0 <= span.start <= span.end < len(text):
            raise ValueError(
                f"an entity spans characters {span.start} to {span.end}, but the text has only "
                f"{len(text)} characters"
            )
        entities.add(text[span.start : span.end + 1])  # ``end`` is the last character
    names = sorted(entities)
    # ``_parse_question`` appends the answers that are not entities to ``names``.
    questions = tuple(_parse_question(item, names, len(entities)) for item in row.qas)
    return Passage(
        line=line,
        # A passage ends with highlights, sentences that summarize it. The mark before each becomes
        # a dash, as in the published setup. It moves characters, so it comes after the entities.
        text=text.replace(HIGHLIGHT, DASH),
        names=tuple(names),
        num_entities=len(entities),
        questions=questions,
    )


def _parse_question(item: _Query, names: list[str], num_entities: int) -> Question:
    """Return a question; append its answers that are not entities to ``names``.

    Args:
        names: the entities of the passage, then the answers of its earlier questions that are not
            entities.
        num_entities: number of entities, with which ``names`` begins.

    Raises:
        ValueError: the query does not have one gap, or no answer is an entity.
    """
    # Typographic quotes and dashes become plain ones, as in the passage.
    parts = item.query.translate(PLAIN_SIGNS).split(PLACEHOLDER)
    if len(parts) != 2:
        raise ValueError(f"the query contains {PLACEHOLDER} {len(parts) - 1} times")
    # The keys of a dict are answers without repetition, in their order.
    answers = dict.fromkeys(answer.text.translate(PLAIN_SIGNS) for answer in item.answers)
    if not any(answer in names[:num_entities] for answer in answers):
        raise ValueError(
            f"the candidates contain none of the answers: {', '.join(map(repr, answers))}"
        )
    # In training each answer is a candidate, even if it is not an entity of the passage.
    names.extend(answer for answer in answers if answer not in names)
    return Question(
        left=parts[0],
        right=parts[1],
        answers=tuple(names.index(answer) for answer in answers),
    )
