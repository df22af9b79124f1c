"""The data folder of the GPT case: its files, their content, and refused folders."""

from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.cases.gpt_megatron import data
from trainmark.cases.gpt_megatron.case import CASE, GptRecipe
from trainmark.data.indexed import write_pair
from trainmark.errors import DataError, UsageError

NAME = "corpus_text_document"
RECIPE = GptRecipe(seq_length=4, vocab_size=100, split="8,1,1", seed=3)


def write_split(folder, tokens, sizes, *, dtype=np.uint16, name=NAME):
    tokens = np.array(tokens, np.int64)
    write_pair(folder / name, tokens, np.array(sizes, np.int32), np.dtype(dtype))


@pytest.fixture
def folder(tmp_path):
    """Ten documents of ten tokens with the ids 0 to 99."""
    write_split(tmp_path, np.arange(100), [10] * 10)
    return tmp_path


def read_fault(folder, recipe=RECIPE):
    """Return the error of the check as text; it has a place, a rule and a fix.

    The load raises the same error.
    """
    with pytest.raises(DataError) as caught:
        data.check(folder, recipe)
    error = caught.value
    assert error.where, error.what
    assert error.rule, error.what
    assert error.fix, error.what
    with pytest.raises(DataError) as second_error:
        data.load(folder, recipe)
    assert str(second_error.value) == str(error)
    return str(error)


def test_valid_data_passes_its_check_and_loads(folder):
    facts = data.check(folder, RECIPE)
    # Training has the first eight documents (split 8,1,1), with the tokens 0 to 79; validation has
    # the next, 80 to 89. A sample is 4 tokens and the one after, so 80 tokens hold 19 samples, and
    # 10 hold 2.
    assert (facts.train_samples, facts.eval_samples, facts.layout) == (19, 2, "megatron-indexed")
    assert facts.best_quality is None  # unlike generated data
    assert facts.quality_comparable
    both = b"".join((folder / f"{NAME}.{ending}").read_bytes() for ending in ("idx", "bin"))
    assert facts.content_id == sha256(both).hexdigest()[:16]
    loaded = data.load(folder, RECIPE)
    # The second validation sample, with the token after its four.
    assert loaded.validation.build_unshuffled_epoch().gather_tokens([1]).tolist() == [
        [84, 85, 86, 87, 88]
    ]
    rows = loaded.train.build_epoch(0).gather_tokens(range(19))
    assert len(np.unique(rows[:, 1:])) == 19 * 4  # every target once
    assert rows.max() < 80


def test_validation_split_is_required_only_for_evaluation(tmp_path):
    """``split`` has the weights of training, validation and test: "1" is training alone.

    ``eval_every_epochs`` None: a run never evaluates, so that it needs no validation split.
    """
    recipe = CASE.recipes["tiny"]
    data.generate(tmp_path, recipe)
    with pytest.raises(DataError, match="validation split has only 0 tokens"):
        data.check(tmp_path, replace(recipe, split="1"))

    speed_only = replace(recipe, split="1", eval_every_epochs=None)
    facts = data.check(tmp_path, speed_only)
    # All 1,024 documents of 1,024 tokens train, in samples of 64 tokens.
    assert (facts.train_samples, facts.eval_samples) == ((1024 * 1024 - 1) // 64, 0)


def test_ids_outside_the_vocabulary_are_refused(folder):
    # The folder's tokens are 0 to 99, which a vocabulary of 100 holds.
    error = read_fault(folder, replace(RECIPE, vocab_size=95))
    assert f"{NAME}.bin: the token ids range from 0 to 99" in error
    assert "vocab_size (95)" in error
    # The scan of the tokens is cached, but not its verdict: another size gives another error.
    assert "vocab_size (98)" in read_fault(folder, replace(RECIPE, vocab_size=98))
    # Eight of the ten documents train: 80 tokens in samples of 4, which need one token more.
    assert data.check(folder, replace(RECIPE, vocab_size=100)).train_samples == 19


@pytest.mark.parametrize(
    ("changes", "expected_error"),
    [
        # The folder has ten documents of ten tokens.
        ({"split": "1"}, "the validation split has only 0 tokens in 0 document(s)"),
        (
            {"split": "949,50,1", "seq_length": 10},
            "the validation split has only 10 tokens in 1 document(s)",
        ),
        ({"split": "0,1"}, "the train split has only 0 tokens in 0 document(s)"),
        ({"seq_length": 10}, "the validation split has only 10 tokens in 1 document(s)"),
        ({"seq_length": 10**12}, "the train split has only 80 tokens in 8 document(s)"),
    ],
)
def test_a_split_without_a_whole_sample_is_refused(folder, changes, expected_error):
    """``split`` has the weights by which documents are divided: train, validation and test.

    ``RECIPE`` has "8,1,1" and samples of 4 tokens (``seq_length``). A sample needs one token more,
    which is the last target: with ``seq_length`` 10 a document of 10 tokens is too short.
    """
    recipe = replace(RECIPE, **changes)
    error = read_fault(folder, recipe)
    assert f"{expected_error}, which is less than one sample" in error
    assert f"seq_length + 1 = {recipe.seq_length + 1} tokens" in error
    assert not (folder / "indices").exists()  # refused before the slow scan of all tokens


@given(
    weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=3).filter(any),
    documents=st.integers(0, 10**9),
)
def test_splits_contain_every_document_once(weights, documents):
    """Weights such as "8,1,1" divide the numbers of documents into ranges, one after another."""
    parts = list(data.split_documents(",".join(map(str, weights)), documents).values())
    # Ranges of document numbers, without a gap or an overlap.
    assert parts[0].start == 0
    assert parts[-1].stop == documents
    for part, after in pairwise(parts):
        assert part.start <= part.stop == after.start
    # Each part's number of documents differs by at most one from its exact share.
    for part, weight in zip(parts, weights, strict=False):
        assert abs(len(part) - documents * weight / sum(weights)) <= 1


@pytest.mark.parametrize("split", ["", "a", "949,50,1,1", "-1,2", "0,0,0", "1,,1", "nan"])
def test_a_bad_split_is_refused(split):
    """A split is one to three weights, not all 0; 10 is the number of documents."""
    with pytest.raises(UsageError) as caught:
        data.split_documents(split, 10)
    assert caught.value.where == "recipe field split"
    assert "949,50,1" in caught.value.fix
