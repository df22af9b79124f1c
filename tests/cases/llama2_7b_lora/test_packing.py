"""Packing: every token once and in order, labels where something can be foretold."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainmark.cases.llama2_7b_lora.data.packing import IGNORED, pack

PAD = 99

documents = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=40), min_size=1, max_size=30)


@given(documents, st.integers(1, 64), st.booleans())
def test_every_token_is_packed_once_and_in_order(texts, seq_length, separate):
    packed = pack(texts, seq_length=seq_length, pad_id=PAD, separate=separate)
    line = [token for text in texts for token in text]
    assert packed.ids.shape == (-(-len(line) // seq_length), seq_length)
    assert packed.ids.ravel().tolist() == line + [PAD] * (packed.ids.size - len(line))
    assert packed.tokens.sum() == len(line)
    assert (packed.tokens[:-1] == seq_length).all()
    assert packed.num_documents == len(texts)


@given(documents, st.integers(1, 64), st.booleans())
def test_labels_are_the_tokens_that_something_stands_before(texts, seq_length, separate):
    packed = pack(texts, seq_length=seq_length, pad_id=PAD, separate=separate)
    starts = {0, *np.cumsum([len(text) for text in texts]).tolist()}
    total = sum(len(text) for text in texts)
    for place, (label, token) in enumerate(
        zip(packed.labels.ravel().tolist(), packed.ids.ravel().tolist(), strict=True)
    ):
        first = place % seq_length == 0 or (separate and place in starts)
        assert label == (IGNORED if first or place >= total else token)
    assert packed.targets.tolist() == (packed.labels != IGNORED).sum(1).tolist()


def test_a_small_case_by_hand():
    packed = pack([[1, 2, 3], [4, 5], [6]], seq_length=4, pad_id=PAD, separate=True)
    assert packed.ids.tolist() == [[1, 2, 3, 4], [5, 6, PAD, PAD]]
    assert packed.documents.tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]
    assert packed.labels.tolist() == [[-100, 2, 3, -100], [-100, -100, -100, -100]]
    attending = pack([[1, 2, 3], [4, 5], [6]], seq_length=4, pad_id=PAD)
    assert attending.labels.tolist() == [[-100, 2, 3, 4], [-100, 6, -100, -100]]
    assert (attending.tokens.tolist(), attending.targets.tolist()) == ([4, 2], [3, 1])


def test_the_last_row_is_left_out_where_it_is_not_full() -> None:
    documents = [[1, 2, 3], [4, 5, 6, 7], [8, 9]]
    whole = pack(documents, seq_length=4, pad_id=0)
    left = pack(documents, seq_length=4, pad_id=0, drop_short=True)
    assert whole.ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 0, 0, 0]]
    assert left.ids.tolist() == whole.ids.tolist()[:2]
    for name in ("labels", "documents", "tokens", "targets"):
        assert getattr(left, name).tolist() == getattr(whole, name).tolist()[:2]
    full = pack(documents, seq_length=3, pad_id=0, drop_short=True)
    assert full.ids.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert len(pack(documents, seq_length=10, pad_id=0, drop_short=True)) == 0
