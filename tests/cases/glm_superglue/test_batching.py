"""Batches of choice sequences, and the order that groups samples by candidates; no torch."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.cases.glm_superglue.data.examples import (
    ChoiceBatch,
    ChoiceSequence,
    Examples,
    order_by_choices,
)
from trainmark.protocols import Counts
from trainmark.train.shards import Sharding


class Held(Examples):
    """Samples kept as lists of sequences."""

    def __init__(self, samples, seq_length=10):
        """Hold ``samples``, each a list of its candidates' sequences.

        Args:
            seq_length: number of tokens to which a batch pads all sequences.
        """
        self.samples, self.seq_length = samples, seq_length
        self.num_choices = np.array([len(sample) for sample in samples])

    def build_sequences(self, row):
        """Return the sequences of a sample, one for each candidate."""
        return self.samples[row]


def make_sequence(ids, separator, target_ids, *, correct=False):
    """Return a sequence: a context with a gap at position 1, and a candidate that may fill it.

    Args:
        ids: of all tokens, of the context and then of the candidate.
        separator: index of the candidate's first token.
        target_ids: the token that is to be predicted at each token of the candidate.
        correct: whether the candidate is a right answer.
    """
    # Each token of the answer block is scored.
    rows = np.arange(separator, separator + len(target_ids))
    blocks = np.maximum(np.arange(len(ids)) - separator + 1, 0)
    positions = np.where(blocks > 0, 1, np.arange(len(ids)))  # 1: the gap
    return ChoiceSequence(
        ids=np.array(ids),
        positions=positions,
        block_positions=blocks,
        separator=separator,
        target_rows=rows,
        target_ids=np.array(target_ids),
        correct=correct,
    )


HELD = Held(
    [
        [
            make_sequence([2, 4, 0, 9, 5], separator=3, target_ids=[5, 8], correct=True),
            make_sequence([2, 4, 0, 9], separator=3, target_ids=[8]),
        ],
        [make_sequence([2, 4, 6, 0, 9, 7, 7], separator=4, target_ids=[7, 7, 8], correct=True)],
    ]
)


def test_batch_holds_only_existing_candidates():
    """Sample 1 has one candidate of 7 tokens, sample 0 two of 5 and 4; all are padded to 10.

    A sequence is a context with a gap and, from its separator on, the tokens of a candidate. Their
    position is that of the gap (1); block positions count within the candidate. Each of its tokens
    has a target, the token to predict; ``prefix_lengths`` are the separators.

    ``HELD`` has these two samples. Of its tokens, 0 is the gap, 9 begins a candidate and 8 ends it:
    the end is only a target, as the model predicts it after the candidate's last token. The other
    ids are any. Padding has the id 0, too.
    """
    batch, counts = HELD.batch([1, 0])
    assert counts == Counts(samples=2, sequences=3, tokens=7 + 5 + 4, tokens_padded=3 * 10)
    assert batch.num_samples == 2
    assert batch.ids.tolist() == [
        [2, 4, 6, 0, 9, 7, 7, 0, 0, 0],
        [2, 4, 0, 9, 5, 0, 0, 0, 0, 0],
        [2, 4, 0, 9, 0, 0, 0, 0, 0, 0],
    ]
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 1, 1, 1, 0, 0, 0]
    assert batch.block_positions[0].tolist() == [0, 0, 0, 0, 1, 2, 3, 0, 0, 0]
    assert batch.prefix_lengths.tolist() == [4, 3, 3]
    assert batch.lengths.tolist() == [7, 5, 4]
    assert batch.sample_of_sequence.tolist() == [0, 1, 1]  # by its place in the batch
    assert batch.choice_of_sequence.tolist() == [0, 0, 1]  # by its place in the sample
    assert batch.max_choices == 2
    assert batch.first_ids.tolist() == batch.ids[:2].tolist()  # of sample 1 and of sample 0
    assert batch.correct.tolist() == [True, True, False]
    # Positions in the flattened ids: 10 * sequence + position in it.
    assert batch.target_rows.tolist() == [4, 5, 6, 13, 14, 23]
    assert batch.target_ids.tolist() == [7, 7, 8, 5, 8, 8]
    assert batch.sequence_of_target.tolist() == [0, 0, 0, 1, 1, 2]
    arrays = [getattr(batch, name) for name in ChoiceBatch.__slots__ if name != "num_samples"]
    assert {array.dtype for array in arrays} == {np.dtype("i8"), np.dtype("?")}


@pytest.mark.parametrize(
    ("rows", "width"), [([0], 8), ([0, 1], 8), ([0, 2], 16), ([0, 1, 2, 3], 20)]
)
def test_a_trimmed_batch_is_as_wide_as_its_longest_sequence(rows, width):
    """The longest sequences of the samples 0 to 3 have 5, 7, 9 and 17 tokens.

    Usually all sequences are padded to 20 tokens; with ``trim`` only as far as a batch needs:
    ``width``, which is the longest length rounded up to a multiple of 8, but at most 20.
    """
    more_samples = [
        [make_sequence([2, 4, 0, *[9] * (length - 3)], separator=3, target_ids=[8])]
        for length in (9, 17)
    ]
    examples = Held([*HELD.samples, *more_samples], seq_length=20)
    full, _ = examples.batch(rows)
    examples.trim = True
    trimmed, _ = examples.batch(rows)
    assert trimmed.ids.shape == (len(full.ids), width)
    assert (trimmed.ids == full.ids[:, :width]).all()
    # The flat positions with the new width, converted to the full width of 20.
    picked = trimmed.target_rows % width + trimmed.sequence_of_target * 20
    assert picked.tolist() == full.target_rows.tolist()


@pytest.mark.parametrize("max_sequences", [1, 2, 3, 50])
def test_parts_of_a_batch_hold_each_sequence_once_with_its_targets(max_sequences):
    """Each target of the 5 sequences keeps its input token, target token, sample and candidate.

    ``HELD`` has two samples, with 2 sequences and 1; the batch has the samples 0, 1 and 0: 2 + 1 +
    2. A part has at most ``max_sequences`` of them; its flat positions count anew.
    """
    batch, _ = HELD.batch([0, 1, 0])
    parts = list(batch.split_sequences(max_sequences))
    assert [len(part.ids) for part in parts] == [
        min(max_sequences, 5 - first) for first in range(0, 5, max_sequences)
    ]
    samples_of_parts = np.concatenate([part.sample_of_sequence for part in parts])
    assert samples_of_parts.tolist() == batch.sample_of_sequence.tolist()
    scored = [
        (
            part.ids.reshape(-1)[row],
            target,
            part.sample_of_sequence[sequence],
            part.choice_of_sequence[sequence],
        )
        for part in parts
        for row, target, sequence in zip(
            part.target_rows, part.target_ids, part.sequence_of_target, strict=True
        )
    ]
    assert scored == [
        (
            batch.ids.reshape(-1)[row],
            target,
            batch.sample_of_sequence[sequence],
            batch.choice_of_sequence[sequence],
        )
        for row, target, sequence in zip(
            batch.target_rows, batch.target_ids, batch.sequence_of_target, strict=True
        )
    ]


def make_sharding(rows, *, micro=4, accumulate=1, world=1, rank=0, seed=1):
    """Return the sharding of ``rows`` samples; the arguments are short names for its fields.

    A sharding tells which samples a rank trains, in which order, which the seed decides, and in
    which micro-batches; ``accumulate`` of them are a step.
    """
    return Sharding(
        num_rows=rows,
        micro_batch_size=micro,
        grad_accum_steps=accumulate,
        world_size=world,
        rank=rank,
        seed=seed,
    )


@given(
    choices=st.lists(st.integers(1, 20), min_size=1, max_size=90),
    micro=st.integers(1, 5),
    accumulate=st.integers(1, 3),
    world=st.integers(1, 4),
)
def test_each_sample_occurs_once_and_groups_hold_similar_numbers_of_candidates(
    choices, micro, accumulate, world
):
    """``order_by_choices`` orders samples so that those of a group cost about the same.

    Args:
        choices: number of candidates of each sample.
        micro: samples of a micro-batch.
        accumulate: micro-batches of a rank in a step.
        world: number of ranks.
    """
    num_choices = np.array(choices)
    ranks = [
        make_sharding(len(choices), micro=micro, accumulate=accumulate, world=world, rank=rank)
        for rank in range(world)
    ]
    order = order_by_choices(num_choices, ranks[0], 0)  # of the first epoch, 0
    assert sorted(order.tolist()) == list(range(len(choices)))
    parts = [list(rank.micro_batches(0, order=order)) for rank in ranks]
    # Number of micro-batches that each rank has in full steps. The samples of a shorter last step
    # are not grouped.
    num_in_full_steps = len(choices) // (micro * accumulate * world) * accumulate
    spans = []
    # A group: the samples that all ranks train at the same time.
    for group in list(zip(*parts, strict=False))[:num_in_full_steps]:
        candidates_of_group = num_choices[np.concatenate([part.rows for part in group])]
        assert len(candidates_of_group) == micro * world
        spans.append((candidates_of_group.min(), candidates_of_group.max()))
    # The ranges of candidates of two groups share at most an end.
    spans.sort()
    assert all(low[1] <= high[0] for low, high in pairwise(spans))
