"""The JSON record of one case: keys, order, codes, names, refusals."""

from __future__ import annotations

import math

import pytest

from trainmark.errors import UsageError
from trainmark.record.index_record import IndexRecord, rounded

GOOD = {
    "log_file": "logs/train.log",
    "model_name": "nlp_gpt_sp_bs8_fp32_1",
    "mission_name": "语义表示",
    "direction_id": 1,
    "run_mode": "sp",
    "index": 1,
    "gpu_num": 1,
    "FINAL_RESULT": 9000.125,
    "JOB_FAIL_FLAG": 0,
    "UNIT": "tokens/s",
}


@pytest.mark.parametrize(
    ("value", "kept"),
    [(0.0005003, 0.0005), (0.00050049, 0.0005), (0.0123456, 0.0123), (0.09996, 0.1),
     (0.1, 0.1), (0.12345, 0.123), (1282.57318, 1282.573), (0.0, 0.0), (-0.01239, -0.0124)],
)  # fmt: skip
def test_results_keep_three_places_or_below_a_tenth_three_digits(value, kept):
    assert rounded(value) == kept


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("mission_name", "语义", "语义表示"),
        ("run_mode", "dp", "sp, mp"),
        ("FINAL_RESULT", math.nan, "finite"),
        ("FINAL_RESULT", 0, "JOB_FAIL_FLAG"),
    ],
)
def test_what_does_not_fit_is_refused_by_key(key, value, said):
    with pytest.raises(UsageError) as caught:
        IndexRecord(**{**GOOD, key: value})
    assert key in str(caught.value)
    assert said in str(caught.value)
