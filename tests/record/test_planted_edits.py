"""Consistency checks of a single record, with edits that were written before the checks.

Golden records are edited, and those of real runs of a rank in this process.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pydantic import ValidationError

from support.fakes import GOLDEN, SyncDevice
from support.in_process_runs import run_rank
from support.planted_records import EDITS, Edit, apply, multiply_by, replace_by
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.record import reduce
from trainmark.record.record import Record, serialize_record
from trainmark.record.verify import check_itself

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("name", sorted({edit.record for edit in EDITS}))
def test_unedited_record_is_consistent(name: str) -> None:
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert check_itself(Record.model_validate_json(text)) == []


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.record}-{edit.path}")
def test_edited_record_is_detected(edit: Edit) -> None:
    # ``EDITS`` are changes of one value of a record in the test data: the record's file, the path
    # of the value, and how it is changed. Each contradicts other values, or is invalid by itself.
    document = json.loads((GOLDEN / f"{edit.record}.json").read_text(encoding="utf-8"))
    try:
        record = Record.model_validate_json(json.dumps(apply(document, edit)))
    except ValidationError:
        return  # refused when it is loaded
    assert check_itself(record)  # a contradiction was found


def edit_record(document: dict[str, Any], changes: dict[str, Any]) -> Record | None:
    """Return the record with other values at these paths; None: it is refused when it is loaded.

    Args:
        document: the record as a dictionary, which stays as it is.
        changes: by path, the new value, or a function that makes it of the old one.
    """
    document = json.loads(json.dumps(document))
    for path, value in changes.items():
        change = value if callable(value) else replace_by(value)
        apply(document, Edit(record="", path=path, change=change))  # of no golden record
    try:
        return Record.model_validate_json(json.dumps(document))
    except ValidationError:
        return None


@pytest.fixture(scope="module")
def real_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Return records of real runs: GPT without and with a peak, and a toy with changed fields.

    The peak is the rate of the device in TFLOP/s, as a user may give it; any number does.
    """
    threads = torch.get_num_threads()
    few_steps = {"max_steps": "4", "warmup_steps": "1", "target_value": "none"}
    changed = {
        "weight_decay": "0.1",
        "micro_batch_size": "32",
        "max_epochs": "2",
        "target_value": "none",
    }
    # By name: the case, changed fields of its recipe, and further settings of the run.
    requests: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
        "gpt": ("gpt_megatron", few_steps, {}),
        "peak": ("gpt_megatron", few_steps, {"peak_tflops": 2.0}),
        "toy": ("toy", changed, {}),
    }
    records = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDevice, "matmul_rate", SyncDevice.matmul_rate)  # not measured, so quick
        for name, (case, overrides, request) in requests.items():
            root = tmp_path_factory.mktemp(name)
            run_dir = run_rank(root, case, overrides=overrides, **request)
            records[name] = json.loads(serialize_record(reduce.reduce(run_dir)))
    yield records
    torch.set_num_threads(threads)  # which the runs changed


@pytest.mark.parametrize("name", ["gpt", "peak", "toy"])
def test_record_of_a_real_run_is_consistent(
    real_records: dict[str, dict[str, Any]], name: str
) -> None:
    # ``edit_record`` returns the record with these changes, or None if it cannot be loaded.
    record = edit_record(real_records[name], {})  # as it is
    assert record is not None  # it can be loaded
    assert record.passed
    assert check_itself(record) == []
    # Nothing in a record follows from the version of torch.
    other_torch = {"environment.packages": {"torch": "2.11.0+cu130"}}
    record = edit_record(real_records[name], other_torch)
    assert record is not None
    assert check_itself(record) == []


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        # Fields of the recipe were changed, which these edits hide.
        ("toy", {"plan.extra": {}, "plan.fix_hp": {}}),
        ("toy", {"plan.extra": {}, "plan.rules": "closed"}),
        ("toy", {"plan.fix_hp": {}}),
        ("toy", {"plan.recipe.micro_batch_size": 64, "plan.fix_hp": {}}),
        # Another model than that of the other numbers.
        ("gpt", {"plan.recipe.num_layers": 24}),
        ("gpt", {"plan.recipe.num_layers": 24, "plan.extra.num_layers": 24, "plan.rules": "open"}),
        ("gpt", {"plan.recipe.seq_length": 128}),
        ("gpt", {"plan.recipe.hidden_size": 128}),
        (
            "gpt",
            {
                "environment.job.parameters": multiply_by(1000),
                "environment.job.trainable_parameters": multiply_by(1000),
            },
        ),
        # Figures, or what they are computed from.
        ("gpt", {"environment.job.attention_flops_share": 0.5}),
        ("gpt", {"figures.MFU_causal": {"value": 41.0, "unit": "%"}}),
        ("gpt", {"ranks.0.phases.train.model_flops": multiply_by(2)}),
        ("peak", {"figures.MFU_causal.value": multiply_by(1.1)}),
        (
            "peak",
            {
                "figures.MFU": {
                    "value": None,
                    "unit": "%",
                    "reason": {"code": "peak_unknown", "args": {}},
                }
            },
        ),
        ("peak", {"plan.peak_tflops": 1.0}),  # MFU is of a peak of 2.0
        # Without the label "given-peak": the user gave the peak of the plan.
        ("peak", {"plan.labels": ["self-reported", "performance-only", "generated-data"]}),
        # Evaluations that do not fit what was scored.
        ("toy", {"quality.history.0.scored.rows": 872}),
        ("toy", {"quality.history.0.scored.mean": 0.5}),
        ("toy", {"quality.history.0.value": 0.5}),
        ("toy", {"quality.history.0.scored.digest": "0" * 16}),
        # A flag of torch that allows matmuls in bf16, in a run in fp32.
        ("toy", {"environment.precision_flags.float32_matmul": "medium"}),
    ],
)
def test_edit_of_a_real_record_is_detected(
    real_records: dict[str, dict[str, Any]], name: str, changes: dict[str, Any]
) -> None:
    # ``changes`` are new values by their path in the record of a real run: "gpt" is one of GPT,
    # "peak" one of GPT with a given peak of the device, "toy" one of the toy case with changed
    # fields. ``multiply_by`` changes the old value.
    record = edit_record(real_records[name], changes)
    assert record is None or check_itself(record)  # refused when it is loaded, or inconsistent


@pytest.mark.parametrize(
    "changes",
    [
        {"environment.cpu": "AMD EPYC 9965"},
        {"argv": ["trainmark", "run", "toy"]},
        {"plan.recipe.seed": 99},
        {"plan.data.content_id": "0" * 16},
        {"evidence.0.sha256": "0" * 64},
    ],
)
def test_some_edits_cannot_be_found_in_the_record_alone(
    real_records: dict[str, dict[str, Any]], changes: dict[str, Any]
) -> None:
    """docs/trust.md lists these kinds of edits."""
    # No other value of the record depends on these: the name of a CPU, the command line, a seed,
    # checksums of the data and of a file.
    record = edit_record(real_records["toy"], changes)
    assert record is not None
    assert check_itself(record) == []
