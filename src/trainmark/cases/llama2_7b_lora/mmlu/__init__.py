"""MMLU: plan which prompts a rank scores, as token ids grouped by their common prefix.

This module finds the number of solved examples that fit and the tokens of the four answers, and
divides the prompts over ranks and into batches. Prompts have the form of lm-eval or that of the
published code. It does not know torch or the model.
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
        rests: the ids of each prompt after the prefix, at least one.
        rows: row of each question in the subject's file, from 0.
        cut: whether the questions are truncated, because they are too long even without examples.
    """

    subject: int
    shots: int
    prefix: Ids
    rests: Sequence[Ids]
    rows: Sequence[int]
    cut: bool

    def split_batches(self, tokens: int) -> Iterator[range]:
        """Yield ranges of prompts whose rests have at most ``tokens`` ids; at least one prompt."""
        first = num_tokens = 0
        for number, rest in enumerate(self.rests):
            if number > first and num_tokens + len(rest) > tokens:
                yield range(first, number)
                first, num_tokens = number, 0
            num_tokens += len(rest)
        yield range(first, len(self.rests))


class ScoringPlan(NamedTuple):
    """The prompts that one rank scores.

    Args:
        groups: its prompts.
        letters: the token ids of the four answers.
        items: number of questions of all ranks together.
        shots: maximum number of solved examples before a question.
    """

    groups: Sequence[PromptGroup]
    letters: tuple[int, ...]
    items: int
    shots: int


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

    Raises:
        DataError: see ``encode_answers``.
    """
    letters = encode_answers(tokenizer, mmlu, legacy=legacy, max_length=max_length)
    max_ids = _compute_max_ids(tokenizer, max_length) if legacy else max_length
    build_levels = build_published_levels if legacy else _build_levels
    groups: list[PromptGroup] = []
    for number, rows in split_rows(mmlu, rank=rank, world_size=world_size):
        subject, remaining_rows = mmlu[number], list(rows)
        for level in build_levels(subject, rows, shots):
            if legacy:
                texts = [level.text(row) for row in remaining_rows]
                tokenized = tokenizer.encode_prompts(texts)
            else:
                tokenized = _encode_prompts(
                    tokenizer, level, remaining_rows, letters[0], subject.name
                )
                if level.cut:
                    tokenized = [ids[-max_ids:] for ids in tokenized]
            prompts = {
                row: np.asarray(ids, np.int64)
                for row, ids in zip(remaining_rows, tokenized, strict=True)
                if len(ids) <= max_ids
            }
            remaining_rows = [row for row in remaining_rows if row not in prompts]
            if prompts:
                groups.append(_group_prompts(number, level, prompts))
            if not remaining_rows:
                break
    max_shots = max(min(shots, len(subject.shots)) for subject in mmlu)
    return ScoringPlan(groups, letters, sum(len(subject.items) for subject in mmlu), max_shots)


def _group_prompts(subject: int, level: PromptLevel, prompts: dict[int, Ids]) -> PromptGroup:
    """Return the group of ``prompts``, ids by row, divided into their prefix and the rests."""
    all_ids = list(prompts.values())
    length = count_common_prefix(all_ids)
    rests = [ids[length:] for ids in all_ids]
    prefix = all_ids[0][:length]
    return PromptGroup(subject, level.shots, prefix, rests, list(prompts), level.cut)


def _build_levels(subject: Subject, _rows: range, most_shots: int) -> Iterator[PromptLevel]:
    """Yield levels for one subject, each with one shot less; the last one is truncated."""

    def format_text(count: int, row: int) -> str:
        return format_prompt(subject.name, subject.shots[:count], subject.items[row])

    for count in range(min(most_shots, len(subject.shots)), -1, -1):
        yield PromptLevel(count, False, partial(format_text, count))
    yield PromptLevel(0, True, partial(format_text, 0))


def split_rows(mmlu: Mmlu, *, rank: int, world_size: int) -> Iterator[tuple[int, range]]:
    """Yield the subjects that ``rank`` scores, each with its range of rows.

    Questions stay in order, so that few ranks share a subject and its prefix. All ranks get texts
    of about the same total length.
    """
    lengths = np.array(
        [len(item.text) + sum(map(len, item.choices)) for sub in mmlu for item in sub.items]
    )
    middles = np.cumsum(lengths) - lengths / 2
    owners = (middles * world_size / lengths.sum()).astype(np.int64).clip(0, world_size - 1)
    first = 0
    for number, subject in enumerate(mmlu):
        rows = np.flatnonzero(owners[first : first + len(subject.items)] == rank)
        first += len(subject.items)
        if len(rows):
            yield number, range(int(rows[0]), int(rows[-1]) + 1)


def _compute_max_ids(tokenizer: TextTokenizer, max_length: int) -> int:
    """Return the maximum length of a legacy prompt, where a beginning token always counts."""
    return max_length - 1 + len(tokenizer.begin)


def encode_answers(
    tokenizer: TextTokenizer, mmlu: Mmlu, *, legacy: bool, max_length: int
) -> tuple[int, ...]:
    """Return the token ids of the four answers: letters after a prompt, or (legacy) alone.

    Raises:
        DataError: the answers are not four different single tokens after the same ids, or the
            first line of a legacy prompt, which is never cut, is too long.
    """
    start = len(tokenizer.begin)
    if legacy:
        rule = "the letters A, B, C and D must begin with four different tokens"
        letter_ids = [ids[start : start + 1] for ids in tokenizer.encode_prompts(LETTERS)]
        stems = []
    else:
        rule = "after `Answer:`, ` A`, ` B`, ` C` and ` D` must end in four different tokens, and "
        rule += "all tokens before them must be the same"
        stem = format_prompt(mmlu[0].name, (), mmlu[0].items[0])
        encoded = tokenizer.encode_prompts(
            [stem + format_answer(number) for number in range(len(LETTERS))]
        )
        letter_ids, stems = [ids[-1:] for ids in encoded], [ids[:-1] for ids in encoded]
    letters = tuple(dict.fromkeys(number for ids in letter_ids for number in ids))
    if len(letters) < len(LETTERS) or any(ids != stems[0] for ids in stems):
        raise DataError(
            "the answers are not single tokens",
            where=str(tokenizer.file),
            rule=rule,
            fix="use the tokenizer that the model was trained with, or another mmlu_mode",
        )
    if legacy:
        heads = tokenizer.encode_prompts([format_published_head(subject.name) for subject in mmlu])
        longest, name = max((len(ids), sub.name) for ids, sub in zip(heads, mmlu, strict=True))
        if longest > _compute_max_ids(tokenizer, max_length):
            raise DataError(
                f"the first line of {name}'s prompts has {longest} tokens",
                where=str(tokenizer.file),
                rule=(
                    f"mmlu_mode=legacy cuts prompts to seq_length={max_length}, but never their "
                    "first line"
                ),
                fix=f"set seq={longest + 1 - start} or more, or mmlu_mode=full",
            )
    return letters


def _encode_prompts(
    tokenizer: TextTokenizer, level: PromptLevel, rows: Sequence[int], letter: int, subject: str
) -> list[list[int]]:
    """Return the ids of the prompts of ``rows``, up to the position of the answer.

    They are encoded with an answer, which is then removed: the space before a letter may be part
    of the letter's token, or a separate token that belongs to the prompt.
    """
    encoded = tokenizer.encode_prompts([level.text(row) + format_answer(0) for row in rows])
    for row, ids in zip(rows, encoded, strict=True):
        if ids[-1] != letter:
            raise DataError(
                f"the answer after row {row + 1} of {subject} is not a separate token",
                where=str(tokenizer.file),
                rule="an answer must be the same token after every prompt",
                fix="use the tokenizer that the model was trained with",
            )
    return [ids[:-1] for ids in encoded]


def count_common_prefix(prompts: Sequence[Ids]) -> int:
    """Return the length of the common prefix of all prompts; it leaves each at least one id."""
    length = min(len(ids) for ids in prompts) - 1
    for ids in prompts[1:]:
        differing = np.flatnonzero(ids[:length] != prompts[0][:length])
        length = int(differing[0]) if len(differing) else length
    return length
