"""The text of an MMLU prompt, as lm-eval has it. Must not know files, tokens or torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .questions import LETTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .questions import Question


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
