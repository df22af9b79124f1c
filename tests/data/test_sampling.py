"""Epochs and kept indices of the GPT case, against plain reference loops."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark.data import sampling
from trainmark.data.sampling import Samples

SIZES = st.lists(st.integers(0, 12), max_size=40)


def make_corpus(sizes):
    """Return documents of ``sizes`` tokens, numbered so that each sample shows its place.

    ``FakeReader`` stands for the reader of a data file: it has where each document begins (and the
    last one ends) among the tokens, and token number n is n.
    """
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
    return FakeReader(starts)


class FakeReader:
    def __init__(self, starts):
        self.starts = starts
        self.tokens = np.arange(starts[-1], dtype=np.int32)

    def find_token_starts(self, documents):
        """Return where the documents of a range begin, and where the last one ends."""
        return self.starts[documents.start : documents.stop + 1]


def cut_one_by_one(sizes, seq_length):
    """Cut documents one sample after another: the plain reference for ``cut_documents``.

    Returns:
        Where each sample begins, as (document, token in it), and where the last one ends. A sample
        has ``seq_length`` tokens and their targets, so it shares a token with the next one.
    """
    samples = max(0, (sum(sizes) - 1) // seq_length)
    cuts = [(0, 0)]
    document, offset = 0, 0
    for _ in range(samples):
        remaining = seq_length + 1
        while remaining > sizes[document] - offset:
            remaining -= sizes[document] - offset
            document, offset = document + 1, 0
        offset += remaining - 1  # the last token is the first one of the next sample
        cuts.append((document, offset))
    return cuts


@settings(max_examples=200, deadline=None)
@given(sizes=SIZES, seq_length=st.integers(1, 15))
def test_sample_boundaries_equal_a_walk_over_the_documents(sizes, seq_length):
    # ``SIZES``: up to 40 documents of 0 to 12 tokens. A boundary is a document and a token in it,
    # where a sample begins; ``cut_one_by_one`` is a plain loop that finds the same. No tokens: no
    # boundary.
    positions, offsets = sampling.cut_documents(np.array(sizes, np.int64), seq_length)
    expected = cut_one_by_one(sizes, seq_length) if sum(sizes) else []
    assert list(zip(positions.tolist(), offsets.tolist(), strict=True)) == expected


@settings(max_examples=150, deadline=None)
@given(
    sizes=SIZES,
    seq_length=st.integers(1, 15),
    seed=st.integers(0, 2**63 - 1),
    number=st.integers(0, 5),
    ends=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_an_epoch_predicts_every_token_of_the_split_once(sizes, seq_length, seed, number, ends):
    # ``sizes``: tokens of each document. The split is a range of the documents, drawn as ``ends``.
    # ``number`` is that of an epoch. An epoch has ``documents``, their numbers in the split in the
    # order of the epoch, and ``sample_order``, the numbers of its samples in the order of training.
    first, last = sorted(min(end, len(sizes)) for end in ends)
    reader = make_corpus(sizes)
    samples = Samples(reader, range(first, last), seq_length, seed)
    # A sample has ``seq_length`` tokens and one more, its last target, which is the first token of
    # the next sample. The last sample needs that token too: hence the ``- 1`` below.
    total = sum(sizes[first:last])
    assert len(samples) == max(0, (total - 1) // seq_length)
    for index in (samples.build_epoch(number), samples.build_unshuffled_epoch()):
        assert len(index) == len(samples)
        assert sorted(index.sample_order) == list(range(len(samples)))
        # The split's tokens in the order of its documents; a token is its own number.
        order = [
            token
            for document in index.documents + first
            for token in range(reader.starts[document], reader.starts[document + 1])
        ]
        assert sorted(order) == list(range(reader.starts[first], reader.starts[last]))
        rows = index.gather_tokens(np.arange(len(samples)))
        assert rows.dtype == np.int64
        assert rows[:, 1:].ravel().tolist() == order[1 : 1 + len(samples) * seq_length]
        assert rows[:, 0].tolist() == order[: len(samples) * seq_length : seq_length]
        # Less than a sample is left at the end.
        assert total - 1 - len(samples) * seq_length < seq_length
        # Rows may be gathered in any order.
        shuffled = index.gather_tokens(index.sample_order)
        assert (shuffled == rows[index.sample_order]).all()


def compute_published_order(sizes, seq_length, seed, needed_samples):
    """Return documents, their cuts and the samples' order as Megatron's GPTDataset draws them.

    Written down from what it does: as many epochs as hold the samples, their documents shuffled
    together, then the samples; a last epoch of which less than 80% is needed follows by itself.

    Args:
        sizes: number of tokens of each document.
        seq_length: tokens of a sample, without the last target.
        seed: of the generator that draws all shuffles.
        needed_samples: number of samples that the whole training takes.

    Returns:
        The numbers of the documents in their order, of all epochs together; where each sample
        begins, as (place in this order, token in the document); and the order of these samples.
    """
    tokens_per_epoch = sum(sizes)
    epochs = 1
    while epochs * tokens_per_epoch < needed_samples * seq_length + 1:
        epochs += 1
    # The last sample needs one token more, its last target: hence the ``- 1`` and ``+ 1``.
    samples_before_last_epoch = ((epochs - 1) * tokens_per_epoch - 1) // seq_length
    samples_per_epoch = (tokens_per_epoch - 1) // seq_length
    together = epochs == 1 or needed_samples - samples_before_last_epoch >= int(
        0.8 * samples_per_epoch
    )
    # One generator draws all shuffles, so that their order matters.
    random = np.random.RandomState(seed)
    order, shuffle = [], []
    epochs_of_parts = [epochs] if together else [epochs - 1, 1]
    for count in epochs_of_parts:
        documents = list(range(len(sizes))) * count
        random.shuffle(documents)
        order += documents
    cuts = cut_one_by_one([sizes[document] for document in order], seq_length)
    bounds = [0, len(cuts) - 1] if together else [0, samples_before_last_epoch, len(cuts) - 1]
    for start, end in pairwise(bounds):
        numbers = list(range(start, end))
        random.shuffle(numbers)
        shuffle += numbers
    return order, cuts, shuffle


@pytest.mark.parametrize(("together", "epochs"), [(1, 1), (1000, 4), (900, 4), (1300, 5)])
def test_the_order_of_samples_is_the_published_one(together, epochs, tmp_path):
    # ``together``: number of samples that are shuffled together; ``epochs``: the smallest number
    # of epochs that holds them. An epoch has 262 samples. Of the last one, 1000 and 1300 need more
    # than 80%, 900 needs less, so that it is shuffled by itself; 1 needs a single epoch.
    # ``compute_published_order`` is a plain loop that draws as the published program does. The
    # seeds and the numbers of documents and of tokens are arbitrary.
    sizes = np.random.default_rng(5).integers(0, 60, 120)  # tokens of 120 documents
    samples = Samples(
        make_corpus(sizes),
        documents=range(120),
        seq_length=13,
        seed=1234,
        shuffled_together=together,
        cache=tmp_path,
    )
    order, cuts, shuffle = compute_published_order(
        sizes.tolist(), seq_length=13, seed=1234, needed_samples=together
    )
    for _ in range(2):  # built and stored in ``cache``, then read from there
        orders = np.concatenate(
            [samples.build_epoch(epoch_number).sample_order for epoch_number in range(epochs)]
        )
        index = samples.build_epoch(0)
        assert index.documents.tolist() == order
        assert list(zip(index.positions.tolist(), index.offsets.tolist(), strict=True)) == cuts
        assert len(orders) == epochs * len(samples)
        # Each epoch has the next samples of the published order.
        assert orders.tolist() == shuffle[: len(orders)]
    assert index.gather_tokens(index.sample_order[:9]).shape == (9, 13 + 1)
    fresh = samples.build_epoch(epochs)  # beyond the samples shuffled together: drawn anew
    assert fresh.documents.tolist() != order
