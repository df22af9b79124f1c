"""MMLU: plan which prompts a rank scores, as token ids grouped by their common prefix.

This module finds the number of solved examples that fit and the tokens of the four answers, and
divides the prompts over ranks and into batches. Prompts have the form of lm-eval or, if ``legacy``,
that of the published code. Shots are the solved examples before a question. A level is a degree of
shortening: a prompt that is too long at one level is tried at the next, with less in it. This
module does not know torch or the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.errors import DataError

from .questions import (
    LETTERS,
    PromptLevel,
    build_published_levels,
    format_answer,
    format_prompt,
    format_published_head,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ..model_files import TextTokenizer
    from .questions import Mmlu, Subject

    Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Prompts of one subject with the same number of solved examples.

    Args:
        subject: index of the subject.
        shots: number of solved examples before each question.
        prefix: ids with which all prompts of the group begin.
        suffixes: the ids of each prompt after the prefix, at least one.
        rows: row of each question in the subject's file, from 0.
        is_truncated: whether the questions are truncated, because they are too long even without
            examples.
    """

    subject: int
    shots: int
    prefix: Ids
    suffixes: Sequence[Ids]
    rows: Sequence[int]
    is_truncated: bool

    def split_batches(self, max_tokens: int) -> Iterator[range]:
        """Yield ranges of prompts whose suffixes have at most ``max_tokens`` ids together.

        A range has at least one prompt, also if this prompt alone has more ids.
        """
        first = 0
        num_tokens = 0
        for number, suffix in enumerate(self.suffixes):
            if number > first and num_tokens + len(suffix) > max_tokens:
                yield range(first, number)
                first = number
                num_tokens = 0
            num_tokens += len(suffix)
        yield range(first, len(self.suffixes))


class ScoringPlan(NamedTuple):
    """The prompts that one rank scores.

    Args:
        groups: its prompts.
        answer_ids: the token ids of the four answers.
        num_questions: of all ranks together.
        max_shots: maximum number of solved examples before a question, the same on all ranks.
    """

    groups: Sequence[PromptGroup]
    answer_ids: tuple[int, ...]
    num_questions: int
    max_shots: int


def plan_scoring(
    tokenizer: TextTokenizer,
    mmlu: Mmlu,
    *,
    legacy: bool = False,
    shots: int = 5,
    max_length: int,
    rank: int = 0,
    world_size: int = 1,
) -> ScoringPlan:
    """Return the prompts that ``rank`` scores; all ranks together score each question once.

    Args:
        legacy: use the prompts and answers of the published code.
        shots: number of solved examples before each question; if the prompt is longer than
            ``max_length`` ids, the last ones are dropped (legacy: the first ones).
        max_length: maximum number of ids of a prompt; legacy: a beginning token counts as one of
            them, even if the tokenizer adds none.

    Raises:
        DataError: the tokenizer does not encode the four answers as different single tokens that
            are the same after every prompt; or the first line of a legacy prompt is too long.
    """
    # Also refuses a first line that is too long, so that every prompt fits at some level: legacy
    # levels get shorter until only this line remains, and the last other level is cut.
    answer_ids = encode_answers(tokenizer, mmlu, legacy=legacy, max_length=max_length)
    max_ids = _compute_max_ids(tokenizer, max_length) if legacy else max_length
    build_levels = build_published_levels if legacy else _build_levels
    # ``_encode_prompts`` encodes each prompt with the answer A behind it and removes this token
    # again. So a tokenizer can merge the space before the letter into the letter's token, as
    # ``answer_ids`` have it. None: encode the prompts alone, as the published code does.
    answer = None if legacy else answer_ids[0]
    groups: list[PromptGroup] = []
    for number, rows in split_rows(mmlu, rank=rank, world_size=world_size):
        subject = mmlu[number]
        # A level is a degree of shortening. The first has all shots; each further one is only for
        # prompts that are too long.
        long_rows = list(rows)  # whose prompts are too long at all levels so far
        for level in build_levels(subject, rows, shots):
            encoded = _encode_prompts(tokenizer, level, long_rows, answer, subject.name)
            # The last level is for prompts that are too long even without examples. Keep the end,
            # where the question's choices are; texts of legacy levels are already shortened.
            if level.is_truncated and not legacy:
                encoded = [ids[-max_ids:] for ids in encoded]
            fitting_prompts = {
                row: np.asarray(ids, np.int64)
                for row, ids in zip(long_rows, encoded, strict=True)
                if len(ids) <= max_ids
            }
            long_rows = [row for row in long_rows if row not in fitting_prompts]
            if fitting_prompts:
                groups.append(_group_prompts(number, level, fitting_prompts))
            if not long_rows:
                break
    return ScoringPlan(
        groups,
        answer_ids,
        num_questions=sum(len(subject.items) for subject in mmlu),
        # A subject may have fewer examples than ``shots``.
        max_shots=max(min(shots, len(subject.shots)) for subject in mmlu),
    )


def _group_prompts(subject: int, level: PromptLevel, prompts: dict[int, Ids]) -> PromptGroup:
    """Return the group of ``prompts``, divided into their common prefix and a suffix of each.

    Args:
        subject: its index.
        level: how far these prompts are shortened, to fit the length.
        prompts: the ids of each prompt, by the row of its question.
    """
    all_ids = list(prompts.values())
    prefix_length = count_common_prefix(all_ids)
    return PromptGroup(
        subject,
        shots=level.shots,
        prefix=all_ids[0][:prefix_length],
        suffixes=[ids[prefix_length:] for ids in all_ids],
        rows=list(prompts),
        is_truncated=level.is_truncated,
    )


def _build_levels(subject: Subject, _rows: range, max_shots: int) -> Iterator[PromptLevel]:
    """Yield the degrees of shortening of one subject's prompts, in the form of lm-eval.

    Each level has one solved example less than the level before, down to none. The last level has
    none either and is marked ``is_truncated``: the caller truncates its prompts.

    Args:
        _rows: not needed: ``build_published_levels``, for which this is an alternative, needs it.
        max_shots: number of solved examples at the first level, if the subject has as many.
    """

    def format_text(num_shots: int, row: int) -> str:
        return format_prompt(subject.name, subject.shots[:num_shots], subject.items[row])

    for num_shots in range(min(max_shots, len(subject.shots)), -1, -1):
        yield PromptLevel(num_shots, is_truncated=False, text=partial(format_text, num_shots))
    yield PromptLevel(shots=0, is_truncated=True, text=partial(format_text, 0))


def split_rows(mmlu: Mmlu, *, rank: int, world_size: int) -> Iterator[tuple[int, range]]:
    """Yield the index of each subject that ``rank`` scores, and the range of its rows.

    Questions stay in order, so that few ranks share a subject, whose prompts begin with the same
    examples. All ranks get texts of about the same total length.
    """
    questions = [question for subject in mmlu for question in subject.items]
    lengths = np.array([len(item.text) + sum(map(len, item.choices)) for item in questions])
    # All texts lie on a line, which is cut into a part of equal length for each rank. A question
    # belongs to the part in which its middle lies.
    middles = np.cumsum(lengths) - lengths / 2
    owners = (middles * world_size / lengths.sum()).astype(np.int64).clip(0, world_size - 1)
    first = 0  # number of the subject's first question among all
    for number, subject in enumerate(mmlu):
        rows = np.flatnonzero(owners[first : first + len(subject.items)] == rank)
        first += len(subject.items)
        if len(rows):
            yield number, range(int(rows[0]), int(rows[-1]) + 1)


def _compute_max_ids(tokenizer: TextTokenizer, max_length: int) -> int:
    """Return the maximum number of ids of a legacy prompt.

    ``max_length`` includes a beginning token, even if the tokenizer adds none.
    """
    return max_length - 1 + len(tokenizer.begin)


def encode_answers(
    tokenizer: TextTokenizer, mmlu: Mmlu, *, legacy: bool, max_length: int
) -> tuple[int, ...]:
    """Return the token ids of the four answers: letters after a prompt, or (legacy) alone.

    Args:
        legacy: as the published code encodes them.
        max_length: maximum number of ids of a legacy prompt, of which a beginning token counts as
            one, even if the tokenizer adds none.

    Raises:
        DataError: the answers are not four different single tokens after the same ids, or the
            first line of a legacy prompt, which is never cut, is too long.
    """
    if legacy:
        letters = _encode_letters_alone(tokenizer)
        _check_first_lines(tokenizer, mmlu, max_length)
        return letters
    rule = (
        "prompts that end in `Answer: A`, `Answer: B`, `Answer: C` and `Answer: D` must differ in "
        "the last token, and in no other token"
    )
    # Any question would do: each prompt ends in ``Answer:``, before the letter.
    stem = format_prompt(mmlu[0].name, (), mmlu[0].items[0])
    encoded = tokenizer.encode_prompts(
        [stem + format_answer(number) for number in range(len(LETTERS))]
    )
    letters = tuple(ids[-1] for ids in encoded if ids)
    are_stems_equal = all(ids[:-1] == encoded[0][:-1] for ids in encoded)
    if len(set(letters)) < len(LETTERS) or not are_stems_equal:
        raise _make_answer_error(tokenizer, rule)
    return letters


def _encode_letters_alone(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the first token of each letter as the published code encodes it, without a prompt."""
    start = len(tokenizer.begin)  # index of the first id after the beginning token
    encoded = tokenizer.encode_prompts(LETTERS)
    letters = tuple(ids[start] for ids in encoded if len(ids) > start)
    if len(set(letters)) < len(LETTERS):
        rule = "the letters A, B, C and D must begin with four different tokens"
        raise _make_answer_error(tokenizer, rule)
    return letters


def _make_answer_error(tokenizer: TextTokenizer, rule: str) -> DataError:
    """Return the error about a tokenizer that does not encode the four answers as ``rule`` says."""
    return DataError(
        "the tokenizer does not encode each of the four answers as a single token",
        where=str(tokenizer.file),
        rule=rule,
        fix="use the tokenizer that the model was trained with, or another mmlu_mode",
    )


def _check_first_lines(tokenizer: TextTokenizer, mmlu: Mmlu, max_length: int) -> None:
    """Refuse a subject whose legacy prompts have a too long first line; that line is never cut."""
    texts = [format_published_head(subject.name) for subject in mmlu]
    first_lines = tokenizer.encode_prompts(texts)
    longest, name = max(
        (len(ids), subject.name) for ids, subject in zip(first_lines, mmlu, strict=True)
    )
    if longest > _compute_max_ids(tokenizer, max_length):
        raise DataError(
            f"the first line of each {name} prompt has {longest} tokens",
            where=str(tokenizer.file),
            rule=(
                f"mmlu_mode=legacy truncates prompts to seq_length={max_length}, but never "
                "their first line"
            ),
            # The smallest seq_length that allows the line: its tokens without a beginning token,
            # and one more, which legacy prompts reserve for it, even if the tokenizer adds none.
            fix=(
                f"set seq_length to at least {longest + 1 - len(tokenizer.begin)}, or use "
                "mmlu_mode=full"
            ),
        )


def _encode_prompts(
    tokenizer: TextTokenizer,
    level: PromptLevel,
    rows: Sequence[int],
    answer: int | None,
    subject: str,
) -> list[list[int]]:
    """Return the ids of the prompts of ``rows``, up to the position of the answer.

    They are encoded with the answer A, which is then removed: the space before a letter may be part
    of the letter's token, or a separate token that belongs to the prompt.

    Args:
        answer: the token id of the answer A; None: encode the prompts alone, as the published code.
        subject: its name, for errors.

    Raises:
        DataError: the answer after a prompt is not that token.
    """
    if answer is None:
        return tokenizer.encode_prompts([level.text(row) for row in rows])
    encoded = tokenizer.encode_prompts([level.text(row) + format_answer(0) for row in rows])
    for row, ids in zip(rows, encoded, strict=True):
        if ids[-1] != answer:
            raise DataError(
                f"the answer to question {row + 1} of {subject} is not a separate token",
                where=str(tokenizer.file),
                rule="each answer must be a single token that is the same after every prompt",
                fix="use the tokenizer that the model was trained with",
            )
    return [ids[:-1] for ids in encoded]


def count_common_prefix(prompts: Sequence[Ids]) -> int:
    """Return the length of the common prefix of all prompts; it leaves each at least one id."""
    length = min(len(ids) for ids in prompts) - 1
    for ids in prompts[1:]:
        differing = np.flatnonzero(ids[:length] != prompts[0][:length])
        if len(differing):
            length = int(differing[0])
    return length
