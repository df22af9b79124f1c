"""MMLU: which prompts a rank scores, as token ids grouped by their common prefix.

Owns the number of shots that fit, the four answer tokens, and the split over ranks and into
batches, for prompts as lm-eval and as the published code build them. Must not know torch or
the model.
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
    """Items of one subject with the same number of shots.

    Args:
        subject: index of the subject, from 0.
        shots: solved examples before each question.
        prefix: ids that all prompts of the group begin with.
        rests: each prompt's ids after the prefix, at least one.
        rows: row of each item in the subject's file, from 0.
        cut: the questions are truncated: they were too long even without a shot.
    """

    subject: int
    shots: int
    prefix: Ids
    rests: Sequence[Ids]
    rows: Sequence[int]
    cut: bool

    def split_batches(self, tokens: int) -> Iterator[range]:
        """Yield runs of items whose rests have at most ``tokens`` ids in total, or one item."""
        first = held = 0
        for number, rest in enumerate(self.rests):
            if number > first and held + len(rest) > tokens:
                yield range(first, number)
                first, held = number, 0
            held += len(rest)
        yield range(first, len(self.rests))


class ScoringPlan(NamedTuple):
    """The prompts that one rank scores.

    Args:
        groups: its prompts.
        letters: the ids of the four answers.
        items: items of all ranks together.
        shots: most solved examples before a question.
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
    """Return the prompts that ``rank`` scores; all ranks together score each item once.

    Args:
        legacy: prompts and answers are those of the published code; see ``legacy``.
        shots: solved examples before each question; where the prompt is longer than
            ``max_length`` ids, the last ones are dropped (legacy: the first ones).

    Raises:
        DataError: as ``encode_answers``.
    """
    letters = encode_answers(tokenizer, mmlu, legacy=legacy, max_length=max_length)
    most_ids = _compute_max_ids(tokenizer, max_length) if legacy else max_length
    groups: list[PromptGroup] = []
    for number, rows in split_rows(mmlu, rank=rank, world_size=world_size):
        subject, remaining_rows = mmlu[number], list(rows)
        for level in (build_published_levels if legacy else _build_levels)(subject, rows, shots):
            if legacy:
                tokenized = tokenizer.encode_prompts([level.text(row) for row in remaining_rows])
            else:
                tokenized = _encode_prompts(
                    tokenizer, level, remaining_rows, letters[0], subject.name
                )
                if level.cut:
                    tokenized = [ids[-most_ids:] for ids in tokenized]
            fitting = {
                row: np.asarray(ids, np.int64)
                for row, ids in zip(remaining_rows, tokenized, strict=True)
                if len(ids) <= most_ids
            }
            remaining_rows = [row for row in remaining_rows if row not in fitting]
            if prompts := [*fitting.values()]:
                length = count_common_prefix(prompts)
                rests = [ids[length:] for ids in prompts]
                prefix = prompts[0][:length]
                groups.append(
                    PromptGroup(number, level.shots, prefix, rests, [*fitting], level.cut)
                )
            if not remaining_rows:
                break
    most_shots = max(min(shots, len(subject.shots)) for subject in mmlu)
    return ScoringPlan(groups, letters, sum(len(subject.items) for subject in mmlu), most_shots)


def _build_levels(subject: Subject, _rows: range, most_shots: int) -> Iterator[PromptLevel]:
    """Yield the prompts of one subject, each time with a shot less, and at last truncated."""

    def format_text(count: int, row: int) -> str:
        return format_prompt(subject.name, subject.shots[:count], subject.items[row])

    for count in range(min(most_shots, len(subject.shots)), -1, -1):
        yield PromptLevel(count, False, partial(format_text, count))
    yield PromptLevel(0, True, partial(format_text, 0))


def split_rows(mmlu: Mmlu, *, rank: int, world_size: int) -> Iterator[tuple[int, range]]:
    """Yield the subjects that ``rank`` scores, each with its range of rows.

    Items stay in order, so that few ranks share a subject and its prefix; ranks get texts of
    about the same total length.
    """
    lengths = np.array(
        [len(item.text) + sum(map(len, item.choices)) for sub in mmlu for item in sub.items]
    )
    middles = np.cumsum(lengths) - lengths / 2
    owners = (middles * world_size / lengths.sum()).astype(np.int64).clip(0, world_size - 1)
    first = 0
    for number, subject in enumerate(mmlu):
        mine = np.flatnonzero(owners[first : first + len(subject.items)] == rank)
        first += len(subject.items)
        if len(mine):
            yield number, range(int(mine[0]), int(mine[-1]) + 1)


def _compute_max_ids(tokenizer: TextTokenizer, max_length: int) -> int:
    """Return the maximum ids of a legacy prompt; a beginning token counts even if none is added."""
    return max_length - 1 + len(tokenizer.begin)


def encode_answers(
    tokenizer: TextTokenizer, mmlu: Mmlu, *, legacy: bool, max_length: int
) -> tuple[int, ...]:
    """Return the ids of the four answers: of each letter after a prompt, or (legacy) alone.

    Raises:
        DataError: they are not four different tokens, those after a prompt after the same ids;
            or the first line of a legacy prompt, which is never cut, is too long.
    """
    start = len(tokenizer.begin)
    if legacy:
        rule = "the letters A, B, C and D begin with four different tokens"
        letter_ids = [ids[start : start + 1] for ids in tokenizer.encode_prompts(LETTERS)]
        stems = []
    else:
        rule = "after `Answer:`, ` A`, ` B`, ` C` and ` D` end in four different tokens, and "
        rule += "all ids before them are the same"
        stem = format_prompt(mmlu[0].name, (), mmlu[0].items[0])
        encoded = tokenizer.encode_prompts(
            [stem + format_answer(number) for number in range(len(LETTERS))]
        )
        letter_ids, stems = [ids[-1:] for ids in encoded], [ids[:-1] for ids in encoded]
    letters = tuple(dict.fromkeys(number for ids in letter_ids for number in ids))
    if len(letters) < len(LETTERS) or any(ids != stems[0] for ids in stems):
        raise DataError(
            "the answers are not one token each",
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
                rule=f"mmlu_mode=legacy cuts prompts to seq_length={max_length}, but not that line",
                fix=f"add seq={longest + 1 - start} or more, or set mmlu_mode=full",
            )
    return letters


def _encode_prompts(
    tokenizer: TextTokenizer, level: PromptLevel, rows: Sequence[int], letter: int, subject: str
) -> list[list[int]]:
    """Return the ids of the prompts of ``rows``, up to the position of the answer.

    They are encoded with an answer, which is then removed: the space before a letter is
    part of the letter's token, or a separate token that belongs to the prompt.
    """
    encoded = tokenizer.encode_prompts([level.text(row) + format_answer(0) for row in rows])
    for row, ids in zip(rows, encoded, strict=True):
        if ids[-1] != letter:
            raise DataError(
                f"the answer after row {row + 1} of {subject} is not a separate token",
                where=str(tokenizer.file),
                rule="an answer is the same token after every prompt",
                fix="use the tokenizer that the model was trained with",
            )
    return [ids[:-1] for ids in encoded]


def count_common_prefix(prompts: Sequence[Ids]) -> int:
    """Return the length of the prefix common to all prompts, less than the shortest prompt."""
    length = min(len(ids) for ids in prompts) - 1
    for ids in prompts[1:]:
        differing = np.flatnonzero(ids[:length] != prompts[0][:length])
        length = int(differing[0]) if len(differing) else length
    return length
