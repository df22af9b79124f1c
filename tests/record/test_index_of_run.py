"""The JSON records of a run: exact text, failed runs, and refused values."""

from __future__ import annotations

import math
from typing import Any

import pytest

from support.fakes import GOLDEN
from trainmark.errors import UsageError
from trainmark.export.tables import render_index
from trainmark.record.index_record import IndexRecord, list_index_records, round_result
from trainmark.record.record import Record

SPEED = (
    '{"log_file": "20261121T081500Z-distilbert_sst2-5eed01/events.rank0.jsonl", '
    '"model_name": "nlp_distilbert_mp_bs96_tf32_2", "mission_name": "文本分类", '
    '"direction_id": 1, "run_mode": "mp", "index": 1, "gpu_num": 2, '
    '"FINAL_RESULT": 1281.25, "JOB_FAIL_FLAG": 0, "UNIT": "samples/s", "LOSS_RESULT": 0.25}'
)
MEMORY = (
    '{"log_file": "20261121T081500Z-distilbert_sst2-5eed01/events.rank0.jsonl", '
    '"model_name": "nlp_distilbert_mp_bs96_tf32_2", "mission_name": "文本分类", '
    '"direction_id": 1, "run_mode": "mp", "index": 2, "gpu_num": 2, '
    '"FINAL_RESULT": 1536.0, "JOB_FAIL_FLAG": 0, "UNIT": "MiB"}'
)


def make_distilbert_record(**changes: Any) -> Record:
    """Return a two-rank record: 1281.25 samples/s, 1536 MiB of memory, a final loss of 0.25.

    It is the golden record of DistilBERT with these three figures.

    Args:
        changes: other fields of the record.
    """
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    record = Record.model_validate_json(text)
    values = {"final_result": 1281.25, "final_loss": 0.25, "mem": 1536 * 2.0**20}
    figures = {
        name: record.figures[name].model_copy(update={"value": value})
        for name, value in values.items()
    }
    return record.model_copy(update={"figures": record.figures | figures, **changes})


def test_run_has_exactly_a_record_of_speed_and_one_of_memory() -> None:
    # ``SPEED`` and ``MEMORY`` are the two records as lines of JSON, as other programs read them.
    # They have the figures of ``make_distilbert_record``: 1281.25 samples/s (``index`` 1, speed)
    # and 1536 MiB (``index`` 2, memory), and the speed also the final loss of 0.25.
    assert [item.to_json() for item in list_index_records(make_distilbert_record())] == [
        SPEED,
        MEMORY,
    ]
    assert render_index([make_distilbert_record()]) == f"{SPEED}\n{MEMORY}\n"


@pytest.mark.parametrize(
    "status", ["failed", "target_missed", "timed_out", "oom", "diverged", "interrupted"]
)
def test_a_run_that_did_not_pass_has_the_flag_and_no_result(status: str) -> None:
    # A run has two records: its speed and its memory.
    speed, memory = list_index_records(make_distilbert_record(status=status))
    assert (speed.FINAL_RESULT, speed.JOB_FAIL_FLAG, speed.LOSS_RESULT) == (0, 1, None)
    assert (memory.FINAL_RESULT, memory.JOB_FAIL_FLAG) == (0, 1)
    assert (speed.UNIT, memory.UNIT) == ("samples/s", "MiB")


VALID_FIELDS: dict[str, Any] = {
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
    ("value", "expected"),
    [(0.0005003, 0.0005), (0.00050049, 0.0005), (0.0123456, 0.0123), (0.09996, 0.1),
     (0.1, 0.1), (0.12345, 0.123), (1282.57318, 1282.573), (0.0, 0.0), (-0.01239, -0.0124)],
)  # fmt: skip
def test_results_keep_three_places_or_below_a_tenth_three_digits(
    value: float, expected: float
) -> None:
    assert round_result(value) == expected


@pytest.mark.parametrize(
    ("key", "value", "expected_error"),
    [
        ("mission_name", "语义", "语义表示"),  # no known task; the error names known ones
        ("run_mode", "dp", "sp, mp"),  # known are only one process (sp) and several (mp)
        ("FINAL_RESULT", math.nan, "finite"),
        ("FINAL_RESULT", 0, "JOB_FAIL_FLAG"),  # only a failed job has the result 0
        # The error shows all numbers of the record, as some are only wrong together; the record has
        # no loss.
        ("gpu_num", 0, "LOSS_RESULT None"),
    ],
)
def test_invalid_value_is_refused_with_its_key(key: str, value: Any, expected_error: str) -> None:
    # ``VALID_FIELDS`` are the fields of a record that is accepted; one of them is replaced.
    with pytest.raises(UsageError) as caught:
        IndexRecord(**{**VALID_FIELDS, key: value})
    assert key in str(caught.value)
    assert expected_error in str(caught.value)
