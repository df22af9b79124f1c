"""Cloze samples as choice sequences, and their batches.

A sample has one sequence for each candidate: the context (passage and question, with a mask at the
gap), which all tokens attend to, and from the separator on the answer block, which predicts the
candidate. Samples may have different numbers of candidates; a batch contains exactly the sequences
of its samples, without filler sequences. This module lays out batches and orders the samples of an
epoch by their numbers of candidates. Numpy only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from trainmark.train.shards import Sharding

LENGTH_MULTIPLE = 8  # lengths of trimmed batches are multiples of it, as matrix units need


class ChoiceSequence(NamedTuple):
    """One candidate in its context, without padding; T tokens, A targets.

    Args:
        ids: token ids (T,): context, then the start token and the candidate's tokens.
        positions, block_positions: position ids (T,) of the two tables.
        separator: index at which the answer block begins; attention is bidirectional before it.
        target_rows: positions within the sequence whose output is scored (A,).
        target_ids: the token to be predicted at each of them (A,).
        correct: whether the candidate is a right answer.
    """

    ids: NDArray[Any]
    positions: NDArray[Any]
    block_positions: NDArray[Any]
    separator: int
    target_rows: NDArray[Any]
    target_ids: NDArray[Any]
    correct: bool


@dataclass(frozen=True, slots=True)
class ChoiceBatch:
    """B samples with N sequences of S tokens in total, and K targets.

    Args:
        num_samples: B.
        ids, positions, block_positions: int64 (N, S); 0 where padded.
        prefix_lengths: number of tokens before each answer block, int64 (N,).
        lengths: number of tokens without padding, int64 (N,).
        sample_of_sequence: index of the sequence's sample in the batch, ascending, int64 (N,).
        choice_of_sequence: index of the candidate in its sample, int64 (N,).
        correct: whether the candidate is right, bool (N,); in training only the first one is.
        target_rows: flat indices into N x S, int64 (K,).
        target_ids: int64 (K,).
        sequence_of_target: index of the target's sequence, ascending, int64 (K,).
    """

    num_samples: int
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    block_positions: NDArray[np.int64]
    prefix_lengths: NDArray[np.int64]
    lengths: NDArray[np.int64]
    sample_of_sequence: NDArray[np.int64]
    choice_of_sequence: NDArray[np.int64]
    correct: NDArray[np.bool_]
    target_rows: NDArray[np.int64]
    target_ids: NDArray[np.int64]
    sequence_of_target: NDArray[np.int64]

    @property
    def max_choices(self) -> int:
        """Number of candidates of the sample with the most."""
        return int(self.choice_of_sequence.max()) + 1  # a sample's candidates are counted from 0

    @property
    def first_ids(self) -> NDArray[np.int64]:
        """Token ids of the first sequence of each of B samples (B, S): they identify the sample."""
        first_ids: NDArray[np.int64] = self.ids[self.choice_of_sequence == 0]
        return first_ids

    def split_sequences(self, max_sequences: int) -> Iterator[ChoiceBatch]:
        """Yield batches of at most ``max_sequences`` consecutive sequences.

        The candidates of a sample may be in several batches. ``num_samples`` and the indices of
        samples in ``sample_of_sequence`` still refer to the whole batch.
        """
        width = self.ids.shape[1]  # tokens of a sequence, including padding
        for first in range(0, len(self.ids), max_sequences):
            end = first + max_sequences
            part = slice(first, end)
            # The targets are in the order of their sequences.
            first_target, end_target = np.searchsorted(self.sequence_of_target, (first, end))
            targets = slice(first_target, end_target)
            yield ChoiceBatch(
                num_samples=self.num_samples,
                ids=self.ids[part],
                positions=self.positions[part],
                block_positions=self.block_positions[part],
                prefix_lengths=self.prefix_lengths[part],
                lengths=self.lengths[part],
                sample_of_sequence=self.sample_of_sequence[part],
                choice_of_sequence=self.choice_of_sequence[part],
                correct=self.correct[part],
                # ``target_rows`` are indices of tokens in the flattened batch. Tokens and sequences
                # are now counted from the first one of the part.
                target_rows=self.target_rows[targets] - first * width,
                target_ids=self.target_ids[targets],
                sequence_of_target=self.sequence_of_target[targets] - first,
            )


class Examples(ABC):
    """One split; see ``trainmark.data.splits.Split``. Samples are numbered from 0.

    A sample is a question with several candidates, each of which is a sequence of its own.

    Args:
        seq_length: number of tokens that every sequence is padded to.
        num_choices: number of candidates of each sample, int64 (samples,).
        trim: pad only to the longest sequence of a batch, rounded up to a multiple of 8.
    """

    seq_length: int
    num_choices: NDArray[np.int64]
    trim: bool = False

    @property
    def num_shortened(self) -> int | None:
        """Number of samples with a shortened passage; None: not known."""
        # A subclass that shortens passages itself overrides this. Sequences that are read from a
        # file may have been shortened by the program that wrote it.
        return None

    def __len__(self) -> int:
        return len(self.num_choices)

    @abstractmethod
    def build_sequences(self, row: int) -> list[ChoiceSequence]:
        """Return the sequences of one sample, one for each candidate.

        Raises:
            DataError: the sample is invalid; the error names its place.
        """

    def compute_mean_tokens(self) -> float:
        """Return the mean number of tokens of the samples' longest sequences; 0: not known."""
        return 0.0

    def batch(self, rows: Iterable[int]) -> tuple[ChoiceBatch, Counts]:
        """Return the batch of the samples ``rows`` and its counts."""
        samples = [self.build_sequences(int(row)) for row in rows]
        batch = _lay_out_sequences(samples, self.seq_length, trim=self.trim)
        counts = Counts(
            samples=len(samples),
            sequences=len(batch.ids),
            tokens=int(batch.lengths.sum()),  # without padding
            tokens_padded=batch.ids.size,  # including padding
        )
        return batch, counts


def _lay_out_sequences(
    samples: list[list[ChoiceSequence]], seq_length: int, *, trim: bool
) -> ChoiceBatch:
    """Return the batch of ``samples``, padded with zeros.

    Args:
        samples: the sequences of each sample, one for each candidate.
        seq_length: number of tokens that every sequence is padded to without ``trim``.
        trim: pad only to the longest sequence, rounded up to a multiple of ``LENGTH_MULTIPLE``.
    """
    sequences = [sequence for sample in samples for sequence in sample]
    lengths = np.fromiter((len(item.ids) for item in sequences), np.int64, len(sequences))
    width = seq_length
    if trim:
        longest = int(lengths.max())
        num_multiples = -(-longest // LENGTH_MULTIPLE)  # rounded up
        width = min(seq_length, num_multiples * LENGTH_MULTIPLE)
    ids = np.zeros((len(sequences), width), np.int64)
    positions = np.zeros_like(ids)
    block_positions = np.zeros_like(ids)
    for number, item in enumerate(sequences):
        length = len(item.ids)
        ids[number, :length] = item.ids
        positions[number, :length] = item.positions
        block_positions[number, :length] = item.block_positions
    num_targets = [len(item.target_ids) for item in sequences]
    sequence_of_target = np.repeat(np.arange(len(sequences)), num_targets)
    target_rows = np.concatenate([item.target_rows for item in sequences]).astype(np.int64)
    num_choices = [len(sample) for sample in samples]
    return ChoiceBatch(
        num_samples=len(samples),
        ids=ids,
        positions=positions,
        block_positions=block_positions,
        # The answer block begins at the separator, so this is also the number of tokens before it.
        prefix_lengths=np.fromiter(
            (item.separator for item in sequences), np.int64, len(sequences)
        ),
        lengths=lengths,
        # Of each sequence, the sample and the number of the candidate in it.
        sample_of_sequence=np.repeat(np.arange(len(samples)), num_choices),
        choice_of_sequence=np.concatenate([np.arange(count) for count in num_choices]),
        correct=np.fromiter((item.correct for item in sequences), np.bool_, len(sequences)),
        # A target's index in its sequence becomes its index in the flattened batch.
        target_rows=target_rows + sequence_of_target * width,
        target_ids=np.concatenate([item.target_ids for item in sequences]).astype(np.int64),
        sequence_of_target=sequence_of_target,
    )


def order_by_choices(
    num_choices: NDArray[np.int64], sharding: Sharding, epoch: int
) -> NDArray[np.int64]:
    """Return an order of an epoch that gives ranks similar numbers of candidates per micro-batch.

    The cost of a step on a rank depends on the number of candidates of its samples, and the slowest
    rank determines the step time.

    A group is the samples that all ranks process in one micro-batch. The samples are sorted by
    their number of candidates and cut into groups. Then the groups are shuffled, and the samples
    within each group. Every sample occurs once, and every place in the epoch is equally likely for
    it.

    Args:
        num_choices: number of candidates of each sample, int64 (samples,).

    Returns:
        Sample numbers in the order that ``Sharding.micro_batches`` expects, int64 (samples,).
    """
    rng = np.random.default_rng([sharding.seed, epoch])
    group_size = sharding.micro_batch_size * sharding.world_size
    num_groups = len(num_choices) // group_size
    shuffled = rng.permutation(len(num_choices))
    grouped = shuffled[: num_groups * group_size]
    # The samples that do not fill a group. They are drawn before the sort, so that they are not
    # those with the most candidates.
    ungrouped = shuffled[num_groups * group_size :]
    # A stable sort of shuffled samples leaves those with equal numbers in random order.
    ordered = grouped[np.argsort(num_choices[grouped], kind="stable")]
    # Shuffle within each group, then shuffle the groups.
    groups = rng.permuted(ordered.reshape(num_groups, group_size), axis=1)
    groups = groups[rng.permutation(num_groups)]
    return np.concatenate([_order_by_rank(groups, sharding), ungrouped])


def _order_by_rank(groups: NDArray[np.int64], sharding: Sharding) -> NDArray[np.int64]:
    """Return the samples in an order in which ``Sharding`` makes each group a micro-batch.

    ``Sharding`` gives each rank a contiguous share of a step and divides this share into
    micro-batches. So the samples of each step are ordered by rank, then by micro-batch.

    The groups at the end that do not fill a step are not reordered. They are in the last step of
    the epoch, to which the caller adds the samples that do not fill a group. In that step a rank's
    share may begin inside a group, so no order would make each group a micro-batch.

    Args:
        groups: the samples that all ranks process in each micro-batch (groups, samples of a group).
    """
    num_full_steps = len(groups) // sharding.grad_accum_steps
    num_in_full_steps = num_full_steps * sharding.grad_accum_steps
    full_steps = groups[:num_in_full_steps].reshape(
        num_full_steps, sharding.grad_accum_steps, sharding.world_size, sharding.micro_batch_size
    )
    # From (steps, micro-batches, ranks, samples) to (steps, ranks, micro-batches, samples).
    full_steps = full_steps.swapaxes(1, 2)
    last_step = groups[num_in_full_steps:]
    return np.concatenate([full_steps.reshape(-1), last_step.reshape(-1)])
