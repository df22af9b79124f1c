"""The log of a run in MLPerf's form, read by MLCommons' own checker, and published results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.exported_runs import list_complaints
from support.mlperf_logs import add_submission_keys, write_log
from trainmark.cases.gpt_oss_20b.case import CASE
from trainmark.pages.sections.performance_table import COLUMNS
from trainmark.plan.reference import read_references

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("ruleset", ["6.0.0", "6.1.0"])
def test_compliance_checker_misses_only_the_keys_of_a_submission(
    tmp_path: Path, ruleset: str
) -> None:
    """MLCommons' checker accepts our log in MLPerf's form, with the keys a submitter must add.

    The log is that of a written run of GPT-OSS (``CASE``); ``ruleset`` is a version of MLPerf's
    rules.
    """
    log = add_submission_keys(write_log(tmp_path / "run", CASE), "gpt_oss_20b", ruleset)
    path = tmp_path / "result_0.txt"
    path.write_text(log)
    assert list_complaints(path, ruleset) == (set(), [])  # missing keys, other complaints


def test_published_results_have_columns_and_size_of_the_case_and_two_learning_rates() -> None:
    references = read_references("gpt_oss_20b")
    # Pages show these columns (``COLUMNS``) and the quality, which is perplexity here: its header
    # differs between cases, so it is not in ``COLUMNS``.
    assert set(references.columns) - {"log_perplexity"} <= set(COLUMNS)
    # The number of the model's weights.
    assert references.parameters == CASE.recipes["standard-1x8"].parameters
    # The second entry of the cell of changed hyperparameters. The published global batch sizes are
    # 16, as in the recipe ``standard-1x8``, which has the first learning rate, and 32.
    rates = [row.cells["fix_hp"].split(", ")[1] for row in references.rows]
    assert rates == ["learning_rate=0.0004", "learning_rate=0.0008"]
    assert all(row.source.url for row in references.rows)
