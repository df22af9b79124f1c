"""Progress of ``prepare``: a bar on a terminal, else a few lines."""

import io
import re

import pytest
from rich.console import Console

from trainmark.cases.distilbert_sst2.data import generated
from trainmark.cli.prepare import BarReporter, LineReporter


class Clock:
    """Seconds that a test sets."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_long_stage_prints_percent_and_remaining_time_each_minute():
    lines, clock = [], Clock()
    reporter = LineReporter(lines.append, clock)
    reporter.begin("tokenising", total=1_000, done=200)
    # Seconds since the begin, when the clock shows 100 s, and units that were finished since the
    # last report. A line follows once a minute: not after 10 s, nor after 90 s, which is 30 s after
    # the last line. An earlier call did 200 units, which do not count for the rate.
    for after_s, units in ((10, 50), (60, 150), (90, 100), (121, 100)):
        clock.now_s = 100.0 + after_s
        reporter.advance(units)
    assert lines == [
        "tokenising",
        "tokenising: 40%, about 0:03:00 left",  # 200 units a minute, 600 to go
        "tokenising: 60%, about 0:02:01 left",  # 400 in 121 s, 400 to go
    ]


def test_stage_without_work_is_shown_without_an_error():
    lines, clock = [], Clock()
    reporter = LineReporter(lines.append, clock)
    reporter.begin("writing", total=0)  # of 0 units: there is no percentage
    clock.now_s += 61.0  # a stage that takes a minute gets a line
    reporter.advance(0)
    assert lines == ["writing", "writing: 0%"]


def test_terminal_shows_percent_below_escaped_lines():
    terminal_output = io.StringIO()
    bar = BarReporter(
        Console(file=terminal_output, force_terminal=True, width=100, color_system=None)
    )
    # A terminal gets a bar, which ``refresh`` draws. All 10 of 10 units, then 100 of 400.
    with bar.progress:
        # Neither markup nor escape codes of a line are obeyed.
        bar("a [bold]line\x1b[31m")
        bar.begin("checking", total=10)
        bar.advance(10)
        bar.progress.refresh()
        bar.begin("writing", total=400)
        bar.advance(100)
        bar.progress.refresh()
    text = terminal_output.getvalue()
    assert "a [bold]line\\u001b[31m" in text
    assert re.search(r"checking .*100%", text)
    assert re.search(r"writing .*25%", text)


@pytest.fixture
def raw(tmp_path):
    """Return a download of distilbert_sst2 with one row in each split."""
    (tmp_path / "raw").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / "raw" / name).write_text("sentence\tlabel\ngood film\t1\n")
    generated.write_model_folder(tmp_path / "raw" / "model")
    return tmp_path / "raw"


def test_without_a_terminal_few_lines_are_printed_and_none_with_quiet(cli, raw):
    # ``raw`` has two splits, and a model folder of three files without weights.
    code, out, err = cli("prepare", "distilbert", "--from", str(raw), "--data", "made")
    assert (code, out) == (0, "made\n")
    assert err.splitlines()[:2] == [
        "checking 5 files",
        "no weights in the model folder: this data only works with init=random",
    ]
    assert len(err.splitlines()) == 6  # then: writing, a line for each split, done
    _, _, err = cli("prepare", "distilbert", "--from", str(raw), "--data", "q", "--quiet")
    assert "NO" not in err  # no warning that a split has "NOT the published" number of rows
    assert cli("prepare", "distilbert", "--from", str(raw), "--data", "q2", "-q") == (0, "q2\n", "")
