"""Which tokens a sample holds, and the order of documents and samples.

Owns Megatron's sampling: an epoch, or several together, joins the documents of a split in a
shuffled order and cuts them every ``seq_length`` tokens, so that consecutive samples share one
token; samples are then shuffled. The orders are those of Megatron's GPTDataset (core 0.10) with the
same seed, built in linear time without a loop over documents or samples. Must not know
vocabularies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import load_or_build_arrays
from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.data.indexed import IndexedReader


def count_samples(num_tokens: int, seq_length: int) -> int:
    """Return how many samples that share one token with the next fit into some tokens."""
    return max(0, (num_tokens - 1) // seq_length)


@dataclass(frozen=True, slots=True, eq=False)
class EpochIndex:
    """One epoch's samples, in the order in which the documents follow one another.

    See ``trainmark.data.splits.Split``.

    Sample ``i`` begins at token ``offsets[i]`` of the document at ``positions[i]`` in
    ``documents`` and ends with the token where sample ``i + 1`` begins.

    Args:
        split: the samples of all epochs.
        documents: numbers within the split, in the epoch's order, whole numbers (documents,).
        positions: int64 (samples + 1,).
        offsets: int64 (samples + 1,).
        shuffle: sample numbers in the order of training, whole numbers (samples,).
    """

    split: Samples
    documents: NDArray[Any]
    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    shuffle: NDArray[Any]

    def __len__(self) -> int:
        return len(self.shuffle)

    def batch(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Counts]:
        """Return token ids (B, seq_length + 1): each is read and predicted but for the ends."""
        tokens = len(rows) * self.split.seq_length
        return self.gather_tokens(rows), Counts(len(rows), len(rows), tokens, tokens)

    def gather_tokens(self, numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of samples, each with the token after it.

        Args:
            numbers: sample numbers as ``shuffle`` holds them, (B,).

        Returns:
            int64 (B, seq_length + 1).
        """
        starts, corpus = self.split.starts, self.split.reader.tokens
        token_rows = np.empty((len(numbers), self.split.seq_length + 1), np.int64)
        for row, number in zip(token_rows, numbers, strict=True):
            first, last = self.positions[number : number + 2]
            touched = self.documents[first : last + 1]  # empty ones between included
            begins, ends = starts[touched], starts[touched + 1]
            ends[-1] = begins[-1] + self.offsets[number + 1] + 1
            begins[0] += self.offsets[number]
            pieces = zip(begins, ends, strict=True)
            np.concatenate([corpus[begin:end] for begin, end in pieces], out=row)
        return token_rows


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one split.

    Args:
        documents: contiguous document numbers of the reader.
        seq_length: tokens that a sample predicts; it holds one more.
        seed: of both shuffles; equal seeds give equal epochs on every rank.
        together: as many epochs as hold so many samples are shuffled together.
        cache: folder for the orders, whose name says all that they depend on but the seed; none:
            they are built where they are needed.
        most: samples that there are at most, the first in the documents' order; for evaluation.
    """

    reader: IndexedReader
    documents: range
    seq_length: int
    seed: int
    shuffled_together: int = 1
    cache: Path | None = None
    max_samples: int | None = None

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Token at which each document begins and the last one ends, (documents + 1,)."""
        return self.reader.find_token_starts(self.documents)

    def __len__(self) -> int:
        count = count_samples(self.num_tokens, self.seq_length)
        return count if self.max_samples is None else min(self.max_samples, count)

    @property
    def num_tokens(self) -> int:
        """Tokens of the split, those after the last whole sample included."""
        return int(self.starts[-1] - self.starts[0])

    def build_unshuffled_epoch(self) -> EpochIndex:
        """Return the samples of the documents as they stand, nothing shuffled."""
        whole = self._cut_samples(np.arange(len(self.documents)), np.arange(len(self)))
        return EpochIndex(self, *whole)

    def build_epoch(self, number: int) -> EpochIndex:
        """Return the shuffled samples of one epoch, counted from 0."""
        samples = len(self)
        if samples == 0:
            return self.build_unshuffled_epoch()
        epochs = -(-(self.shuffled_together * self.seq_length + 1) // self.num_tokens)
        drawn, part = divmod(number, epochs)  # those shuffled together, and which of them
        seed = (self.seed + drawn) % 2**32  # as many seeds as numpy's older generator has

        def build() -> list[NDArray[Any]]:
            return self._shuffle_epochs(epochs, np.random.RandomState(seed))

        built = load_or_build_arrays(self.cache / str(seed), build) if self.cache else build()
        order, positions, offsets, shuffle = built
        mine = shuffle[part * samples : (part + 1) * samples]
        return EpochIndex(self, order, positions, offsets, mine)

    def _shuffle_epochs(self, epochs: int, random: np.random.RandomState) -> list[NDArray[Any]]:
        """Return the order of some epochs shuffled together.

        Megatron keeps the last epoch apart where less than 80% of it are asked for.
        """
        total = count_samples(epochs * self.num_tokens, self.seq_length)
        before = count_samples((epochs - 1) * self.num_tokens, self.seq_length)
        apart = epochs > 1 and self.shuffled_together - before < int(0.8 * len(self))
        each = np.arange(len(self.documents), dtype=np.int32)
        orders = [np.tile(each, count) for count in ([epochs - 1, 1] if apart else [epochs])]
        for order in orders:
            random.shuffle(order)
        shuffles = np.split(np.arange(total), [before] if apart else [])
        for shuffle in shuffles:
            random.shuffle(shuffle)
        return self._cut_samples(np.concatenate(orders), np.concatenate(shuffles))

    def _cut_samples(self, order: NDArray[Any], shuffle: NDArray[Any]) -> list[NDArray[Any]]:
        return [order, *cut_documents(np.diff(self.starts)[order], self.seq_length), shuffle]


@dataclass(frozen=True, slots=True)
class Splits:
    """What a rank trains and scores; ``content_id`` names the tokens."""

    train: Samples
    validation: Samples
    content_id: str


def cut_documents(
    sizes: NDArray[np.int64], seq_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut documents that follow one another every ``seq_length`` tokens.

    Args:
        sizes: tokens of each document, in order (documents,).

    Returns:
        document and token within it at which each sample begins and the last one ends, both
        int64 (samples + 1,); empty where there is no token.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    # A multiple of seq_length below a document's end is a cut in it or before it.
    cuts = -(-ends // seq_length)
    positions = np.repeat(np.arange(len(sizes)), np.diff(cuts, prepend=0))
    positions[:1] = 0  # the first sample begins at the first document, were it empty, as Megatron's
    offsets = np.arange(len(positions)) * seq_length - (ends - sizes)[positions]
    return positions, offsets
