"""Sums of evaluations, and keys that identify rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainmark.rank.scores import summarize_scores
from trainmark.record.evaluations import combine_scores
from trainmark.train.evaluation import (
    MAX_KEYS,
    EvaluationSum,
    ScoredRows,
    compute_row_keys,
    count_rows,
    scored_rows,
)

ONE_RANK = {"world_size": 1, "device": torch.device("cpu")}


def test_equal_rows_have_equal_keys_wherever_they_stand() -> None:
    rows = torch.arange(60, dtype=torch.int64).reshape(20, 3)
    labels = torch.arange(20)
    keys = compute_row_keys((rows, labels), 20)
    order = torch.randperm(20)
    assert len(set(keys.tolist())) == 20  # all 20 rows differ, and so do their keys
    assert (
        compute_row_keys((rows[order], labels[order]), 20).tolist() == keys[order.numpy()].tolist()
    )
    # Only the first 5 rows, in other containers.
    assert compute_row_keys([rows, {"labels": labels}], 5).tolist() == keys[:5].tolist()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.uint8, torch.int16]
)
def test_each_type_of_numbers_has_keys(dtype: torch.dtype) -> None:
    # Seven different rows; their matrix, transposed, is the same one.
    rows = torch.eye(7).to(dtype)
    keys = compute_row_keys(rows, 7)
    assert len(set(keys.tolist())) == 7
    assert compute_row_keys(rows.t(), 7).tolist() == keys.tolist()  # not contiguous


def test_a_single_label_of_a_column_has_the_key_of_its_value() -> None:
    # A column of a matrix of width 20: its numbers are 20 places apart in memory. The first one
    # alone is a tensor that counts as contiguous, although its stride is 20.
    labels = torch.arange(60).reshape(3, 20)[:, 7]
    assert labels[:1].is_contiguous()
    assert labels[:1].stride() == (20,)
    assert compute_row_keys(labels, 1).tolist() == compute_row_keys(torch.tensor([7]), 1).tolist()


def test_zeros_at_the_end_of_rows_do_not_change_keys() -> None:
    # Six rows of five numbers, none of which is 0; with 11 zeros behind them, and before them. A
    # key is computed from a row's content, to recognize the row.
    rows = torch.randint(1, 1000, (6, 5))
    padded = torch.nn.functional.pad(rows, (0, 11))
    assert compute_row_keys(padded, 6).tolist() == compute_row_keys(rows, 6).tolist()
    moved = torch.nn.functional.pad(rows, (11, 0))
    assert set(compute_row_keys(moved, 6)).isdisjoint(compute_row_keys(rows, 6))


def test_tensors_of_other_lengths_do_not_count() -> None:
    rows, others = torch.arange(12).reshape(4, 3), torch.ones(26, 4)
    # Of these, only ``rows`` has 4 rows.
    assert compute_row_keys((rows, others, torch.tensor(3.0), "text"), 4).tolist() == (
        compute_row_keys(rows, 4).tolist()
    )
    # The number of rows is the length of the first tensor that has dimensions; without one, 0.
    assert (count_rows((torch.tensor(1), rows)), count_rows(("x",))) == (4, 0)
    assert compute_row_keys((), 0).tolist() == []


def test_mean_is_over_rows_and_not_over_batches() -> None:
    scored = EvaluationSum()
    # A batch of 3 rows, all right, and one of 1 row, which is wrong: a mean over batches were 0.5.
    for tensors, rows in scored_rows([(torch.ones(3, 2), 3), (torch.zeros(1, 2), 1)]):
        scored.add(rows, total=tensors[:, 0].sum())
    # 3 of 4 rows. ``ONE_RANK``: there are no other ranks over which the mean would be.
    evaluation = scored.mean(**ONE_RANK)
    assert (evaluation.value, evaluation.samples) == (0.75, 4)
    assert evaluation.scores is not None
    assert (evaluation.scores.total, evaluation.scores.weight) == (3.0, 4.0)
    assert len(evaluation.scores.keys) == 4


def test_mean_uses_the_given_weights() -> None:
    # Two rows whose scores, such as those of 20 tokens, add up to 30. ``ONE_RANK``: there are no
    # other ranks over which the mean would be.
    scored = EvaluationSum()
    scored.add(ScoredRows.of(torch.arange(2), 2), total=30.0, weight=20)
    scored.add(ScoredRows.of(torch.arange(1), 0), total=0.0)  # a batch without rows of its own
    assert scored.mean(**ONE_RANK).value == 1.5  # 30 / 20


def test_quality_that_is_not_a_mean_has_only_rows() -> None:
    scored = EvaluationSum()
    scored.add(ScoredRows.of(torch.arange(5), 5))  # without a total, of which a mean would be
    scores = scored.scores()
    assert (scores.rows, scores.total, scores.weight) == (5, None, None)
    # ``ONE_RANK``: there are no other ranks over which a mean would be.
    assert np.isnan(scored.mean(**ONE_RANK).value)


def test_rows_beyond_the_limit_are_counted_without_keys() -> None:
    # ``MAX_KEYS``: of at most so many rows of an evaluation, 2**20, a rank keeps keys. The first
    # batch has one row less, so only the first row of the second batch gets a key.
    scored = EvaluationSum()
    rows = ScoredRows(MAX_KEYS - 1, np.arange(MAX_KEYS - 1, dtype=np.uint64))  # rows, their keys
    for _ in range(2):
        scored.add(rows)
    scores = scored.scores()
    assert (scores.rows, len(scores.keys)) == (2 * MAX_KEYS - 2, MAX_KEYS)


def test_digest_of_all_ranks_does_not_depend_on_how_rows_lie_on_them() -> None:
    rows = torch.randint(0, 1 << 60, (101, 4))

    # The digest is one of the keys of all scored rows; a key is computed from a row's content.
    def compute_digest(*parts: slice) -> str:
        """Return the digest of all ranks, each of which scored one of ``parts``."""
        events = []
        for part in parts:
            scored = EvaluationSum()
            scored.add(ScoredRows.of(rows[part], len(rows[part])), total=1.0)
            # What a rank reports. The empty list: the keys of training rows, which are not looked
            # for among the scored ones here.
            events.append(summarize_scores(scored.scores(), []))
        combined = combine_scores(events)
        assert combined is not None
        assert combined.rows == combined.distinct == 101  # all of them, and no two are equal
        return combined.digest

    digest_of_all = compute_digest(slice(0, 101))
    assert (
        digest_of_all
        == compute_digest(slice(0, 101, 2), slice(1, 101, 2))  # in turn
        == compute_digest(slice(60), slice(60, 101))
    )


def test_training_rows_among_the_scored_rows_are_counted() -> None:
    rows = torch.arange(40).reshape(20, 2)
    scored = EvaluationSum()
    scored.add(ScoredRows.of(rows[:10], 10))
    # Of 20 rows, 0 to 9 are scored and 8 to 19 are trained; a row is recognized by its key.
    trained = compute_row_keys(rows[8:], 12).tolist()
    event = summarize_scores(scored.scores(), [*trained, trained[0]])  # one of them twice
    # The keys of 12 training rows are known. Rows 8 and 9 are both scored and trained.
    assert (event.rows, event.known, event.trained) == (10, 12, 2)
