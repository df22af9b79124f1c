"""Logs as they are found: ends of lines, colours, gzip, cuts, long lines; one pass."""

from __future__ import annotations

import gzip
import json

import pytest

from trainmark.errors import DataError, UsageError
from trainmark.library.analysis import lines
from trainmark.library.analysis.engine import analyze
from trainmark.library.analysis.options import Options
from trainmark.library.analysis.summary import text


@pytest.fixture
def log(tmp_path):
    """Write a log of ``data``; return its path."""

    def write(data, name="train.log"):
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    return write


def speed(path, **options):
    """Analyze with ``ips:`` as keyword in mode 1, the mean as it is."""
    return analyze(path, Options(**{"keyword": "ips:", "model_mode": 1} | options))


LINES = "".join(f"noise\nstep {i}, ips: {i}.5 samples/s\n" for i in range(1, 9))


def test_a_plain_log(log):
    found = speed(log(LINES), skip_steps=2)
    assert found.record.FINAL_RESULT == 6.0
    assert found.figures["values"] == 6
    assert found.figures["values_skipped"] == 2
    assert found.figures["p50"] == 6.0
    assert found.figures["first_value"] == "line 6: step 3, ips: 3.5 samples/s"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"\n", b"\r"),
        lambda data: data.replace(b"noise\n", b"\r 10%|#  |\r 20%|## |\n"),
        lambda data: data.replace(b"ips:", b"\x1b[1;32mips\x1b[0m:\x1b[K"),
        lambda data: data.replace(b"ips:", b"\x1b]8;;http://x\x07ips:"),
        lambda data: data.replace(b"noise", b"\0" * 100),
        lambda data: data.replace(b" samples", b"\0 samples"),
        lambda data: data.replace(b"noise", b"\xff\xfe\xc3"),
        lambda data: data.replace(b"noise", b"x" * 5_000_000),
        lambda data: data.replace(b"step", b"y" * 1_000_000),
        lambda data: data[:-1],
        lambda data: data + b"step 9, ip",
        gzip.compress,
    ],
)
def test_what_terminals_and_crashes_leave_changes_no_value(log, spoil):
    found = speed(log(spoil(LINES.encode())))
    assert found.record.FINAL_RESULT == 5.0
    assert found.figures["values"] == 8
    assert found.figures["lines_malformed"] == 0


def test_unparsable_lines_are_counted_and_the_first_is_shown(log):
    data = "ips: 1\nips: -\nips: nan\nips: 1e999\nips: 3\n"
    found = speed(log(data))
    assert found.record.FINAL_RESULT == 2.0
    assert found.figures["lines_malformed"] == 3
    assert found.figures["lines_matched"] == 5
    assert "first malformed is line 2: ips: -" in text(found)


def test_a_log_without_a_match_shows_the_nearest_line(log):
    with pytest.raises(DataError) as caught:
        speed(log("noise\nstep 1, IPS = 3\nstep 2, IPS = 3\n"), keyword="ips =:")
    said = str(caught.value)
    assert "no line with 'ips =:'" in said
    assert "line 2: step 1, IPS = 3" in said
    assert "train.log" in said


def test_skipping_every_value_says_how_many_there_were(log):
    with pytest.raises(DataError) as caught:
        speed(log("ips: 1\nips: 2\n"), skip_steps=2)
    assert "leaves none of 2 values" in str(caught.value)


def test_damaged_gzip_data_is_named(log):
    data = gzip.compress(LINES.encode() * 100)
    path = log(data[:-40], "cut.gz")
    with pytest.raises(DataError, match="damaged gzip") as caught:
        speed(path)
    assert str(caught.value).count("cut.gz") == 1


def test_a_loss_that_is_not_finite_fails_the_record(log):
    found = speed(log("ips: 1 loss: 5.5\nips: 1 loss: nan\n"), keyword_loss="loss:")
    assert found.record.JOB_FAIL_FLAG == 1
    assert "LOSS_RESULT" not in json.loads(found.record.to_json())
    assert "diverged" in text(found)


def test_a_number_that_the_end_of_the_log_may_have_cut_is_malformed(log):
    found = speed(log("ips: 100.25 loss: 3\nips: 100.75 loss: 4\nips: 1"), keyword_loss="loss:")
    assert (found.record.FINAL_RESULT, found.record.LOSS_RESULT) == (100.5, 4.0)
    assert "first malformed is line 3: ips: 1" in text(found)
    assert speed(log("ips: 1\nips: 3 s")).record.FINAL_RESULT == 2.0  # something follows it


def test_a_line_beyond_the_limit_gives_no_shorter_number(log, monkeypatch):
    monkeypatch.setattr(lines, "LINE_LIMIT", 100)
    values = set()
    for before in range(60, 120):
        long = "x" * before + " ips: 12345.0 s " + "y" * 500
        found = speed(log(f"ips: 7\n{long}\nips: 7\n"))
        values |= {found.figures["min"], found.figures["max"]}
    assert values == {7.0, 12345.0}


@pytest.mark.parametrize(("index", "result"), [(2, 8.5), (6, 8.5), (3, 5.0)])
def test_other_indexes_print_the_figure_of_the_log(log, index, result):
    options = {"index": index, "ips_unit": "MB", "gpu_num": 8, "model_mode": None}
    record = speed(log(LINES), **options).record
    assert (record.FINAL_RESULT, record.UNIT, record.index) == (result, "MB", index)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model_mode": 9}, "no mode 9"),
        ({"model_mode": 0}, "base_batch_size"),
        ({"index": 2}, "ips_unit"),
        ({"index": 4}, "index 4"),
        ({"direction_id": 7}, "direction_id 7 is unknown"),
        ({"mission_name": "x"}, "mission_name 'x' is unknown"),
        ({"mission_name": "语义"}, "语义表示"),
        ({"preset": "mllog"}, "keyword: does not apply; preset mllog reads JSON events"),
        ({"keyword": None}, "keyword"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_log_is_opened(options, said):
    with pytest.raises(UsageError, match=said):
        speed("no/such/log", **options)


@pytest.mark.parametrize(
    ("mission", "direction"), [("图像分类", 0), ("语义表示", 1), ("推荐排序", 2), ("", 0)]
)
def test_the_direction_follows_from_the_mission(log, mission, direction):
    assert speed(log(LINES), mission_name=mission).record.direction_id == direction


def test_notes_tell_what_an_option_does_not_do(log):
    found = speed(log(LINES), ips_unit="tokens/s", time_unit="ms")
    assert found.record.UNIT == "steps/s"
    assert found.record.FINAL_RESULT == 0.005
    said = text(found)
    assert "ips_unit is not used" in said
    assert "divides it by 1000 all the same" in said
