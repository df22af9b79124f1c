"""Which batches of a program are trained, and how much is in them."""

from __future__ import annotations

import time
from hashlib import blake2b

import pytest
import torch

from trainmark.protocols import Counts
from trainmark.witness.batches import BatchCounter

TRAIN, VALID = 1, 2  # ids of two data sets
MARKS = (0, 0)  # of the device, before and after a batch was fetched


@pytest.mark.parametrize(
    ("batch", "counts"),
    [
        # The first tensor is counted. Numbers that are not whole are no tokens.
        (
            (torch.zeros(4, 3), torch.zeros(4)),
            Counts(samples=4, sequences=4, tokens=0, tokens_padded=0),
        ),
        (
            [torch.zeros(2, 5, dtype=torch.long)],
            Counts(samples=2, sequences=2, tokens=10, tokens_padded=10),
        ),
        # ``input_ids`` is counted in place of the first tensor.
        (
            {"labels": torch.zeros(3), "input_ids": torch.zeros(2, 5, dtype=torch.long)},
            Counts(samples=2, sequences=2, tokens=10, tokens_padded=10),
        ),
        (
            {
                "input_ids": torch.zeros(2, 5, dtype=torch.long),
                "attention_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]),
            },
            Counts(samples=2, sequences=2, tokens=4, tokens_padded=10),
        ),
        # A mask of another shape than the tokens, here one for each pair of tokens, is not used.
        (
            {
                "input_ids": torch.zeros(2, 5, dtype=torch.long),
                "attention_mask": torch.ones(2, 1, 5, 5),
            },
            Counts(samples=2, sequences=2, tokens=10, tokens_padded=10),
        ),
        # Nor is one that is added to the scores of attention: -inf at padding, else 0.
        (
            {
                "input_ids": torch.zeros(2, 2, dtype=torch.long),
                "attention_mask": torch.tensor([[0.0, 0.0], [0.0, float("-inf")]]),
            },
            Counts(samples=2, sequences=2, tokens=4, tokens_padded=4),
        ),
        # A mask that is no tensor is not used.
        (
            {"input_ids": torch.zeros(2, 3, dtype=torch.long), "attention_mask": [[1, 1, 0]] * 2},
            Counts(samples=2, sequences=2, tokens=6, tokens_padded=6),
        ),
        (
            ({"input": torch.zeros(6, 2, dtype=torch.long)}, torch.zeros(6)),
            Counts(samples=6, sequences=6, tokens=12, tokens_padded=12),
        ),
        # No tensor has a dimension of samples.
        ("text", None),
        ({"number": torch.tensor(1.0)}, None),
    ],
)
def test_samples_and_tokens_of_a_batch_are_counted(batch, counts):
    assert BatchCounter().measure(batch) == counts


def test_samples_and_tokens_are_counted_in_the_declared_dimensions():
    # Dimension 1 has the 3 samples, dimension 0 the 7 tokens of each.
    counter = BatchCounter(sample_dimension=1, token_dimension=0)
    assert counter.measure(torch.zeros(7, 3)) == Counts(
        samples=3, sequences=3, tokens=21, tokens_padded=21
    )


def test_evaluation_batches_are_not_counted_as_trained():
    # A batch counts once a backward pass follows it. ``TRAIN`` and ``VALID`` are ids of two data
    # sets; ``MARKS`` are times of the fetch, without effect here.
    counter = BatchCounter()
    counter.add(TRAIN, torch.zeros(4, 3), MARKS)
    counter.note_backward()
    counter.add(VALID, torch.zeros(9, 3), MARKS)
    counter.add(TRAIN, torch.zeros(4, 3), MARKS)
    counter.note_backward()
    assert [fetch.counts for fetch in counter.take_fetches()] == [
        Counts(samples=4, sequences=4),
        Counts(samples=4, sequences=4),
    ]


def test_second_data_set_counts_as_training_after_the_first_ends():
    counter = BatchCounter()
    counter.add(TRAIN, torch.zeros(4, 3), MARKS)
    counter.note_backward()
    counter.take_fetches()
    # ``take_fetches`` ends a step and returns its training batches. The second data set, ``VALID``,
    # is taken for an evaluation until two steps in a row had no batch of the first, ``TRAIN``. Of
    # four such steps, the last one is looked at. ``MARKS`` are times of the fetch, without effect.
    for _ in range(4):
        counter.add(VALID, torch.zeros(2, 3), MARKS)
        counter.note_backward()
        fetched = counter.take_fetches()
    assert [fetch.counts for fetch in fetched] == [Counts(samples=2, sequences=2)]


def test_first_epoch_rows_have_equal_digests_only_if_equal():
    # ``TRAIN`` is the id of a data set; ``MARKS`` are times of the fetch, without effect here.
    counter = BatchCounter()
    rows = torch.arange(6).reshape(3, 2)  # three different rows
    counter.add(TRAIN, rows, MARKS, epoch_number=1)
    counter.add(TRAIN, rows[:1], MARKS, epoch_number=1)  # the first row again
    counter.add(TRAIN, rows, MARKS, epoch_number=2)  # the second epoch
    counter.note_backward()
    digests = counter.list_rows()
    # 3 rows and the repeated one; the second epoch is left out.
    assert len(digests) == 4
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]


@pytest.mark.parametrize("dimension", [0, 1])
def test_rows_are_digested_by_their_bytes(dimension):
    # The rows lie along ``dimension``: in the second case, the bytes of a row are not in one piece.
    # ``TRAIN`` is the id of a data set; ``MARKS`` are times of the fetch, without effect here.
    rows = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)
    counter = BatchCounter(sample_dimension=dimension)
    counter.add(TRAIN, rows if dimension == 0 else rows.T, MARKS)
    counter.note_backward()
    # The 4 bytes of each row: two numbers of bfloat16. A digest is the number in 7 bytes of hash.
    contents = [bytes(row.clone().untyped_storage()) for row in rows]
    expected = [int.from_bytes(blake2b(row, digest_size=7).digest(), "big") for row in contents]
    assert counter.list_rows() == expected


def test_rows_of_sparse_tensor_have_no_digests():
    # ``TRAIN`` is the id of a data set; ``MARKS`` are times of the fetch, without effect here.
    counter = BatchCounter()
    counter.add(TRAIN, torch.eye(3).to_sparse(), MARKS)
    counter.note_backward()
    assert counter.list_rows() == []


def test_digests_of_images_take_no_noticeable_time():
    # ``TRAIN`` is the id of a data set; ``MARKS`` are times of the fetch, without effect here.
    counter = BatchCounter()
    images = torch.zeros(8, 3, 224, 224)  # 4.8 MB; a loop in Python over its bytes takes seconds
    start_s = time.process_time()
    counter.add(TRAIN, images, MARKS)
    assert time.process_time() - start_s < 1.0  # usually 0.01
