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
        sample_order: sample numbers in the order of training, integers (samples,).
    """

    split: Samples
    documents: NDArray[Any]
    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sample_order: NDArray[Any]

    def __len__(self) -> int:
        return len(self.sample_order)

    def batch(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Counts]:
        """Return the tokens of samples, and how many samples, sequences and tokens they are.

        Args:
            rows: sample numbers, such as some entries of ``sample_order`` (B,).

        Returns:
            Token ids, int64 (B, seq_length + 1): the inputs are all but the last of a row, the
            targets all but the first. A sample is one sequence without padding.
        """
        num_tokens = len(rows) * self.split.seq_length
        counts = Counts(
            samples=len(rows), sequences=len(rows), tokens=num_tokens, tokens_padded=num_tokens
        )
        return self.gather_tokens(rows), counts

    def gather_tokens(self, numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of samples, each with the token that follows it: its last target.

        Sample ``i`` begins at token ``offsets[i]`` of document ``documents[positions[i]]`` and ends
        with the token at which sample ``i + 1`` begins.

        Args:
            numbers: sample numbers, such as some entries of ``sample_order`` (B,).

        Returns:
            Token ids, int64 (B, seq_length + 1).
        """
        # Where in ``corpus``, the tokens of all documents, each document begins and the last ends.
        document_starts = self.split.starts
        corpus = self.split.reader.tokens
        token_rows = np.empty((len(numbers), self.split.seq_length + 1), np.int64)
        for row, number in zip(token_rows, numbers, strict=True):
            # The indices in ``self.documents`` at which this sample and the next one begin.
            first, last = self.positions[number : number + 2]
            documents = self.documents[first : last + 1]  # that have tokens of the sample
            begins = document_starts[documents]
            ends = document_starts[documents + 1]
            # Cut off what follows the sample in its last document. The ``1`` keeps the token at
            # which the next sample begins. This line needs ``begins[-1]`` before the next line
            # moves it, which happens if the sample lies in one document.
            ends[-1] = begins[-1] + self.offsets[number + 1] + 1
            # Cut off what precedes the sample in its first document.
            begins[0] += self.offsets[number]
            pieces = [corpus[begin:end] for begin, end in zip(begins, ends, strict=True)]
            np.concatenate(pieces, out=row)
        return token_rows


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one split.

    Args:
        reader: the pair of indexed token files.
        documents: consecutive document numbers of the reader.
        seq_length: number of tokens that a sample predicts; it holds one more.
        seed: of the shuffles of documents and of samples; equal seeds give equal epochs on every
            rank.
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
        """Where each document of the split begins, then the end of the last, (documents + 1,).

        These are indices of tokens in the reader's ``tokens``.
        """
        return self.reader.find_token_starts(self.documents)

    def __len__(self) -> int:
        count = count_samples(self.num_tokens, self.seq_length)
        return count if self.max_samples is None else min(self.max_samples, count)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the split, including those after the last whole sample."""
        return int(self.starts[-1] - self.starts[0])

    def build_unshuffled_epoch(self) -> EpochIndex:
        """Return an epoch with documents and samples in the order of the files.

        Evaluation uses it.
        """
        document_order = np.arange(len(self.documents))
        sample_order = np.arange(len(self))
        arrays = self._cut_samples(document_order, sample_order)
        return EpochIndex(self, *arrays)

    def build_epoch(self, number: int) -> EpochIndex:
        """Return the shuffled samples of one epoch.

        As in Megatron, epochs are shuffled in groups. A group has as many epochs as are needed for
        ``shuffled_together`` samples. The orders of a group are cached in the folder ``cache``,
        unless it is None.

        Args:
            number: the epoch, from 0.
        """
        samples = len(self)
        if samples == 0:  # nothing to shuffle; there may be no token by which to divide
            return self.build_unshuffled_epoch()
        needed_tokens = self.shuffled_together * self.seq_length + 1  # 1: the last sample's target
        epochs_per_group = -(-needed_tokens // self.num_tokens)  # rounded up
        group, epoch_of_group = divmod(number, epochs_per_group)
        # Each group has its own order. RandomState takes seeds of 32 bits.
        seed = (self.seed + group) % 2**32

        def build() -> list[NDArray[Any]]:
            return self._shuffle_epochs(epochs_per_group, np.random.RandomState(seed))

        arrays = load_or_build_arrays(self.cache / str(seed), build) if self.cache else build()
        document_order, positions, offsets, sample_order = arrays  # of the whole group
        # Tokens after the last whole sample of an epoch may make further samples with the tokens of
        # the next epoch. Each epoch takes as many samples as it has alone; the last few of the
        # group are left out.
        first = epoch_of_group * samples
        order_of_epoch = sample_order[first : first + samples]
        return EpochIndex(self, document_order, positions, offsets, order_of_epoch)

    def _shuffle_epochs(self, num_epochs: int, random: np.random.RandomState) -> list[NDArray[Any]]:
        """Return the arrays of an ``EpochIndex`` for epochs that are shuffled together.

        Like Megatron, it shuffles the last epoch separately if less than 80% of it is needed to
        reach ``shuffled_together``, the number of samples that are shuffled together.

        Args:
            num_epochs: number of epochs of the group.
            random: the generator, with the seed of this group.

        Returns:
            ``documents``, ``positions``, ``offsets`` and ``sample_order`` of an ``EpochIndex``,
            for all epochs of the group.
        """
        num_samples = count_samples(num_epochs * self.num_tokens, self.seq_length)
        num_before_last = count_samples((num_epochs - 1) * self.num_tokens, self.seq_length)
        num_needed_of_last = self.shuffled_together - num_before_last
        documents = np.arange(len(self.documents), dtype=np.int32)
        sample_numbers = np.arange(num_samples)
        # Orders of documents and of samples, in parts that are shuffled separately: the last epoch
        # and all before it, or all together. ``len(self)`` is the number of samples of an epoch;
        # Megatron rounds 80% of it down, too.
        document_parts: list[NDArray[Any]]
        if num_epochs > 1 and num_needed_of_last < int(0.8 * len(self)):
            document_parts = [np.tile(documents, num_epochs - 1), documents]
            sample_parts = np.split(sample_numbers, [num_before_last])
        else:
            document_parts = [np.tile(documents, num_epochs)]
            sample_parts = [sample_numbers]
        # In Megatron, too, one generator shuffles first the documents and then the samples.
        for part in document_parts:
            random.shuffle(part)
        for part in sample_parts:
            random.shuffle(part)
        return self._cut_samples(np.concatenate(document_parts), np.concatenate(sample_parts))

    def _cut_samples(
        self, document_order: NDArray[Any], sample_order: NDArray[Any]
    ) -> list[NDArray[Any]]:
        """Concatenate documents and cut them into samples; return the arrays of an ``EpochIndex``.

        Args:
            document_order: document numbers, in the order in which the documents are concatenated.
            sample_order: numbers of the samples that are cut from them, in the order of training.

        Returns:
            Four arrays: ``document_order``, ``positions``, ``offsets`` and ``sample_order``. Sample
            ``i`` begins at token ``offsets[i]`` of document ``document_order[positions[i]]``.
        """
        # ``starts`` has the first token of each document, then the end of the last one.
        sizes = np.diff(self.starts)[document_order]
        positions, offsets = cut_documents(sizes, self.seq_length)
        return [document_order, positions, offsets, sample_order]


@dataclass(frozen=True, slots=True)
class Splits:
    """The samples that a rank trains and evaluates; ``content_id`` identifies the tokens."""

    train: Samples
    validation: Samples
    content_id: str


def cut_documents(
    sizes: NDArray[np.int64], seq_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find where samples begin if concatenated documents are cut every ``seq_length`` tokens.

    The cuts are at the tokens 0, ``seq_length``, 2 * ``seq_length`` and so on. A sample ends with
    the token at the next cut, which is its last target, so no sample begins at the last cut.

    Args:
        sizes: number of tokens of each document, in order (documents,).

    Returns:
        Two int64 arrays with an entry for each cut (samples + 1,), empty if there is no token: the
        index in ``sizes`` of the document of the cut, and the number of tokens of this document
        before the cut.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    cuts_before_end = -(-ends // seq_length)  # rounded up: there is a cut at token 0
    cuts_in_document = np.diff(cuts_before_end, prepend=0)
    positions = np.repeat(np.arange(len(sizes)), cuts_in_document)
    positions[:1] = 0  # as in Megatron, sample 0 begins at document 0, even if that is empty
    starts = ends - sizes
    offsets = np.arange(len(positions)) * seq_length - starts[positions]
    return positions, offsets
