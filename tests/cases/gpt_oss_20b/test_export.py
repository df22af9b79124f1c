"""The log of a run in MLPerf's form, read by MLCommons' own checker, and published results."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from support.exported_runs import complaints, write_two_ranks
from support.fakes import GOLDEN
from trainmark.cases.gpt_oss_20b.case import CASE
from trainmark.export.tables import to_mlperf
from trainmark.pages.sections.provenance import COLUMNS
from trainmark.plan.reference import read_references

if TYPE_CHECKING:
    from pathlib import Path

# What says who submits what; of 6.1 also how a submitter's program ran.
SUBMISSION: dict[str, Any] = {
    "submission_benchmark": "gpt_oss_20b", "submission_division": "closed",
    "submission_org": "nobody", "submission_platform": "none", "cache_clear": True,
}  # fmt: skip
DISCLOSURE: dict[str, Any] = {
    "lowest_numerical_precision_in_linear": "bfloat16",
    "lowest_numerical_precision_in_attn": "bfloat16",
    "lowest_numerical_precision_in_comm": "bfloat16", "tensor_parallelism": 1,
    "pipeline_parallelism": 1, "context_parallelism": 1, "expert_parallelism": 8,
    "config_filename": "none",
}  # fmt: skip


@pytest.mark.parametrize(
    ("ruleset", "keys"), [("6.0.0", SUBMISSION), ("6.1.0", SUBMISSION | DISCLOSURE)]
)
def test_the_compliance_checker_wants_nothing_but_the_submissions_keys(
    tmp_path: Path, ruleset: str, keys: dict[str, Any]
) -> None:
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    recipe = replace(CASE.recipes["standard-1x8"], grad_accum_steps=16)  # as the run's 64 samples
    run = write_two_ranks(
        tmp_path / "run", case="gpt_oss_20b", recipe=asdict(recipe), eval_samples=1024,
        data=plan["data"] | {"eval_samples": 1024, "best_quality": None},
        about=plan["about"] | {"metric": CASE.metric, "higher_is_better": CASE.higher_is_better},
    )  # fmt: skip
    log = to_mlperf(*run)
    line = {"namespace": "", "event_type": "POINT_IN_TIME", "metadata": {"file": "x", "lineno": 1}}
    time_ms = json.loads(log.splitlines()[0].removeprefix(":::MLLOG "))["time_ms"]
    lines = (line | {"time_ms": time_ms, "key": key, "value": keys[key]} for key in keys)
    path = tmp_path / "result_0.txt"
    path.write_text("".join(f":::MLLOG {json.dumps(item)}\n" for item in lines) + log)
    assert complaints(path, ruleset) == (set(), [])


def test_published_results_are_drawn_with_this_cases_columns() -> None:
    references = read_references("gpt_oss_20b")
    assert set(references.columns) - {"log_perplexity"} <= set(COLUMNS)
    assert references.parameters == CASE.recipes["standard-1x8"].parameters
    rates = [row.cells["fix_hp"].split(", ")[1] for row in references.rows]
    assert rates == ["learning_rate=0.0004", "learning_rate=0.0008"]
    assert all(row.source.url for row in references.rows)
