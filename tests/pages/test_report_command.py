"""``trainmark report``: the file, and what it is compared with."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from support.fakes import GOLDEN
from support.run_fixtures import PROGRAM
from trainmark.record.record import Cause, Record
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Call = Callable[..., tuple[int, str, str]]

BERT = Record.model_validate_json((GOLDEN / "record_distilbert.json").read_text(encoding="utf-8"))
TOY = Record.model_validate_json((GOLDEN / "record_toy.json").read_text(encoding="utf-8"))


@pytest.fixture
def run_report(tmp_path: Path, cli: Call) -> Call:
    """Write the runs bert, other and toy; return a function that calls ``trainmark report``.

    ``bert`` and ``toy`` are golden records, of DistilBERT on two A100 and of the toy case;
    ``other`` is the work of ``bert`` on a machine with another kernel. The function takes the words
    of the command line, and returns the exit code, the output and the errors.
    """
    other = BERT.model_copy(
        update={"run_id": "other", "environment": BERT.environment | {"kernel": "9.9 other"}}
    )
    for name, record in (("bert", BERT), ("other", other), ("toy", TOY)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    return partial(cli, "report")


def test_report_compares_with_chosen_runs_or_published_rows(
    run_report: Call, tmp_path: Path
) -> None:
    # The fixture has written the runs bert and other, the same work; it returns a function that
    # calls ``trainmark report`` with these arguments and returns its exit code and output.
    assert run_report("bert", "-o", "page.html", "--against", "other")[0] == 0
    assert "(your run, " in (tmp_path / "page.html").read_text(encoding="utf-8")
    # Without --against: published rows, of which none is comparable.
    assert run_report("bert", "-o", "page.html")[0] == 0
    page_text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "No comparable result. The closest is A100" in page_text


def test_a_terminal_shows_colours(run_report: Call, tmp_path: Path) -> None:
    # ``PROGRAM`` is the command ``python -m trainmark``. Its output is a terminal, whose other end
    # the test reads; the fixture has written the run "toy".
    controller, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm"}
    env.pop("NO_COLOR", None)  # which would turn colours off
    with subprocess.Popen([*PROGRAM, "report", "toy"], stdout=terminal, cwd=tmp_path, env=env):
        os.close(terminal)
        output = b""
        # Linux reports the end of the terminal as an error.
        with suppress(OSError), open(controller, "rb", closefd=False) as file:
            for part in iter(file.read1, b""):
                output += part
    os.close(controller)
    assert output.startswith(b"\x1b[")
    assert rb"\u001b" not in output  # our colours are not escaped as foreign text is


def test_by_default_earlier_runs_of_the_folder_are_on_the_ruler(
    run_report: Call, tmp_path: Path
) -> None:
    # Folders named by the time of their start, as the program names them; the newest record
    # is damaged.
    case = BERT.plan.case
    for day, is_readable in (("01", True), ("03", True), ("04", False)):
        folder = tmp_path / f"202611{day}T000000Z-{case}-a"
        folder.mkdir()
        record = BERT.model_copy(update={"run_id": folder.name})
        (folder / "record.json").write_text(record.model_dump_json() if is_readable else "{")
    # The ruler, which rates a run against others, marks each of the user's own runs in this way.
    # Of the two readable runs, that of day 03 has one before it, and that of day 01 none.
    for day, num_earlier in (("03", 1), ("01", 0)):
        assert run_report(f"202611{day}T000000Z-{case}-a", "-o", "page.html")[0] == 0
        assert (tmp_path / "page.html").read_text(encoding="utf-8").count(
            "(your run, noisy)"
        ) == num_earlier


def test_terminal_shows_why_no_run_is_comparable(run_report: Call, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "other")  # the only other run of bert's case
    assert "No comparable result. The closest is A100" in run_report("bert")[1]  # a published row
    assert "this case has no earlier run" in run_report("toy")[1]
    cause = Cause(kind="oom", message=message("exception", text="no memory left"))
    changes = {"run_id": "failed", "status": "oom", "cause": cause}
    failed = TOY.model_copy(update=changes)
    # Of two runs that started at the same time, that whose folder sorts first is the earlier one.
    (tmp_path / "a-failed").mkdir()
    (tmp_path / "a-failed" / "record.json").write_text(failed.model_dump_json())
    assert "the other runs of this case did not pass" in run_report("toy")[1]
    assert "--all" in run_report("toy")[1]  # the hint at all figures
    assert "step_time_p50" in run_report("toy", "--all")[1]


def test_chart_is_a_separate_file(run_report: Call, tmp_path: Path) -> None:
    # The end of the name, or ``--format``, chooses the form; the chart is that of the loss unless
    # ``--chart`` names another. The fixture calls ``trainmark report``, and has written the run
    # bert.
    assert run_report("bert", "-o", "loss.png")[0] == 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert run_report("bert", "-o", "steps.svg", "--chart", "step_time", "--lang", "zh")[0] == 0
    drawn = (tmp_path / "steps.svg").read_text(encoding="utf-8")
    assert ">步耗时（ms）；阴影部分为预热</text>" in drawn
    assert "var(--" not in drawn  # colours of a page's style sheet, which is not there
    code, out, _ = run_report("bert", "--format", "svg")
    assert code == 0
    assert out.startswith("<svg ")
    assert "Training loss" in out


def test_terminal_format_writes_the_printed_text_to_the_named_file(
    run_report: Call, tmp_path: Path
) -> None:
    # ``run_report`` returns the exit code, the standard output and the standard error. It has
    # written the run bert, which it reports here; the terminal is the usual format.
    _, printed, _ = run_report("bert")
    code, out, _ = run_report("bert", "--format", "terminal", "-o", "page.txt")
    assert (code, out) == (0, "")
    assert (tmp_path / "page.txt").read_text(encoding="utf-8") == printed


@pytest.mark.parametrize(
    ("args", "where", "expected_error"),
    [
        (["-o", "x.pdf"], "x.pdf", "must end in .html, .md, .svg or .png"),
        (["-o", "x.svg", "--chart", "heat"], "--chart", "try: known: loss, quality, step_time"),
        (["-o", "x.html", "--chart", "loss"], "--chart", "needs an SVG or PNG output file"),
        (["--format", "png"], "--format", "write the PNG to a file"),
    ],
)
def test_unusable_format_output_or_chart_is_refused(
    run_report: Call, tmp_path: Path, args: list[str], where: str, expected_error: str
) -> None:
    # Reports are pages (.html, .md) or, with ``--chart``, the picture of a chart (.svg, .png). The
    # exit code 2 is that of wrong options; ``where`` names the one at fault.
    code, out, err = run_report("bert", *args)
    assert (code, out) == (2, "")
    assert where in err
    assert expected_error in err
    assert not [*tmp_path.glob("x.*")]  # nothing was written


@pytest.mark.parametrize(
    ("args", "expected_error"),
    [
        (["--format", "md", "--against", "other"], "--against"),
        (["-o", "x.html", "--against", "reference:gpt_megatron"], "reference:gpt_megatron"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    run_report: Call, tmp_path: Path, args: list[str], expected_error: str
) -> None:
    # A report in the format md has no comparison; no results are published for gpt_megatron. With
    # ``reference:CASE`` a run is compared with those of a case. 2: the exit code of wrong options.
    code, _, err = run_report("bert", *args)
    assert code == 2
    assert not (tmp_path / "x.html").exists()
    assert expected_error in err
