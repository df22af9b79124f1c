"""The texts a model is trained on and asked with.

Owns the instruction template of the dialogues and the form of an MMLU prompt. Must not
know files, tokens or torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .mmlu import LETTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .mmlu import Question

# The form that the published fine-tuning uses; another one would be another training set.
INSTRUCTION = "Summarize this dialog:\n{dialogue}\n---\nSummary:\n"


def training_text(dialogue: str, summary: str) -> str:
    """Return what one dialogue is trained as; the end token follows it."""
    return INSTRUCTION.format(dialogue=dialogue) + summary


def head(subject: str, *, legacy: bool = False) -> str:
    """Return the first lines of a prompt.

    The authors' code and the page leave two blanks before the subject; lm-eval has one.
    """
    blanks = "  " if legacy else " "
    name = subject.replace("_", " ")
    return f"The following are multiple choice questions (with answers) about{blanks}{name}.\n\n"


def ask(question: Question, *, legacy: bool = False) -> str:
    """Return a question and its choices up to where the answer's letter is due.

    White space around the question goes, as in lm-eval; the page leaves it.
    """
    text = question.text if legacy else question.text.strip()
    choices = zip(LETTERS, question.choices, strict=True)
    return "\n".join([text, *(f"{letter}. {choice}" for letter, choice in choices), "Answer:"])


def shown(question: Question, *, legacy: bool = False) -> str:
    """Return a question with its answer, as a shot before the question asked."""
    return f"{ask(question, legacy=legacy)}{answer(question.answer)}\n\n"


def answer(number: int) -> str:
    """Return what follows the colon when the answer is ``number`` (0 to 3)."""
    return f" {LETTERS[number]}"


def prompt(
    subject: str, shots: Sequence[Question], question: Question, *, legacy: bool = False
) -> str:
    """Return the whole prompt: head, shots with their answers, the question."""
    parts = [head(subject, legacy=legacy), *(shown(shot, legacy=legacy) for shot in shots)]
    return "".join(parts) + ask(question, legacy=legacy)
