"""Logs in MLPerf's form of a run whose case trains a language model, with a submission's keys."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from support.exported_runs import write_two_ranks
from support.fakes import GOLDEN
from trainmark.export.run_logs import render_mlperf_log

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import Case

# Keys that describe a submission.
SUBMISSION: dict[str, Any] = {
    "submission_division": "closed",
    "submission_org": "nobody",
    "submission_platform": "none",
    "cache_clear": True,
}
# Ruleset 6.1 also asks how a submitter's program ran.
DISCLOSURE: dict[str, Any] = {
    "lowest_numerical_precision_in_linear": "bfloat16",
    "lowest_numerical_precision_in_attn": "bfloat16",
    "lowest_numerical_precision_in_comm": "bfloat16",
    "tensor_parallelism": 1,
    "pipeline_parallelism": 1,
    "context_parallelism": 1,
    "expert_parallelism": 1,
    "config_filename": "none",
}


def write_log(folder: Path, case: Case) -> str:
    """Write a run of the case's published recipe on one node; return its log."""
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    # A published recipe, whose name does not matter here: the run has two ranks. In a step each
    # trains 16 micro-batches of 2 samples: together 64, as the steps of ``write_two_ranks`` have.
    # MLCommons' checker requires 1024 samples of an evaluation. The plan is that of the toy case,
    # so case, recipe and metric are replaced. Its best quality is what the toy's data allow, not
    # this case's, so it is left out (None).
    recipe = replace(case.recipes["standard-1x8"], grad_accum_steps=16)
    run = write_two_ranks(
        folder,
        case=case.name,
        recipe=asdict(recipe),
        eval_samples=1024,
        data=plan["data"] | {"eval_samples": 1024, "best_quality": None},
        about=plan["about"] | {"metric": case.metric, "higher_is_better": case.higher_is_better},
    )
    return render_mlperf_log(*run)


def add_submission_keys(log: str, benchmark: str, ruleset: str) -> str:
    """Return ``log`` with the keys that a submission under a ruleset adds.

    ``SUBMISSION`` has keys on who submits, and ``DISCLOSURE`` those on precisions and parallelism
    that only ruleset 6.1 asks for, each with some valid value.

    Args:
        benchmark: MLPerf's name of the case.
        ruleset: the version of MLPerf's rules, ``5.1.0`` or ``6.1.0``.
    """
    keys = {"submission_benchmark": benchmark, **SUBMISSION}
    if ruleset == "6.1.0":
        keys |= DISCLOSURE
    line = {"namespace": "", "event_type": "POINT_IN_TIME", "metadata": {"file": "x", "lineno": 1}}
    # The keys come first, at the time of the log's first line.
    time_ms = json.loads(log.splitlines()[0].removeprefix(":::MLLOG "))["time_ms"]
    lines = (line | {"time_ms": time_ms, "key": key, "value": keys[key]} for key in keys)
    return "".join(f":::MLLOG {json.dumps(item)}\n" for item in lines) + log
