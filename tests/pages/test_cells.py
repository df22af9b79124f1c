"""Number formats and escaping."""

import pytest

from trainmark.pages import cells

GIB = 1024**3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1764.0, "1764.0"),
        (2019.06, "2019.1"),
        (10.0, "10.0"),
        (9.9996, "10.00"),
        (9.96, "9.960"),
        (0.0012345, "0.001234"),
        (0.0, "0"),
        (None, "–"),
        (19331640.04, "19331640.0"),
    ],
)
def test_throughput_has_four_digits_or_one_decimal(value, text):
    assert cells.format_rate(value) == text


def test_memory_shows_used_and_total_gib():
    # ``GIB`` = 1024**3 bytes. Without a total the use is shown alone; without a use there is a
    # dash.
    assert cells.format_memory(33.4 * GIB, 40 * GIB) == "33.4/40.0"
    assert cells.format_memory(used_bytes=33.4 * GIB, total_bytes=None) == "33.4"
    assert cells.format_memory(used_bytes=None, total_bytes=40 * GIB) == "–"


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (0.80256, 0.802, "0.8026/0.802"),  # the form of the published DLRM page
        (0.908, None, "0.908"),  # and of the DistilBERT page
        (0.90996, 0.91, "0.90996/0.91"),  # rounding makes no missed target a reached one
        (1.0, 0.9, "1.0/0.9"),
        (1.76543, 1.77, "1.7654/1.77"),
        (4.00004, 4.0, "4.00004/4"),  # of a loss: missed
        (4.0, 4.0, "4.0/4"),
        (None, 0.91, "–"),
    ],
)
def test_quality_is_shown_with_its_target(value, target, expected):
    assert cells.format_quality_and_target(value, target) == expected


def test_one_unit_for_all_values_of_a_row():
    # The unit of the largest value; a missing value is a dash. Values have one decimal, or below 10
    # four significant digits.
    assert cells.scale_to_unit([0.4096, None, 0.0015], "s") == (["409.6", "–", "1.500"], "ms")
    assert cells.scale_to_unit([4.93e13], "FLOP/s") == (["49.3"], "TFLOP/s")
    assert cells.scale_to_unit([2.5 * GIB], "bytes") == (["2.500"], "GiB")
    assert cells.scale_to_unit([None], "bytes") == (["–"], "GiB")
    # A percentage is never scaled.
    assert cells.scale_to_unit([43.0], "%") == (["43.0"], "%")


@pytest.mark.parametrize(
    ("hostile", "expected"),
    [
        ("a|b", r"a\|b"),
        ("a\nb\r\tc", r"a b\\u000d c"),
        ("<script>", "&lt;script>"),
        ("&lt;", "&amp;lt;"),
        ("R&D", "R&D"),
        ("[x](y)", r"\[x\](y)"),
        ("**`x`**", r"\*\*\`x\`\*\*"),
        ("__init__", r"\_\_init\_\_"),
        ("e2e_time", "e2e_time"),
        ("\x1b[31mred", r"\\u001b\[31mred"),
        ("a\u202eb", r"a\\u202eb"),
    ],
)
def test_markdown_shows_text_literally(hostile, expected):
    assert cells.escape_markdown(hostile) == expected


def test_code_fence_is_longer_than_every_fence_in_its_text():
    assert cells.choose_code_fence("plain") == "```"
    assert cells.choose_code_fence("a\n````\nb") == "`````"


@pytest.mark.parametrize(
    ("value", "text"),
    [(610, "610"), (12_690, "12.7k"), (999_499, "999k"), (999_500, "1.00M"), (67_000_000, "67.0M")],
)
def test_short_counts_have_three_digits(value, text):
    assert cells.format_short_count(value) == text
