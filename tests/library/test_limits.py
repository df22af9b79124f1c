"""Lines and numbers at the limits: carriage returns, very long lines, huge and tiny values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.errors import DataError
from trainmark.library.analysis import source
from trainmark.library.analysis.engine import analyze
from trainmark.library.analysis.options import Options
from trainmark.library.analysis.summary import figures


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


@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_carriage_returns_end_lines_whatever_is_read_at_a_time(tmp_path_factory, size, few, data):
    path = tmp_path_factory.mktemp("log") / "train.log"
    ends = data.draw(st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=9, max_size=9))
    lines = ["a", "ips: 12345.0 s", "b" * 50, "ips: 12347.0 s", "c", "ips: x", "d", "e", "f"]
    path.write_bytes("".join(map("".join, zip(lines, ends, strict=True))).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK_BYTES", size)
        patch.setattr(source, "_PIECE_BYTES", few)
        found = speed(str(path))
    assert found.record.FINAL_RESULT == 12346.0
    assert figures(found)["values"] == 2
    assert figures(found)["first_malformed"] == "line 6: ips: x"


def test_no_number_is_cut_where_only_carriage_returns_end_lines(log, monkeypatch):
    monkeypatch.setattr(source, "LINE_LIMIT_BYTES", 5_000)
    found = speed(log(b"step %07d ips: 12345.0 samples/s\r" * 50_000))
    assert (figures(found)["min"], figures(found)["mean"]) == (12345.0, 12345.0)
    assert (figures(found)["values"], figures(found)["lines_malformed"]) == (50_000, 0)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, {7.0, 12345.0}),
        ({"position": 1}, {7.0, 12345.0}),
        ({"position": -1}, {7.0}),  # the last word of such a line is not known
        ({"cut": ":3"}, {7.0, 123.0}),
    ],
)
def test_a_value_at_the_limit_of_a_line_is_never_a_shorter_number(log, monkeypatch, options, seen):
    monkeypatch.setattr(source, "LINE_LIMIT_BYTES", 100)
    monkeypatch.setattr(source, "BLOCK_BYTES", 10)
    values = set()
    for before in range(60, 120):
        long = "x" * before + " 12345.0 ips: 12345.0 s 12345.0 " + "y" * 500
        found = speed(log(f"a 7 ips: 7\n{long}\na 7 ips: 7\n"), **options)
        values |= {figures(found)["min"], figures(found)["max"]}
        assert "1 line beyond 4 MiB: the rest is not read" in found.reading.notes
    assert values == seen


def test_lines_behind_one_beyond_the_limit_keep_their_numbers(log, monkeypatch):
    monkeypatch.setattr(source, "LINE_LIMIT_BYTES", 100)
    monkeypatch.setattr(source, "BLOCK_BYTES", 10)
    found = speed(log("ips: 2\n" + "x" * 900 + " ips: 9\rips: x\nips: 4\n"))
    assert figures(found)["first_malformed"] == "line 3: ips: x"
    assert figures(found)["mean"] == 3.0


def test_a_loss_at_the_limit_of_a_line_is_not_cut(log, monkeypatch):
    monkeypatch.setattr(source, "LINE_LIMIT_BYTES", 100)
    monkeypatch.setattr(source, "BLOCK_BYTES", 7)
    losses = []
    for before in range(120, 60, -1):
        data = "ips: 1\nloss: 5\n" + "x" * before + " loss: 3.25 and" + "y" * 200 + "\n"
        losses.append(speed(log(data), keyword_loss="loss:").record.LOSS_RESULT)
    assert set(losses) == {5.0, 3.25}
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("value", ["1e308\nips: 1e308", "-1e308\nips: -1e308"])
@pytest.mark.parametrize("options", [{}, {"index": 2, "ips_unit": "MB"}])
def test_values_whose_sum_no_number_holds_are_refused(log, value, options):
    with pytest.raises(DataError, match="the sum of the values overflows"):
        speed(log(f"ips: {value}\n"), **options)


@pytest.mark.parametrize(
    ("options", "final"),
    [({"model_mode": -1}, 0.0005), ({"model_mode": -1, "gpu_num": 11}, 0.0055),
     ({"index": 2, "ips_unit": "MB"}, 0.0005)],
)  # fmt: skip
def test_a_small_result_keeps_three_digits(log, options, final):
    record = json.loads(speed(log("ips: 0.0005003\n"), **options).record.to_json())
    assert record["FINAL_RESULT"] == final
    assert record["JOB_FAIL_FLAG"] == 0
