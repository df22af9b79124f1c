"""Numbers and rules: which word of a line is its value, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.errors import UsageError
from trainmark.library.analysis.numbers import Rule


@pytest.mark.parametrize(
    ("keyword", "line", "value"),
    [
        ("ips:", "ips: 12.5", 12.5),
        ("ips:", "ips:12.5", 12.5),
        ("ips:", "ips: 1,234.5, next", 1234.5),
        ("ips:", "ips: 1,234,567", 1234567.0),
        ("ips:", "ips: 123.4ms", 123.4),
        ("ips:", "ips: 12.3samples/s,", 12.3),
        ("ips:", "ips: .5", 0.5),
        ("ips:", "ips: 5.", 5.0),
        ("ips:", "ips: -3 ", -3.0),
        ("ips:", "ips: 6.8E+00 |", 6.8),
        ("ips:", "ips: 0.2", 0.2),
        ("ips:", "ips: 123.4/130.5 |", 123.4),
        ("'loss':", "{'loss': '0.1328', 'epoch': 1}", 0.1328),
        ("SamplesPerSec=", "0/20, SamplesPerSec=232.7, x", 232.7),
        ("(ms):", "per iteration (ms): 99.5 |", 99.5),
        ("时间：", "耗时间：3.5秒", 3.5),
        ("ips:", "avg_ips: 5 ips: 7", 7.0),
        ("ips:", "avg_ips: 5", 5.0),
        ("loss", "loss scale: 3, loss: 2.5", 2.5),
        ("loss:", "lm loss: 1.5 | moe loss: 9", 1.5),
    ],
)
def test_the_leading_number_behind_the_keyword_is_the_value(keyword, line, value):
    assert Rule(keyword).value(f"{line}\n") == value


@pytest.mark.parametrize(
    "text",
    [
        "0:39:29", "2024-01-02", "1.2.3", "1,23", "1,234,5", "1234,567", "12_000", "0x1F",
        "n/a", "info", "nano", "", "| 5", "--5",
    ],
)  # fmt: skip
def test_what_only_begins_like_a_number_is_none(text):
    assert Rule("t:").value(f"t: {text}") is None


def test_a_keyword_that_ends_in_a_letter_is_not_glued_to_its_number():
    assert Rule("loss").value("loss2: 5") is None


@pytest.mark.parametrize(
    ("options", "line", "value"),
    [
        ({"position": 0}, "3.5 steps ips", 3.5),
        ({"position": -1}, "ips 7", 7.0),
        ({"position": 1, "separator": ","}, "ips,8,9", 8.0),
        ({"position": 1, "separator": " | "}, "ips | 8.5ms | 9", 8.5),
        ({"position": 1, "cut": "5:"}, "ips time=12.5", 12.5),
        ({"cut": "3"}, "ips 12345", 123.0),
        ({"cut": "1:3"}, "ips 12345", 23.0),
        ({"separator": ","}, "ips,12,13", 12.0),
    ],
)
def test_position_separator_and_range(options, line, value):
    assert Rule("ips", **options).value(f"{line}\n") == value


@pytest.mark.parametrize("position", [2, -3])
def test_a_position_outside_the_line_has_no_value(position):
    assert Rule("ips", position=position).value("ips 1") is None


@pytest.mark.parametrize("cut", ["a", "1:b", "1:2:3", ":-x"])
def test_a_range_of_another_form_is_refused(cut):
    with pytest.raises(UsageError, match="range"):
        Rule("ips", cut=cut)


@pytest.mark.parametrize("keyword", ["", "two\nlines"])
def test_a_keyword_must_be_a_piece_of_a_line(keyword):
    with pytest.raises(UsageError, match="keyword"):
        Rule(keyword)


@given(st.floats(min_value=0, max_value=1e15), st.sampled_from(["", "ms", " samples/s,", " |"]))
def test_any_float_comes_back_as_it_was_printed(number, unit):
    assert Rule("ips:").value(f"step 3, ips: {number}{unit}\n") == number
