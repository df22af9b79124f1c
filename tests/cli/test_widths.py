"""Every verb that prints tables or texts keeps within a terminal of 80 or 60 columns."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from rich.cells import cell_len

from support.comparison_records import make_series
from trainmark.conformance.case_check import CHECKS, CaseCheck, CaseReport
from trainmark.pages.document import build_table
from trainmark.pages.terminal import show
from trainmark.published.audit import RULES
from trainmark.record import record as records
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainmark.record.record import Record

PAGE = """\
| device | model | nodes x devices | throughput (samples/s) | p_train | mem | remark |
|---|---|---|---|---|---|---|
| NVIDIA A100-SXM4-40GB | distilbert_base_uncased | 1x8 | 1861.9 | 1900.5 | 13.9/40.0 | fast |
| NVIDIA H100-80GB-HBM3 | distilbert_base_uncased | 2x8 | 4861.9 | 3900.5 | 93.9/80.0 | odd |
| BI-V100 | glm_large | 1x8 | 361.9 | 300.5 | 29.7/32.0 | slow |
"""
PLAN = """\
name: demo
runs:
  - {case: toy, recipe: tiny, repeat: 2, set: {bs: [8, 32], precision: [fp32, bf16]}}
"""
VERBS = {
    "list": ["list"],
    "list fields": ["list", "fields"],
    "list devices": ["list", "devices"],
    "list launchers": ["list", "launchers"],
    "list followers": ["list", "followers"],
    "list audit-rules": ["list", "audit-rules"],
    "results": ["results"],
    "report": ["report", "runs/a/r1"],
    "report --all": ["report", "runs/a", "--all"],
    "report of several": ["report", "runs/a", "runs/b", "runs/c"],
    "compare": ["compare", "runs/a", "runs/b", "--allow", "bs"],
    "gate": ["gate", "runs/b", "--baseline", "runs/d", "--unverified"],
    "gate by history": ["gate", "runs/b", "--history", "runs/d", "--unverified"],
    "audit": ["audit", "page.md"],
    "audit --rules": ["audit", "runs/a", "--rules"],
    "verify": ["verify", "runs/a/r1"],
    "import": ["import", "page.md"],
    "dry run": ["run", "toy", "--dry-run", "--device", "cpu", "--out", "runs/x"],
    "dry run of a plan": ["run", "plan.yaml", "--dry-run", "--device", "cpu"],
    "check": ["check", "toy"],
    "doctor": ["doctor", "--quick", "--device", "cpu"],
}
NEVER_FOLDED = re.compile(r"/|--|\S{40,}|python -m ")  # a path, a command: never folded


@pytest.fixture
def terminal(
    cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., str]:
    """Return a function that calls a verb on a terminal, in a folder with runs and a page.

    Its first argument is the width in columns; it returns what the verb prints. The page
    (``PAGE``) is a table of results for ``import``, and ``PLAN`` a file of four settings to run.
    """
    # Take records as they are written: they have no events.
    monkeypatch.setattr("trainmark.results.selection.check_record", lambda record, _: record)
    monkeypatch.setattr(
        "trainmark.results.store.index.check_record", lambda record, _, **__: record
    )
    # ``check`` shall not start runs: each check fails, with a long message.
    report = CaseReport(
        [
            CaseCheck(name, (message("check_run_failed", ranks=2, place="train"),))
            for name in CHECKS
        ],
        {},
    )
    monkeypatch.setattr("trainmark.conformance.case_check.check_case", lambda *_, **__: report)
    # They redirect the real stdout, which is not that of the test.
    for verb in ("doctor", "ceilings"):
        monkeypatch.setattr(f"trainmark.cli.{verb}.redirect_to_stderr", nullcontext)
    # Series of five launches each, by their rates, with several batch sizes; those of b and d are
    # the same work.
    series_by_name: dict[str, list[Record]] = {
        name: make_series(name, [100.0, 101.0, 99.0, 100.5, 99.5], recipe={"micro_batch_size": bs})
        for name, bs in (("a", 96), ("b", 32), ("c", 8), ("d", 32))
    }
    for name, launches in series_by_name.items():
        for number, launch in enumerate(launches, 1):
            folder = tmp_path / "runs" / name / f"r{number}"
            folder.mkdir(parents=True)
            records.write_record(launch, folder)
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "plan.yaml").write_text(PLAN, encoding="utf-8")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(width: int, *args: str) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        return cli(*args)[1]

    return call


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("verb", VERBS)
def test_output_fits_the_terminal(verb: str, width: int, terminal: Any) -> None:
    # ``VERBS``: by verb, the words of a command. ``terminal`` calls it in a folder with runs and a
    # page, and returns what it prints. ``NEVER_FOLDED`` matches a path or a command in a line.
    lines = terminal(width, *VERBS[verb]).splitlines()
    assert lines
    # Paths and commands are never folded, so their lines may be wider.
    too_wide = [line for line in lines if cell_len(line) > width and not NEVER_FOLDED.search(line)]
    assert too_wide == []


# Without ``results``, which shortens paths, and ``doctor``, whose readings change between calls.
@pytest.mark.parametrize("verb", [name for name in VERBS if name not in ("results", "doctor")])
def test_no_word_is_cut(verb: str, terminal: Any) -> None:
    """A narrow terminal shows no word that a wide one does not show; rules may be shorter."""
    # ``VERBS``: by verb, the words of a command. A rule is a line of "─" below a table's head.
    wide = set(terminal(400, *VERBS[verb]).split())
    narrow = set(terminal(60, *VERBS[verb]).split())
    assert {word for word in narrow - wide if not set(word) <= set("─")} == set()


def test_table_of_very_long_words_is_cut_at_the_width_alone() -> None:
    # A table of the columns "name" and "value" with one row, printed in 40 columns: the word of 100
    # letters goes over several lines, of which the first one has the value too.
    word = "x" * 100
    # Without the heads and the rule; the pieces of the word join to the word.
    _, _, *rows = show([build_table(["name", "value"], [[word, "1"]])], width=40).splitlines()
    assert max(map(len, rows)) <= 40
    assert "".join(row.split()[0] for row in rows) == word


def test_list_on_a_terminal_prints_no_escape_codes(
    terminal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR")  # which ``terminal`` sets; without it, output may have colors
    text = terminal(80, "list", "launchers")
    # Control characters are escaped before a text is printed, because it may be from outside. Codes
    # that the program itself had added by then would be printed as "\u001b".
    assert "u001b" not in text
    assert "\x1b" not in text


def test_list_in_a_pipe_has_a_line_for_each_row(cli: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = cli("list", "audit-rules")
    # ``RULES``: the rules of ``trainmark audit`` by name, in the order in which they are listed.
    title, head, *rows = out.splitlines()
    assert title == "AUDIT-RULES"
    assert head.split() == ["rule", "severity", "definition"]
    assert [row.split()[0] for row in rows if row] == [*RULES]
    start = head.index("definition")  # the column where definitions begin in every row
    assert all(row[start - 1] == " " and row[start] != " " for row in rows if row)
