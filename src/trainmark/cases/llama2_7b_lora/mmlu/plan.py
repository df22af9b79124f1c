"""Which MMLU prompts a rank scores, as token ids grouped by their common prefix.

Owns the number of shots that fit, the four answer tokens, and the split over ranks and into
batches. Must not know torch or the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trainmark.errors import DataError

from .prompts import answer, prompt
from .questions import LETTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ..data.tokens import TextTokenizer
    from .questions import Mmlu, Subject

    Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
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

    def batches(self, tokens: int) -> Iterator[range]:
        """Yield runs of items whose rests have at most ``tokens`` ids in total, or one item."""
        first = held = 0
        for number, rest in enumerate(self.rests):
            if number > first and held + len(rest) > tokens:
                yield range(first, number)
                first, held = number, 0
            held += len(rest)
        yield range(first, len(self.rests))


@dataclass(frozen=True, slots=True)
class Plan:
    """The prompts that one rank scores.

    Args:
        groups: its prompts.
        letters: the ids of the four answers.
        items: items of all ranks together.
    """

    groups: Sequence[Group]
    letters: tuple[int, int, int, int]
    items: int


@dataclass(frozen=True, slots=True)
class Level:
    """One way to shorten prompts; rows that are too long at one level try the next.

    Args:
        shots: solved examples before each question.
        cut: the questions are truncated.
        encode: returns the ids of the prompts of some rows.
    """

    shots: int
    cut: bool
    encode: Callable[[Sequence[int]], Sequence[Sequence[int] | Ids]]


def plan_levels(
    mmlu: Mmlu,
    letters: tuple[int, int, int, int],
    levels: Callable[[Subject, range], Iterator[Level]],
    *,
    most_ids: int,
    rank: int,
    world_size: int,
) -> Plan:
    """Return each prompt of ``rank`` at its first level with ``most_ids`` ids or fewer.

    Args:
        levels: yields the levels of a subject's rows, longest prompts first; the last one fits.
    """
    groups: list[Group] = []
    for number, rows in shares(mmlu, rank=rank, world_size=world_size):
        left = list(rows)
        for level in levels(mmlu[number], rows):
            found = dict(zip(left, level.encode(left), strict=True))
            left = [row for row in found if len(found[row]) > most_ids]
            fitting = [row for row in found if len(found[row]) <= most_ids]
            if fitting:
                prompts = [np.asarray(found[row], np.int64) for row in fitting]
                length = common_prefix(prompts)
                rests = [ids[length:] for ids in prompts]
                prefix = prompts[0][:length]
                groups.append(Group(number, level.shots, prefix, rests, fitting, level.cut))
            if not left:
                break
    return Plan(groups, letters, sum(len(subject.items) for subject in mmlu))


def plan_scoring(
    tokenizer: TextTokenizer,
    mmlu: Mmlu,
    *,
    shots: int = 5,
    max_length: int,
    rank: int = 0,
    world_size: int = 1,
) -> Plan:
    """Return the prompts that ``rank`` scores; all ranks together score each item once.

    Args:
        shots: solved examples before each question; where the prompt is longer than
            ``max_length`` ids, the last ones are dropped.

    Raises:
        DataError: the tokenizer does not encode each of the four answers as one token.
    """
    letters = answer_ids(tokenizer, mmlu[0])

    def levels(subject: Subject, _rows: range) -> Iterator[Level]:
        for count in range(min(shots, len(subject.shots)), -1, -1):
            yield Level(count, False, partial(_encode, tokenizer, subject, count, letters))
        yield Level(0, True, lambda rows: [
            ids[-max_length:] for ids in _encode(tokenizer, subject, 0, letters, rows)
        ])  # fmt: skip

    return plan_levels(mmlu, letters, levels, most_ids=max_length, rank=rank, world_size=world_size)


def shares(mmlu: Mmlu, *, rank: int, world_size: int) -> Iterator[tuple[int, range]]:
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


def answer_ids(tokenizer: TextTokenizer, subject: Subject) -> tuple[int, int, int, int]:
    """Return the ids of the four answers after a prompt.

    Raises:
        DataError: they are not four different tokens after the same ids.
    """
    stem = prompt(subject.name, (), subject.items[0])
    a, b, c, d = tokenizer.prompts([stem + answer(number) for number in range(len(LETTERS))])
    found = a[-1], b[-1], c[-1], d[-1]
    if not a[:-1] == b[:-1] == c[:-1] == d[:-1] or len(set(found)) < len(LETTERS):
        raise DataError(
            "the answers are not one token each",
            where=str(tokenizer.file),
            rule="after `Answer:`, ` A`, ` B`, ` C` and ` D` end in four different tokens, and "
            "all ids before them are the same",
            remedy="use the tokenizer that the model was trained with, or set mmlu_mode=off",
        )
    return found


def _encode(
    tokenizer: TextTokenizer,
    subject: Subject,
    count: int,
    letters: Sequence[int],
    rows: Sequence[int],
) -> list[Sequence[int]]:
    """Return the ids of the prompts of ``rows``, up to the position of the answer.

    They are encoded with an answer, which is then removed: the space before a letter is
    part of the letter's token, or a separate token that belongs to the prompt.
    """
    shots = subject.shots[:count]
    texts = [prompt(subject.name, shots, subject.items[row]) + answer(0) for row in rows]
    found = tokenizer.prompts(texts)
    for row, ids in zip(rows, found, strict=True):
        if ids[-1] != letters[0]:
            raise DataError(
                f"the answer after row {row + 1} of {subject.name} is not a separate token",
                where=str(tokenizer.file),
                rule="an answer is the same token after every prompt",
                remedy="use the tokenizer that the model was trained with",
            )
    return [ids[:-1] for ids in found]


def common_prefix(prompts: Sequence[Ids]) -> int:
    """Return the length of the prefix common to all prompts, less than the shortest prompt."""
    length = min(len(ids) for ids in prompts) - 1
    for ids in prompts[1:]:
        differing = np.flatnonzero(ids[:length] != prompts[0][:length])
        length = int(differing[0]) if len(differing) else length
    return length
