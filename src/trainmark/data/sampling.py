"""Megatron's sampling: which tokens a sample holds, and the order of documents and samples.

An epoch, or several epochs together, concatenates the documents of a split in a shuffled order and
cuts them every ``seq_length`` tokens, so that consecutive samples share one token. Then the samples
are shuffled. The orders equal those of Megatron's GPTDataset (core 0.10) with the same seed; they
are built in linear time without a loop over documents or samples.
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
    """Return the number of samples in ``num_tokens``; each shares its last token with the next."""
    return max(0, (num_tokens - 1) // seq_length)


@dataclass(frozen=True, slots=True, eq=False)
class EpochIndex:
    """The samples of one epoch; see ``trainmark.data.splits.Split``.

    Sample ``i`` begins at token ``offsets[i]`` of document ``documents[positions[i]]`` and ends
    with the token at which sample ``i + 1`` begins.

    Args:
        split: the samples of all epochs.
        documents: document numbers within the split, in the order of the epoch, integers
            (documents,).
        positions: indices into ``documents``, int64 (samples + 1,).
        offsets: int64 (samples + 1,).
        shuffle: sample numbers in the order of training, integers (samples,).
    """

    split: Samples
    documents: NDArray[Any]
    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    shuffle: NDArray[Any]

    def __len__(self) -> int:
        return len(self.shuffle)

    def batch(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Counts]:
        """Return token ids (B, seq_length + 1): inputs and, shifted by one, targets."""
        tokens = len(rows) * self.split.seq_length
        return self.gather_tokens(rows), Counts(len(rows), len(rows), tokens, tokens)

    def gather_tokens(self, numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of samples, each with the token that follows it.

        Args:
            numbers: sample numbers, as in ``shuffle`` (B,).

        Returns:
            int64 (B, seq_length + 1).
        """
        starts, corpus = self.split.starts, self.split.reader.tokens
        token_rows = np.empty((len(numbers), self.split.seq_length + 1), np.int64)
        for row, number in zip(token_rows, numbers, strict=True):
            first, last = self.positions[number : number + 2]
            documents = self.documents[first : last + 1]  # those that the sample lies in
            begins, ends = starts[documents], starts[documents + 1]
            ends[-1] = begins[-1] + self.offsets[number + 1] + 1
            begins[0] += self.offsets[number]
            pieces = zip(begins, ends, strict=True)
            np.concatenate([corpus[begin:end] for begin, end in pieces], out=row)
        return token_rows


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one split.

    Args:
        reader: the pair of indexed token files.
        documents: consecutive document numbers of the reader.
        seq_length: number of tokens that a sample predicts; it holds one more.
        seed: of both shuffles; equal seeds give equal epochs on every rank.
        shuffled_together: number of samples; as many epochs as hold them are shuffled together.
        cache: folder for the orders, whose name contains everything that they depend on but the
            seed; None: they are not cached.
        max_samples: maximum number of samples, the first ones in the order of the documents; for
            evaluation.
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
        """The first token of each document, then the end of the last one, (documents + 1,)."""
        return self.reader.find_token_starts(self.documents)

    def __len__(self) -> int:
        count = count_samples(self.num_tokens, self.seq_length)
        return count if self.max_samples is None else min(self.max_samples, count)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the split, including those after the last whole sample."""
        return int(self.starts[-1] - self.starts[0])

    def build_unshuffled_epoch(self) -> EpochIndex:
        """Return the samples with documents and samples in the order of the files."""
        arrays = self._cut_samples(np.arange(len(self.documents)), np.arange(len(self)))
        return EpochIndex(self, *arrays)

    def build_epoch(self, number: int) -> EpochIndex:
        """Return the shuffled samples of one epoch, counted from 0."""
        samples = len(self)
        if samples == 0:
            return self.build_unshuffled_epoch()
        # Epochs are shuffled in groups; this epoch is number ``part`` of its group.
        group_size = -(-(self.shuffled_together * self.seq_length + 1) // self.num_tokens)
        group, part = divmod(number, group_size)
        seed = (self.seed + group) % 2**32  # RandomState takes seeds of 32 bits

        def build() -> list[NDArray[Any]]:
            return self._shuffle_epochs(group_size, np.random.RandomState(seed))

        arrays = load_or_build_arrays(self.cache / str(seed), build) if self.cache else build()
        order, positions, offsets, shuffle = arrays
        shuffle_of_epoch = shuffle[part * samples : (part + 1) * samples]
        return EpochIndex(self, order, positions, offsets, shuffle_of_epoch)

    def _shuffle_epochs(self, epochs: int, random: np.random.RandomState) -> list[NDArray[Any]]:
        """Return order, positions, offsets and shuffle of epochs that are shuffled together.

        Megatron shuffles the last epoch separately if less than 80% of it is needed.
        """
        total = count_samples(epochs * self.num_tokens, self.seq_length)
        before_last = count_samples((epochs - 1) * self.num_tokens, self.seq_length)
        needed_of_last = self.shuffled_together - before_last
        documents = np.arange(len(self.documents), dtype=np.int32)
        if epochs > 1 and needed_of_last < int(0.8 * len(self)):
            orders = [np.tile(documents, epochs - 1), documents.copy()]
            shuffles = np.split(np.arange(total), [before_last])
        else:
            orders = [np.tile(documents, epochs)]
            shuffles = [np.arange(total)]
        for order in orders:
            random.shuffle(order)
        for shuffle in shuffles:
            random.shuffle(shuffle)
        return self._cut_samples(np.concatenate(orders), np.concatenate(shuffles))

    def _cut_samples(self, order: NDArray[Any], shuffle: NDArray[Any]) -> list[NDArray[Any]]:
        return [order, *cut_documents(np.diff(self.starts)[order], self.seq_length), shuffle]


@dataclass(frozen=True, slots=True)
class Splits:
    """The samples that a rank trains and evaluates; ``content_id`` identifies the tokens."""

    train: Samples
    validation: Samples
    content_id: str


def cut_documents(
    sizes: NDArray[np.int64], seq_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut concatenated documents every ``seq_length`` tokens.

    Args:
        sizes: number of tokens of each document, in order (documents,).

    Returns:
        The document, and the token within it, at which each sample begins and the last one ends,
        both int64 (samples + 1,); empty if there is no token.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    # For each document, the number of cuts in it and in the documents before it.
    cuts = -(-ends // seq_length)
    positions = np.repeat(np.arange(len(sizes)), np.diff(cuts, prepend=0))
    positions[:1] = 0  # as in Megatron, sample 0 begins at document 0, even if that is empty
    offsets = np.arange(len(positions)) * seq_length - (ends - sizes)[positions]
    return positions, offsets
