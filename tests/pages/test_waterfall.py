"""The spans as bars of text."""

from pathlib import Path

import pytest

from trainmark.pages import waterfall
from trainmark.record.record import Record, Spans

GOLDEN = Path(__file__).parents[1] / "golden"
S = 1_000_000_000


def record(**spans):
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    made = Record.model_validate_json(text)
    return made.model_copy(update={"spans": made.spans.model_copy(update=spans)}) if spans else made


def small():
    return Spans(
        rank=0,
        wall_ns=10 * S,
        by_name_ns={"launch": 2 * S, "compile": S, "train": 5 * S, "evaluate": S, "other": S},
        train_parts_ns={"data_wait": S, "compute": 4 * S, "other": S},
        reconciled=0.9,
    )


def test_bars_stack_in_order():
    found = [
        (bar.name, bar.start_ns // S, bar.spent_ns // S, bar.share)
        for bar in waterfall.bars(small())
    ]
    assert found == [
        ("launch", 0, 2, 0.2), ("compile", 2, 1, 0.1), ("train", 3, 5, 0.5),
        ("evaluate", 8, 1, 0.1), ("other", 9, 1, 0.1),
    ]  # fmt: skip


def test_parts_are_shares_of_the_stepped_spans_together():
    found = waterfall.parts(small())
    assert [(bar.name, bar.start_ns, bar.spent_ns // S) for bar in found] == [
        ("data_wait", 0, 1), ("compute", 0, 4), ("other", 0, 1),
    ]  # fmt: skip
    assert [bar.share for bar in found] == pytest.approx([1 / 6, 4 / 6, 1 / 6])
    assert waterfall.parts(small().model_copy(update={"train_parts_ns": {"compute": 0}})) == []


def test_text_lines_exactly():
    made = record(**small().model_dump())
    assert waterfall.text_waterfall(made, width=61).splitlines() == [
        "launch         0.000    2.000 s  20.0% ████▍",
        "compile        2.000    1.000 s  10.0%     ██▎",
        "train          3.000    5.000 s  50.0%       ███████████",
        "evaluate       8.000    1.000 s  10.0%                  ██▎",
        "other          9.000    1.000 s  10.0%                    ██▎",
        "of compile + warmup + train:",
        "  data_wait             1.000 s  16.7% ██▎",
        "  compute               4.000 s  66.7% ████████▊",
        "  other                 1.000 s  16.7% ██▎",
    ]


def test_wide_english_lines_say_what_each_span_is():
    lines = waterfall.text_waterfall(record(), width=80).splitlines()
    assert lines[5].startswith("compile      first step ")
    assert lines[-1].startswith("  other      window edges ")


def test_ascii_has_no_other_character():
    lines = waterfall.text_waterfall(record(), width=80, unicode=False)
    assert lines.isascii()
    assert "####" in lines


@pytest.mark.parametrize("width", [40, 60, 80, 97, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_asked(width, unicode):
    lines = waterfall.text_waterfall(record(), width=width, unicode=unicode).splitlines()
    assert len(lines) == 15  # 11 spans, the heading, 3 parts
    assert max(map(len, lines)) <= width


def test_a_short_span_is_seen_and_an_empty_one_is_left_out():
    made = record(
        wall_ns=1000 * S,
        by_name_ns={"launch": 999 * S, "checkpoint": 400_000, "finish": S // 100, "other": 0},
        train_parts_ns={"data_wait": 0, "compute": S, "other": 0},
    )
    lines = waterfall.text_waterfall(made, width=60).splitlines()
    assert [line.split()[0] for line in lines] == [
        "launch", "finish", "other", "of", "compute", "other",
    ]  # fmt: skip
    assert lines[1].endswith("▏")
    assert lines[2].endswith(" 0.0%")


def test_no_span_says_so():
    made = record(rank=None, wall_ns=None, by_name_ns={}, train_parts_ns={}, reconciled=None)
    assert waterfall.text_waterfall(made) == "no rank reported a span"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf-8", True), ("UTF8", True), ("cp65001", True), ("ascii", False), ("latin-1", False),
     (None, False)],
)  # fmt: skip
def test_only_utf8_shows_blocks(encoding, expected):
    assert waterfall.can_show(encoding) is expected
