"""The log of a run in MLPerf's form, read by MLCommons' own checkers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from support.exported_runs import complaints, write_two_ranks
from support.fakes import GOLDEN
from trainmark.cases.llama31_8b.case import CASE
from trainmark.export.run_logs import to_mlperf
from trainmark.pages.sections.provenance import COLUMNS
from trainmark.plan.reference import read_references

if TYPE_CHECKING:
    from pathlib import Path

# What says who submits what; of 6.1 also how a submitter's program ran.
SUBMISSION: dict[str, Any] = {
    "submission_benchmark": "llama31_8b", "submission_division": "closed",
    "submission_org": "nobody", "submission_platform": "none", "cache_clear": True,
}  # fmt: skip
DISCLOSURE: dict[str, Any] = {
    "lowest_numerical_precision_in_linear": "bfloat16",
    "lowest_numerical_precision_in_attn": "bfloat16",
    "lowest_numerical_precision_in_comm": "bfloat16", "tensor_parallelism": 1,
    "pipeline_parallelism": 1, "context_parallelism": 1, "expert_parallelism": 1,
    "config_filename": "none",
}  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> str:
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    recipe = replace(CASE.recipes["standard-1x8"], grad_accum_steps=16)  # as the run's 64 samples
    run = write_two_ranks(
        tmp_path / "run", case="llama31_8b", recipe=asdict(recipe), eval_samples=1024,
        data=plan["data"] | {"eval_samples": 1024, "best_quality": None},
        about=plan["about"] | {"metric": CASE.metric, "higher_is_better": CASE.higher_is_better},
    )  # fmt: skip
    return to_mlperf(*run)


def with_keys(log: str, keys: dict[str, Any]) -> str:
    line = {"namespace": "", "event_type": "POINT_IN_TIME", "metadata": {"file": "x", "lineno": 1}}
    time_ms = json.loads(log.splitlines()[0].removeprefix(":::MLLOG "))["time_ms"]
    told = (line | {"time_ms": time_ms, "key": key, "value": keys[key]} for key in keys)
    return "".join(f":::MLLOG {json.dumps(item)}\n" for item in told) + log


@pytest.mark.parametrize(
    ("ruleset", "keys"), [("5.1.0", SUBMISSION), ("6.1.0", SUBMISSION | DISCLOSURE)]
)
def test_the_compliance_checker_wants_nothing_but_the_submissions_keys(
    log: str, tmp_path: Path, ruleset: str, keys: dict[str, Any]
) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text(with_keys(log, keys))
    assert complaints(path, ruleset) == (set(), [])
    path.write_text(with_keys(log.replace('"opt_name"', '"opt"'), keys))
    assert complaints(path, ruleset)[0] == {"opt_name"}


def test_the_convergence_checker_reads_it(log: str, tmp_path: Path) -> None:
    from mlperf_logging.rcp_checker import rcp_checker

    for number in range(10):
        (tmp_path / f"result_{number}.txt").write_text(with_keys(log, SUBMISSION))
    first = str(tmp_path / "result_0.txt")
    assert rcp_checker.read_submission_file(first, "5.1.0", False) == (0, 768, 64, "llama31_8b")
    checked = rcp_checker.check_directory(
        str(tmp_path), "training", "5.1.0", False, False, rcp_pass="full_rcps"
    )
    assert checked[:2] == (False, "RCP found")  # 768 samples are far fewer than the reference's


def test_published_results_are_drawn_with_this_cases_columns() -> None:
    references = read_references("llama31_8b")
    assert set(references.columns) - {"log_perplexity"} <= set(COLUMNS)
    (fastest,) = (row for row in references.rows if row.device == "GB300")
    assert (fastest.precision, fastest.cells["train_time"]) == ("fp4", "4042")
    assert all(row.source.date and row.source.url for row in references.rows)
