"""ReCoRD as SuperGLUE releases it: one passage a line, with entities and questions.

Owns the reading of lines, every rule a line keeps, and how its texts are written before
they are tokenised. Must not know tokens, choices drawn or sequences.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from trainmark.data import files as data_files
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLACEHOLDER = "@placeholder"
HIGHLIGHT, DASH = "@highlight\n", "- "
# Each sign stands for one other, so entities keep their places.
PLAIN_SIGNS = str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "–": "-"})
FETCH_AGAIN = "fetch ReCoRD.zip of the SuperGLUE benchmark again and use train.jsonl and val.jsonl"

readable = partial(
    data_files.readable,
    rule="a split is one readable .jsonl file",
    remedy="check the name and the permissions, or prepare the data again",
)


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence with a gap.

    Args:
        left, right: the text before and after the gap.
        answers: numbers of the right ones among the passage's names, each once.
    """

    left: str
    right: str
    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """One line of the file.

    Args:
        line: its number, from 1.
        text: the passage, highlights as list entries.
        names: the entities, each once and sorted; then answers that are no entities.
        num_entities: how many of ``names`` are entities, at least 1.
        questions: in the order of the line.
    """

    line: int
    text: str
    names: tuple[str, ...]
    num_entities: int
    questions: tuple[Question, ...]


def read_passages(file: Path) -> Iterator[Passage]:
    """Yield the passages of a split in order, one line in memory at a time.

    Raises:
        DataError: the first line that breaks a rule, with its number and question.
    """
    found = False
    with readable(file), file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                found = True
                yield _Line(file, number).read(line)
    if not found:
        raise DataError(
            "no passage",
            where=str(file),
            rule="a split has at least one passage",
            remedy=FETCH_AGAIN,
        )


@dataclass(frozen=True, slots=True)
class _Line:
    """The place of a fault: file, line, and the question, if one is being read."""

    file: Path
    number: int
    question: int | None = None

    def refuse(self, what: str, rule: str, remedy: str = FETCH_AGAIN) -> NoReturn:
        where = f"{self.file}, line {self.number}"
        if self.question is not None:
            where += f", question {self.question} (from 0)"
        raise DataError(what, where=where, rule=rule, remedy=remedy)

    def get(self, value: Any, key: str, kind: type) -> Any:
        """Return a key's value, which must be of ``kind``."""
        names = {str: "text", int: "a whole number", list: "a list", dict: "an object"}
        rule = f"{key} is {names[kind]}"
        if not isinstance(value, dict):
            self.refuse(f"a {type(value).__name__} where an object with {key} should be", rule)
        if key not in value:
            self.refuse(f"no key {key}", rule)
        found = value[key]
        if not isinstance(found, kind) or isinstance(found, bool):
            self.refuse(f"{key} is a {type(found).__name__}", rule)
        if isinstance(found, str):
            try:
                found.encode()
            except UnicodeEncodeError as error:
                self.refuse(f"{key} holds half a character: {error.reason}", rule)
        return found

    def read(self, line: bytes) -> Passage:
        """Return the passage that a line holds."""
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError) as error:
            self.refuse(f"not readable as JSON: {error}", "a line is one JSON object in UTF-8")
        passage = self.get(raw, "passage", dict)
        text = self.get(passage, "text", str).translate(PLAIN_SIGNS)
        entities = [self._entity(text, item) for item in self.get(passage, "entities", list)]
        if not entities:
            self.refuse("no candidate: entities is empty", "a sample has at least one candidate")
        names = sorted(set(entities))
        count = len(names)
        questions = tuple(
            _Line(self.file, self.number, number)._question(item, names, count)
            for number, item in enumerate(self.get(raw, "qas", list))
        )
        return Passage(self.number, text.replace(HIGHLIGHT, DASH), tuple(names), count, questions)

    def _entity(self, text: str, item: Any) -> str:
        first, last = self.get(item, "start", int), self.get(item, "end", int)
        if not 0 <= first <= last < len(text):
            self.refuse(
                f"an entity from {first} to {last}",
                f"it lies in the passage's {len(text)} characters, both ends counted in",
            )
        return str(text[first : last + 1])

    def _question(self, item: Any, names: list[str], num_entities: int) -> Question:
        """Return a question; an answer that is no entity is appended to ``names``."""
        query = self.get(item, "query", str).translate(PLAIN_SIGNS)
        parts = query.split(PLACEHOLDER)
        if len(parts) != 2:
            self.refuse(
                f"{len(parts) - 1} {PLACEHOLDER} in the query", f"a query has one {PLACEHOLDER}"
            )
        rule = "a question has at least one answer"
        if "answers" not in item:
            self.refuse(
                "no answers", rule, "use train.jsonl and val.jsonl: the test split has none"
            )
        answers = dict.fromkeys(
            self.get(answer, "text", str).translate(PLAIN_SIGNS)
            for answer in self.get(item, "answers", list)
        )
        if not answers:
            self.refuse(
                "no answers", rule, "use train.jsonl and val.jsonl: the test split has none"
            )
        entities = names[:num_entities]
        if not any(answer in entities for answer in answers):
            shown = ", ".join(repr(answer) for answer in answers)
            self.refuse(
                f"answers that are not among the candidates: {shown}",
                f"an answer is one of the passage's {num_entities} entities",
                f"take the question out of the file, or {FETCH_AGAIN}",
            )
        names.extend(answer for answer in answers if answer not in names)
        left, right = parts
        return Question(left.rstrip(), right, tuple(names.index(answer) for answer in answers))
