"""Cloze samples as choice sequences, and batches out of them.

Owns the form that every source of samples gives, how sequences are laid out in a batch, and
the order of an epoch by numbers of candidates. A sample has one sequence a candidate;
candidates that do not exist are never run, so a batch holds as many sequences as its samples
have candidates together. Numpy only.
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

LENGTH_MULTIPLE = 8  # of a trimmed batch: matrix units take such lengths as they are


class ChoiceSequence(NamedTuple):
    """One candidate in its context, without padding; T tokens, A targets.

    Args:
        ids: token ids (T,): context, then the start token and the candidate's tokens.
        positions, block_positions: position ids (T,) of the two tables.
        separator: where the answer block begins; attention is full before it.
        target_rows: positions within the sequence (A,) whose output is scored.
        target_ids: the token that each of them should give (A,).
        correct: the candidate is a right one.
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
    """B samples with N sequences of S tokens together, and K targets; all on the host.

    Args:
        samples: B.
        ids, positions, block_positions: int64 (N, S); 0 where padded.
        separators: int64 (N,), where each answer block begins.
        lengths: int64 (N,), tokens without padding.
        owner: int64 (N,), number of the sequence's sample in the batch, ascending.
        slot: int64 (N,), number of the candidate in its sample, from 0.
        correct: bool (N,), the candidate is a right one; in training the first alone is.
        target_rows: int64 (K,), flat indices into N x S.
        target_ids: int64 (K,).
        target_owner: int64 (K,), number of the target's sequence, ascending.
    """

    samples: int
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    block_positions: NDArray[np.int64]
    separators: NDArray[np.int64]
    lengths: NDArray[np.int64]
    owner: NDArray[np.int64]
    slot: NDArray[np.int64]
    correct: NDArray[np.bool_]
    target_rows: NDArray[np.int64]
    target_ids: NDArray[np.int64]
    target_owner: NDArray[np.int64]

    @property
    def max_choices(self) -> int:
        """Candidates of the sample that has most: the width scores are padded to."""
        return int(self.slot.max()) + 1

    @property
    def first_ids(self) -> NDArray[np.int64]:
        """Ids of each sample's first sequence (B, S), which tell samples apart."""
        first_ids: NDArray[np.int64] = self.ids[self.slot == 0]
        return first_ids

    def split_sequences(self, max_sequences: int) -> Iterator[ChoiceBatch]:
        """Yield runs of at most ``max_sequences`` sequences; a sample may lie in several.

        ``samples`` and ``owner`` stay those of the whole batch.
        """
        width = self.ids.shape[1]
        for first in range(0, len(self.ids), max_sequences):
            of = slice(first, first + max_sequences)
            targets = slice(*np.searchsorted(self.target_owner, (first, first + max_sequences)))
            yield ChoiceBatch(
                self.samples,
                self.ids[of],
                self.positions[of],
                self.block_positions[of],
                self.separators[of],
                self.lengths[of],
                self.owner[of],
                self.slot[of],
                self.correct[of],
                self.target_rows[targets] - first * width,
                self.target_ids[targets],
                self.target_owner[targets] - first,
            )


class Examples(ABC):
    """One split; see ``trainmark.data.splits.Split``. Samples are numbered from 0.

    Args:
        seq_length: tokens that every sequence is padded to.
        num_choices: candidates of each sample, int64 (samples,).
        trim: pad to the longest sequence of a batch, rounded up to a multiple of 8, instead of
            ``seq_length``.
    """

    seq_length: int
    num_choices: NDArray[np.int64]
    trim: bool = False

    @property
    def shortened(self) -> int | None:
        """Samples whose passage is cut to fit; none: it was cut before it came here."""
        return None

    def __len__(self) -> int:
        return len(self.num_choices)

    @abstractmethod
    def build_sequences(self, row: int) -> list[ChoiceSequence]:
        """Return the sequences of one sample, one a candidate.

        Raises:
            DataError: the sample cannot be read; the error names its place.
        """

    def compute_mean_tokens(self) -> float:
        """Return the tokens of a sample's longest sequence, on average; at least: not known."""
        return 0.0

    def batch(self, rows: Iterable[int]) -> tuple[ChoiceBatch, Counts]:
        """Lay out the samples ``rows``; candidates that do not exist are not counted."""
        samples = [self.build_sequences(int(row)) for row in rows]
        made = _lay_out_sequences(samples, self.seq_length, trim=self.trim)
        return made, Counts(len(samples), len(made.ids), int(made.lengths.sum()), made.ids.size)


def _lay_out_sequences(
    samples: list[list[ChoiceSequence]], seq_length: int, *, trim: bool
) -> ChoiceBatch:
    sequences = [sequence for sample in samples for sequence in sample]
    lengths = np.fromiter((len(item.ids) for item in sequences), np.int64, len(sequences))
    width = seq_length
    if trim:
        longest = int(lengths.max())
        width = min(seq_length, -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
    ids, positions, blocks = (np.zeros((len(sequences), width), np.int64) for _ in range(3))
    for number, item in enumerate(sequences):
        length = len(item.ids)
        ids[number, :length] = item.ids
        positions[number, :length] = item.positions
        blocks[number, :length] = item.block_positions
    counts = [len(item.target_ids) for item in sequences]
    target_owner = np.repeat(np.arange(len(sequences)), counts)
    target_rows = np.concatenate([item.target_rows for item in sequences]).astype(np.int64)
    choices = [len(sample) for sample in samples]
    return ChoiceBatch(
        samples=len(samples),
        ids=ids,
        positions=positions,
        block_positions=blocks,
        separators=np.fromiter((item.separator for item in sequences), np.int64, len(sequences)),
        lengths=lengths,
        owner=np.repeat(np.arange(len(samples)), choices),
        slot=np.concatenate([np.arange(count) for count in choices]),
        correct=np.fromiter((item.correct for item in sequences), np.bool_, len(sequences)),
        target_rows=target_rows + target_owner * width,
        target_ids=np.concatenate([item.target_ids for item in sequences]).astype(np.int64),
        target_owner=target_owner,
    )


def order_by_choices(
    num_choices: NDArray[np.int64], sharding: Sharding, epoch: int
) -> NDArray[np.int64]:
    """Return row numbers as ``Sharding.micro_batches`` takes them, int64 (samples,).

    What a step costs a rank follows from its samples' candidates, and the slowest rank sets
    the step's time; grouped, ranks that wait for each other get samples of like numbers.

    A group is what all ranks take in one micro-batch: neighbours in a sorted order, ties
    broken at random. Groups, and samples within one, are then shuffled; what fills no
    group is drawn first, at random, and comes last. So every sample is there once, and
    every place in the epoch is as likely for it as any other, whatever its group.

    Args:
        num_choices: candidates of each sample, int64 (samples,).
    """
    rng = np.random.default_rng([sharding.seed, epoch])
    size = sharding.micro_batch_size * sharding.world_size
    shuffled = rng.permutation(len(num_choices))
    whole = len(shuffled) // size * size
    rest, shuffled = shuffled[whole:], shuffled[:whole]
    ordered = shuffled[np.argsort(num_choices[shuffled], kind="stable")]
    groups = rng.permuted(ordered.reshape(-1, size), axis=1)[rng.permutation(whole // size)]
    return np.concatenate([_order_by_rank(groups, sharding), rest])


def _order_by_rank(groups: NDArray[np.int64], sharding: Sharding) -> NDArray[np.int64]:
    """Lay groups out as a step's rows are cut: first by rank, then by micro-batch.

    The groups of an epoch's last step may be fewer than it could hold; its cut follows
    the number of its rows, so they stay as they are.
    """
    steps = len(groups) // sharding.grad_accum_steps
    full = steps * sharding.grad_accum_steps
    cut = groups[:full].reshape(
        steps, sharding.grad_accum_steps, sharding.world_size, sharding.micro_batch_size
    )
    return np.concatenate([cut.swapaxes(1, 2).reshape(-1), groups[full:].reshape(-1)])
