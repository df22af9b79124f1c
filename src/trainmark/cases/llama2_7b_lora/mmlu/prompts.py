"""The text of an MMLU prompt, as lm-eval has it. Must not know files, tokens or torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .questions import LETTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .questions import Question


def head(subject: str) -> str:
    """Return the first lines of a prompt, as lm-eval has them."""
    name = subject.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about {name}.\n\n"


def ask(question: Question) -> str:
    """Return a question and its choices, up to the position of the answer's letter.

    White space around the question is stripped, as in lm-eval.
    """
    choices = zip(LETTERS, question.choices, strict=True)
    lines = [f"{letter}. {choice}" for letter, choice in choices]
    return "\n".join([question.text.strip(), *lines, "Answer:"])


def shown(question: Question) -> str:
    """Return a question with its answer: a shot shown before the question to be answered."""
    return f"{ask(question)}{answer(question.answer)}\n\n"


def answer(number: int) -> str:
    """Return what follows the colon when the answer is ``number`` (0 to 3)."""
    return f" {LETTERS[number]}"


def prompt(subject: str, shots: Sequence[Question], question: Question) -> str:
    """Return the whole prompt: head, shots with their answers, the question."""
    return "".join([head(subject), *map(shown, shots)]) + ask(question)
