"""The log of a run in MLPerf's form, read by MLCommons' own checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.exported_runs import list_complaints
from support.mlperf_logs import add_submission_keys, write_log
from trainmark.cases.llama31_8b.case import CASE
from trainmark.pages.sections.performance_table import COLUMNS
from trainmark.plan.reference import read_references

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return the log of a run in MLPerf's form, without the keys that a submitter must add."""
    return write_log(tmp_path / "run", CASE)


@pytest.mark.parametrize("ruleset", ["5.1.0", "6.1.0"])
def test_compliance_checker_misses_only_the_keys_of_a_submission(
    log: str, tmp_path: Path, ruleset: str
) -> None:
    """MLCommons' checker accepts our log in MLPerf's form, with the keys a submitter must add."""
    # ``log`` lacks the keys that describe a submission; ``add_submission_keys`` adds them under the
    # name that MLPerf gives this case. ``ruleset`` is a version of MLPerf's rules. The checker then
    # has no complaint, so nothing else was missing.
    path = tmp_path / "result_0.txt"
    path.write_text(add_submission_keys(log, "llama31_8b", ruleset))
    assert list_complaints(path, ruleset) == (set(), [])  # missing keys, other complaints
    # The checker does see our keys: a wrong name is a missing key.
    wrong_key = log.replace('"opt_name"', '"opt"')
    path.write_text(add_submission_keys(wrong_key, "llama31_8b", ruleset))
    assert list_complaints(path, ruleset)[0] == {"opt_name"}


def test_convergence_checker_reads_the_log(log: str, tmp_path: Path) -> None:
    """MLPerf compares the samples until the target with reference convergence points (RCP)."""
    from mlperf_logging.rcp_checker import rcp_checker

    for number in range(10):  # a submission has ten runs
        path = tmp_path / f"result_{number}.txt"
        path.write_text(add_submission_keys(log, "llama31_8b", "5.1.0"))
    first = str(tmp_path / "result_0.txt")
    # 0: the run converged; then samples until the target, samples of a step, and the benchmark. The
    # run of ``log`` has 12 steps of 64 samples.
    submission = rcp_checker.read_submission_file(first, "5.1.0", use_train_samples=False)
    assert submission == (0, 768, 64, "llama31_8b")
    checked = rcp_checker.check_directory(
        str(tmp_path),
        "training",
        "5.1.0",
        verbose=False,
        bert_train_samples=False,
        rcp_pass="full_rcps",
    )
    # The check found the reference and failed: 768 samples are far fewer than the reference's.
    assert checked[:2] == (False, "RCP found")


def test_published_results_have_the_columns_of_this_case() -> None:
    references = read_references("llama31_8b")
    # Pages show these columns (``COLUMNS``) and the quality, which is perplexity here: its header
    # differs between cases, so it is not in ``COLUMNS``.
    assert set(references.columns) - {"log_perplexity"} <= set(COLUMNS)
    (gb300_row,) = (row for row in references.rows if row.device == "GB300")
    assert (gb300_row.precision, gb300_row.cells["train_time"]) == ("fp4", "4042")  # as published
    assert all(row.source.date and row.source.url for row in references.rows)
