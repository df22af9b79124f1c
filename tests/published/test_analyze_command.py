"""``trainmark analyze``: arguments, streams and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

LOG = "step 1 ips: 90\nstep 2 ips: 10 loss: 5.0\nstep 3 ips: x\nstep 4 ips: 20 loss: 4.0\n"


@pytest.fixture
def analyze(cli):
    """Write a log with the speeds 90, 10, x and 20 (``LOG``); return a function that analyzes.

    The function calls ``trainmark analyze`` with its arguments in the log's folder, and returns the
    exit code and what was printed as output and as errors.
    """
    Path("train.log").write_text(LOG)
    return partial(cli, "analyze")


PUBLIC = [
    *("train.log", "keyword=ips:", "base_batch_size=8", "skip_steps=1", "model_mode=-1"),
    *("ips_unit=tokens/s", "time_unit=s", "gpu_num=8", "run_mode=mp"),
    *("model_name=nlp_gpt_mp_bs8_fp32_8", "mission_name=语义表示", "direction_id=1", "index=1"),
    "keyword_loss=loss:",
]
RECORD = (
    '{"log_file": "train.log", "model_name": "nlp_gpt_mp_bs8_fp32_8", "mission_name": "语义表示", '
    '"direction_id": 1, "run_mode": "mp", "index": 1, "gpu_num": 8, "FINAL_RESULT": 120.0, '
    '"JOB_FAIL_FLAG": 0, "UNIT": "tokens/s", "LOSS_RESULT": 4.0}\n'
)


def test_arguments_of_the_public_tool_give_its_record(analyze):
    """A log analyzer that others published takes the same name=value arguments, ``PUBLIC``.

    ``RECORD`` is what it prints for them, given the log that ``analyze`` writes: the speeds 90, 10,
    x and 20. 120 is 8 devices x 15, the mean of 10 and 20: the first value is skipped, and "x" is
    not a number.
    """
    code, out, err = analyze(*PUBLIC)
    assert (code, out) == (0, RECORD)
    assert "values: 2, skipped: 1, malformed lines: 1" in err
    assert "first malformed value in line 3: step 3 ips: x" in err
    assert "mean 15  min 10  p50 15  p90 19  p99 19.9  max 20" in err


def test_option_names_of_the_public_tool_are_accepted(analyze):
    # ``PUBLIC`` are the arguments: the log and 13 texts such as "keyword=ips:". ``RECORD`` is the
    # line that is printed for them. Every second word below is a name, which gets its two dashes.
    # name=value as --name value; the first of ``PUBLIC`` is the log.
    args = [word for pair in PUBLIC[1:] for word in pair.split("=")]
    args[::2] = [f"--{name}" for name in args[::2]]
    assert analyze("--filename", "train.log", *args)[:2] == (0, RECORD)
    # args[2:]: without --keyword and its value.
    assert analyze("train.log", "--keyword=ips:", *args[2:])[:2] == (0, RECORD)


def test_failed_run_has_a_record_and_exits_with_one(analyze):
    Path("other.log").write_text("speed: 7\n")
    code, out, err = analyze("train.log", "other.log", "keyword=speed:", "model_mode=1")
    first, second = map(json.loads, out.splitlines())
    # The first of two logs, which ``analyze`` wrote, has only the keyword "ips:"; the second is
    # analyzed all the same. Mode 1 is the mean of its values: 7.
    assert (code, first["FINAL_RESULT"], first["JOB_FAIL_FLAG"]) == (1, 0.0, 1)
    assert (second["model_name"], second["FINAL_RESULT"]) == ("other", 7.0)
    assert "no value found after the keyword 'speed:'" in err
    assert "FAILED" in err


@pytest.mark.parametrize(
    ("args", "expected_error"),
    [
        ([], "Missing argument"),  # no log is named
        # Nothing says which numbers of the log are speeds; the error suggests this option.
        (["train.log"], "preset=auto"),
        # Without `preset=auto`, the log is named and not the missing option.
        (["nowhere.log"], "nowhere.log: cannot read: No such file or directory"),
        (["nowhere.log", "preset=auto"], "nowhere.log: cannot read: No such file or directory"),
        (["train.log", "keyword=ips:", "time_unit=us"], "time_unit"),  # only s and ms are known
    ],
)
def test_invalid_options_print_no_record_and_exit_with_two(analyze, args, expected_error):
    code, out, err = analyze(*args)
    assert (code, out) == (2, "")
    assert expected_error in err


def test_log_is_read_from_a_pipe():
    args = [sys.executable, "-m", "trainmark", "analyze", "-", "keyword=ips:", "model_mode=1"]
    process = subprocess.run(args, input=LOG, capture_output=True, text=True, check=True)
    # ``LOG`` has the values 90, 10, "x", which is no number, and 20. Mode 1 is their mean: 40.
    assert json.loads(process.stdout)["FINAL_RESULT"] == 40.0
