"""`trainmark check`: each rule is broken once and named; a sound case breaks none."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from support.fakes import GOLDEN
from trainmark import cases
from trainmark.cases.toy import data
from trainmark.cases.toy import job as toy
from trainmark.cases.toy.case import CASE as TOY
from trainmark.conformance import probe
from trainmark.conformance.case_check import (
    CHECKS,
    CaseCheck,
    CaseEvidence,
    apply_rules,
    find_definition_faults,
)
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.record.record import Cause, Record
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainmark.protocols import Batch
    from trainmark.recipe import Recipe

    Probe = Callable[[type[toy.ToyJob]], dict[str, Any]]

PROBED = {
    "draws": None,
    "overwritten": False,
    "model_flops": 600.0,
    "counted": 600,
    "waits": {},
}


def make_record(losses: list[float] | None = None, **changes: Any) -> Record:
    """Return the record of a passed toy run.

    Args:
        losses: of the steps; None: 40 losses that fall evenly, from 1.0 to 0.61.
        changes: fields of the record with other values, such as ``status``.
    """
    record = Record.model_validate_json((GOLDEN / "record_toy.json").read_bytes())
    losses = [1.0 - 0.01 * step for step in range(40)] if losses is None else losses
    steps = record.steps.model_copy(update={"loss": losses})
    return record.model_copy(update={"steps": steps, "status": "passed", "cause": None, **changes})


def make_runs(**second: Any) -> dict[int, Record]:
    """Return sound runs by number of ranks, the one of two ranks with changes."""
    return {1: make_record(), 2: make_record(**second)}


def make_failed_runs(kind: str, cause: Message, **more: Any) -> dict[int, Record]:
    """Return a sound run on one rank, and a run on two ranks that failed with this cause."""
    return make_runs(status="failed", cause=Cause(kind=kind, message=cause, **more))


def list_faults(checks: list[CaseCheck]) -> dict[str, list[str]]:
    """Return the codes of faults by the name of the check that found them."""
    return {check.check: [fault.code for fault in check.faults] for check in checks if check.faults}


def test_valid_case_has_no_fault() -> None:
    # ``make_runs`` returns runs on one rank and on two; ``PROBED`` is the report of the inspection.
    # ``CHECKS``: the names of all checks; ``list_faults``: the codes of faults, by the check's
    # name. Sound runs, and what the inspection of a sound job reports.
    checks = apply_rules(CaseEvidence(make_runs(), PROBED))
    assert [check.check for check in checks] == list(CHECKS)
    assert list_faults(checks) == {}
    assert [check.check for check in checks if check.skipped] == []


@pytest.mark.parametrize(
    ("records", "changes", "expected"),
    [
        (
            make_failed_runs("impossible_figure", message("samples_above_step")),
            {},
            {"runs": ["check_run_failed", "samples_above_step"]},
        ),
        (
            make_failed_runs("error", message("exception", text="boom"), place="model_build"),
            {},
            {"runs": ["check_run_failed", "exception"]},
        ),
        (
            make_runs(findings=[message("steps_beside_windows")]),
            {},
            {"runs": ["steps_beside_windows"]},
        ),
        (make_runs(findings=[message("evaluated_rows")]), {}, {"evaluation": ["evaluated_rows"]}),
        (
            # The losses of both runs count as equal: the means of the first ten, 1.0 here and 0.955
            # on one rank, differ by less than 5%.
            make_runs(losses=[1.0] * 40),
            {},
            {"loss_falls": ["check_loss_not_falling"]},
        ),
        (
            # On two ranks, the losses fall too, but are not those of one rank: they begin at 2.0.
            make_runs(losses=[2.0 - 0.01 * step for step in range(40)]),
            {},
            {"equal_losses": ["check_losses_differ"]},
        ),
        (
            make_runs(),
            {"waits": {"operation": "item", "place": "job.py:1"}},
            {"no_waits": ["check_step_waits"]},
        ),
    ],
)
def test_a_broken_rule_is_named(
    records: dict[int, Record], changes: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    # ``records``: runs by number of ranks, 1 and 2; ``make_runs`` and ``make_failed_runs`` make
    # changes to the second. ``PROBED`` is what the inspection of a sound job reports; ``changes``
    # are made to it. ``expected``: by name of the check, the codes of the faults that it finds.
    assert list_faults(apply_rules(CaseEvidence(records, PROBED | changes))) == expected


def test_check_that_could_not_run_does_not_pass() -> None:
    no_second_rank = message("check_without_second_rank", text="one device")
    # Unlike in ``PROBED``, what the inspection of a sound job reports, the case has no FLOP
    # formula, and the device cannot tell whether a step waits.
    no_formula = PROBED | {"model_flops": None, "waits": None}
    checks_by_name = {
        result.check: result
        for result in apply_rules(CaseEvidence({1: make_record()}, no_formula, no_second_rank))
    }
    assert checks_by_name["equal_losses"].skipped == no_second_rank
    assert checks_by_name["evaluation"].skipped == no_second_rank  # no qualities to compare
    assert checks_by_name["flops"].skipped == message("no_flop_formula")
    assert checks_by_name["no_waits"].skipped == message("check_waits_unknown")


FAILED = {"status": "failed", "cause": Cause(kind="error", message=message("exception", text=""))}
NO_QUALITY = {"quality": make_record().quality.model_copy(update={"value": None, "history": []})}


@pytest.mark.parametrize(
    "records",
    [
        {1: make_record(**FAILED), 2: make_record(**FAILED)},
        make_runs(**FAILED),
        {1: make_record(**NO_QUALITY), 2: make_record(**NO_QUALITY)},
        make_runs(**NO_QUALITY),
    ],
    ids=["both failed", "two ranks failed", "no qualities", "no quality with two ranks"],
)
def test_evaluations_that_cannot_be_compared_do_not_pass(records: dict[int, Record]) -> None:
    # ``records``: the runs by number of ranks, of which one or both failed or have no quality.
    checks = apply_rules(CaseEvidence(records, PROBED))
    skipped = {check.check: check.skipped.code for check in checks if check.skipped}
    assert skipped == {"evaluation": "check_without_qualities"}


def test_too_few_losses_to_tell_whether_they_fall_do_not_pass() -> None:
    no_second_rank = message("check_without_second_rank", text="one device")
    # They fall, but a usual run of these tests has 40 losses.
    two_losses = make_record([1.0, 0.5])
    checks = apply_rules(CaseEvidence({1: two_losses}, PROBED, no_second_rank))
    # ``PROBED``: what the inspection of a sound job reports. There is no run on two ranks either.
    skipped = {check.check: check.skipped.code for check in checks if check.skipped}
    assert skipped["loss_falls"] == "check_too_few_steps"


def test_failed_inspection_is_a_fault_and_skips_its_checks() -> None:
    # Sound runs, and in place of the report of an inspection the error that ended it. The skipped
    # checks are those that need the report.
    not_inspected = apply_rules(CaseEvidence(make_runs(), message("exception", text="boom")))
    assert list_faults(not_inspected) == {"runs": ["exception"]}
    assert {result.check for result in not_inspected if result.skipped} == {
        "batches",
        "flops",
        "no_waits",
    }


@pytest.fixture
def probe_toy_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Return a function that inspects ``job_type`` as the job of the toy case, in this process.

    It returns the report of the inspection: by name, what was found, such as ``waits``.
    """

    def call(job_type: type[toy.ToyJob]) -> dict[str, Any]:
        monkeypatch.setattr(toy, "build", job_type)
        plan = resolve(RunRequest(case="toy", device="cpu"), generated_root=tmp_path / "data")
        plan.save(tmp_path)
        return probe.probe_job(tmp_path)

    return call


class DoubleFlops(toy.ToyJob):
    def model_flops(self, counts: Any) -> float:
        return 2 * super().model_flops(counts)


class DrawsFromTheGlobalState(toy.ToyJob):
    def batches(self, epoch: int) -> Iterator[Batch]:
        """Draw noise from torch's global generator, as a planted mistake."""
        for batch in super().batches(epoch):
            x, y = batch.tensors
            yield replace(batch, tensors=[x + 0.1 * torch.randn(x.shape), y])


class ReusesItsBuffer(toy.ToyJob):
    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield batches that share one buffer, as a planted mistake."""
        buffer = torch.empty(self.context.recipe.micro_batch_size, data.FEATURES)
        for batch in super().batches(epoch):
            x, y = batch.tensors
            yield replace(batch, tensors=[buffer[: len(x)].copy_(x), y])


@pytest.mark.parametrize(
    ("job_type", "expected"),
    [
        (toy.ToyJob, {}),
        (DoubleFlops, {"flops": ["check_flops"]}),
        (DrawsFromTheGlobalState, {"batches": ["check_batches_draw"]}),
        (ReusesItsBuffer, {"batches": ["check_batches_overwritten"]}),
    ],
)
def test_inspection_of_a_job_detects_wrong_declarations(
    probe_toy_job: Probe, job_type: type[toy.ToyJob], expected: dict[str, list[str]]
) -> None:
    # The recorded runs are sound: only the inspection of the job can find these mistakes. Each
    # ``job_type`` after the first has one: twice the FLOPs, batches that draw from torch's global
    # generator, batches that share one buffer. ``expected``: by check, the codes of its faults.
    assert list_faults(apply_rules(CaseEvidence(make_runs(), probe_toy_job(job_type)))) == expected


class ReadsItsLoss(toy.ToyJob):
    def _compute_loss_sum(self, batch: Any) -> Any:
        """Wait for the device within a step, as a planted mistake."""
        loss = super()._compute_loss_sum(batch)
        assert loss.item() > 0
        return loss


def test_synchronizing_step_is_detected_if_the_device_can_detect_it(
    probe_toy_job: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def forbid_synchronization(_: CpuDevice) -> Iterator[None]:
        """Stand for the method of a device that reports each wait; here only ``item`` waits."""

        def wait(_: torch.Tensor) -> None:
            raise RuntimeError("waits\nat length")

        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "item", wait)
            yield

    assert probe_toy_job(ReadsItsLoss)["waits"] is None  # a CPU cannot tell

    monkeypatch.setattr(CpuDevice, "forbid_synchronization", forbid_synchronization, raising=False)
    assert probe_toy_job(toy.ToyJob)["waits"] == {}
    waits = probe_toy_job(ReadsItsLoss)["waits"]
    # The first line of the error names the operation.
    assert waits["operation"] == "waits"
    assert "test_case_check.py:" in waits["place"]


TINY = TOY.recipes["tiny"]


@pytest.mark.parametrize(
    ("case", "code"),
    [
        (
            # A target above what the data allow.
            replace(TOY, recipes={"tiny": replace(TINY, target_value=0.999)}),
            "check_target_unreachable",
        ),
        (
            # No recipe on generated data.
            replace(TOY, recipes={"standard": replace(TINY, data="real")}),
            "check_no_generated_recipe",
        ),
    ],
)
def test_a_wrong_description_is_named(
    case: Any, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``case``: a changed toy case.
    monkeypatch.setattr(cases, "load", lambda _: case)
    assert [fault.code for fault in find_definition_faults("toy")] == [code]


def test_data_that_differs_at_each_generation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # The check generates the data of the toy case twice with the same recipe, and compares what was
    # generated. Here each generation gets another seed, so the contents differ.
    seeds = iter(range(10))

    def generate_with_next_seed(folder: Path, recipe: Recipe) -> None:
        generate(folder, SimpleNamespace(**vars(recipe) | {"seed": next(seeds)}))

    generate = data.generate
    monkeypatch.setattr(data, "generate", generate_with_next_seed)
    assert [fault.code for fault in find_definition_faults("toy")] == ["check_data_not_repeatable"]
