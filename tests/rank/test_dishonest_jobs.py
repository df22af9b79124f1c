"""Jobs that report work they did not do: each fails by a named rule.

The real worker, loop and record on the toy case in this process; only the launcher is
played by hand.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from support.fakes import SyncDevice
from support.in_process_runs import run_rank
from trainmark.cases.toy import job
from trainmark.cases.toy.data import Clouds
from trainmark.cases.toy.job import ToyJob
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import Counts
from trainmark.rank import worker
from trainmark.record import reduce
from trainmark.train.evaluation import EvaluationSum, scored_rows
from trainmark.train.shards import evaluation_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainmark.protocols import Batch, Evaluation
    from trainmark.record.record import Record
    from trainmark.spec import Message

    Run = Callable[..., Record]


@pytest.fixture
def run_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a job in place of the toy case's and returns the record.

    Its arguments are the type of the job, derived from ``ToyJob``, and fields of the recipe.
    """
    # The rate of matmuls that is measured before training is a fixed one of a fake, so it is quick.
    monkeypatch.setattr(CpuDevice, "matmul_rate", SyncDevice.matmul_rate)
    threads = torch.get_num_threads()  # the job sets its own number; it is restored at the end

    def call(job_type: type[ToyJob], **overrides: object) -> Record:
        monkeypatch.setattr(job, "build", job_type)
        # The usual run is short and has a target that an honest job reaches, an accuracy of 0.5.
        args = {"max_epochs": "2", "target_value": "0.5"}
        args |= {name: str(value) for name, value in overrides.items()}
        return reduce.reduce(run_rank(tmp_path, overrides=args))

    yield call
    torch.set_num_threads(threads)


def read_cause(record: Record) -> tuple[str, str, dict[str, Any]]:
    """Return kind, code and arguments of the cause."""
    assert record.status == "failed"
    assert record.cause is not None
    return record.cause.kind, record.cause.message.code, record.cause.message.args


def list_doubts(record: Record) -> list[Message]:
    """Return the findings but for those of this machine and of a short run."""
    usual = {
        "machine_busy",  # other programs run
        "not_steady",  # the speed changes
        "steadiness_unknown",  # too few steps to show whether it does
        "steps_beside_windows",  # the process was stopped between a step and the window's end
        "read_before_measured",  # batches were read before measuring began
    }
    return [finding for finding in record.findings if finding.code not in usual]


def test_an_honest_job_passes_without_a_finding(run_job: Run) -> None:
    # ``ToyJob`` is the program's own job of the toy case; the other jobs of this file change it.
    record = run_job(ToyJob)
    assert (record.status, record.cause, list_doubts(record)) == ("passed", None, [])
    assert record.counts.samples == record.plan.data.train_samples * record.counts.epochs
    # The checks that find the faults below did run.
    check_ns = record.spans.by_name_ns["check"]
    assert 0 < check_ns < record.spans.wall_ns


class TwiceTheSamples(ToyJob):
    """Counts every row twice."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        for batch in super().batches(epoch):
            yield replace(batch, counts=batch.counts + batch.counts)


class TwiceTheStep(TwiceTheSamples):
    """Reports the double count for the whole step too."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        for batch in super().batches(epoch):
            yield replace(batch, step_samples=2 * batch.step_samples)


class HalfBatches(ToyJob):
    """Trains two batches of half the rows in place of each batch, and counts each as a whole one.

    So no step counts more samples than the recipe's batch has, but an epoch counts twice its rows.
    """

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Return the batches of an epoch, twice as many as the toy case has."""
        for batch in super().batches(epoch):
            # Every second row from the first one, and from the second one. Each half becomes a
            # batch of its own, with the counts of the whole batch.
            halves = [[tensor[half::2] for tensor in batch.tensors] for half in (0, 1)]
            yield from (replace(batch, tensors=half) for half in halves)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps_per_epoch *= 2


class ShortEpoch(ToyJob):
    """Skips half of the data."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        return itertools.islice(super().batches(epoch), self.steps_per_epoch // 2)


class ShortAnnounced(ToyJob):
    """Skips half of the data and announces half of the steps."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps_per_epoch //= 2

    def batches(self, epoch: int) -> Iterator[Batch]:
        return itertools.islice(super().batches(epoch), self.steps_per_epoch)


class FewSequences(ToyJob):
    """Counts one sequence a batch."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        for batch in super().batches(epoch):
            yield replace(batch, counts=Counts(samples=batch.counts.samples, sequences=1))


class Disagrees(ToyJob):
    """Reports another step size in each micro-batch."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        for number, batch in enumerate(super().batches(epoch)):
            yield replace(batch, step_samples=batch.step_samples + number)


@pytest.mark.parametrize(
    # An epoch of the toy case has 64 steps of 64 samples.
    ("job_type", "overrides", "code", "args"),
    [
        (
            TwiceTheSamples,  # counts every row twice
            {},
            "samples_above_step",
            {"step": 1, "samples": 128, "step_samples": 64},
        ),
        # Counts every row twice for the whole step too, so only the recipe's batch contradicts it.
        (TwiceTheStep, {}, "samples_above_global_batch", {"step": 1, "samples": 128, "most": 64}),
        # Makes two batches of each one's halves and counts each of them as a whole one.
        (HalfBatches, {}, "samples_of_epoch", {"epoch": 1, "samples": 8192, "expected": 4096}),
        # Skips half of the data; the second one also announces half of the steps.
        (ShortEpoch, {}, "steps_of_epoch", {"epoch": 1, "steps": 32, "planned": 64}),
        (ShortAnnounced, {}, "samples_of_epoch", {"epoch": 1, "samples": 2048, "expected": 4096}),
        (
            FewSequences,  # counts one sequence in a batch of 64 samples
            {},
            "counts_contradict",
            {"step": 1, "container": "samples", "containers": 64, "item": "sequences", "items": 1},
        ),
        (
            Disagrees,  # reports another step size in each of the two micro-batches
            {"grad_accum_steps": 2},
            "step_samples_differ",
            {"step": 1, "least": 128, "most": 129},
        ),
    ],
)
def test_counts_that_contradict_each_other_fail_the_run(
    run_job: Run, job_type: type[ToyJob], overrides: dict[str, int], code: str, args: dict[str, Any]
) -> None:
    # The toy case has 4,096 rows, in steps of 64; ``args`` are those of the message.
    assert read_cause(run_job(job_type, **overrides)) == ("impossible_figure", code, args)


class WorksInEvaluation(ToyJob):
    """Defers its steps to ``evaluate``, so that the windows measure nothing."""

    claims_updates = False  # a derived job sets it

    def __init__(self, *arguments: Any) -> None:
        # ``put_off`` has the batches of the steps that were not taken. ``self.step``, which the
        # loop calls, is replaced; the true one is kept as ``take_honest_step``.
        super().__init__(*arguments)
        self.put_off: list[list[Batch]] = []
        self.num_claimed_steps = 0
        self.take_honest_step = self.step
        self.step = self.put_step_off
        if self.claims_updates:  # only ``ClaimsUpdates`` does
            # The loop asks the job for its number of weight updates; this job claims one a step.
            self.updates = lambda: self.num_claimed_steps

    def put_step_off(self, batches: Iterator[Batch]) -> torch.Tensor | None:
        """Keep the batch and return a loss that was not computed but falls, as a true one does.

        Args:
            batches: those that the epoch still has; without one, the result is None.
        """
        batch = next(batches, None)
        if batch is None:
            return None
        self.put_off.append([batch])
        self.num_claimed_steps += 1
        return torch.tensor(0.5 / self.num_claimed_steps)

    def evaluate(self) -> Evaluation:
        # The steps in the measured windows only read these batches; now they are trained on.
        for batches_of_step in self.put_off:
            self.take_honest_step(iter(batches_of_step))
        self.put_off.clear()
        return super().evaluate()


class ClaimsUpdates(WorksInEvaluation):
    """Trains nothing and counts its steps as taken."""

    claims_updates = True


def test_work_deferred_to_the_evaluation_fails_the_run(run_job: Run) -> None:
    failure = read_cause(run_job(WorksInEvaluation))
    assert failure == ("untimed_work", "parameters_changed_in_evaluation", {"step": 64})


def test_steps_that_train_nothing_fail_the_run(run_job: Run) -> None:
    # The job only reads its batches, but reports an update of the weights for each step.
    failure = read_cause(run_job(ClaimsUpdates))
    # Each window of steps that are timed together is checked; the first one has a single step. The
    # toy's model has four parameters: the weights and biases of two layers.
    args = {"first": 1, "last": 1, "updates": 1, "parameters": 4}
    assert failure == ("not_trained", "parameters_unchanged_in_window", args)


class StopsAfterWarmup(ToyJob):
    """Trains during the warm-up only, then only reads batches."""

    def __init__(self, *arguments: Any) -> None:
        # The loop calls ``self.step``, which is replaced; the true one is kept as
        # ``take_honest_step``.
        super().__init__(*arguments)
        self.num_steps = 0
        self.take_honest_step = self.step
        self.step = self.train_in_warmup_only
        self.updates = lambda: self.num_steps  # it claims a weight update for each step

    def train_in_warmup_only(self, batches: Iterator[Batch]) -> torch.Tensor | None:
        """Train on a batch, or only read it; return the loss, None at the end of the epoch.

        Args:
            batches: those that the epoch still has.
        """
        if self.num_steps < self.context.recipe.warmup_steps:
            self.num_steps += 1
            return self.take_honest_step(batches)
        if next(batches, None) is None:  # the epoch has no further batch
            return None
        self.num_steps += 1
        return torch.tensor(1.0 / self.num_steps)  # not computed, but it falls as a true loss does


@pytest.mark.parametrize("window_steps", [10, 1000])
def test_training_that_stops_after_the_warmup_fails_the_run(
    run_job: Run, window_steps: int
) -> None:
    kind, code, args = read_cause(run_job(StopsAfterWarmup, window_steps=window_steps))
    # Steps of a window are timed together, and a window ends with the epoch at the latest. Each
    # step from 11 on claims an update; the four parameters are weights and biases of two layers.
    assert (kind, code) == ("not_trained", "parameters_unchanged_in_window")
    last = min(10 + window_steps, 64)  # of the window after 10 steps of warm-up, in an epoch of 64
    assert args == {"first": 11, "last": last, "updates": last - 10, "parameters": 4}


class DetachedLayer(ToyJob):
    """Its first layer has no gradient."""

    def _compute_loss_sum(self, batch: Batch) -> torch.Tensor:
        """Return the sum of the losses of a batch, whose gradients end before the first layer."""
        features, labels = batch.tensors
        first, *other_layers = self.stepper.model
        # Nothing of the loss reaches the first layer.
        scores = torch.nn.Sequential(*other_layers)(first(features).detach())
        return torch.nn.functional.cross_entropy(scores, labels, reduction="sum")


def test_parameters_without_a_gradient_fail_the_run(run_job: Run) -> None:
    kind, code, args = read_cause(run_job(DetachedLayer))
    assert (kind, code) == ("not_trained", "parameters_never_changed")
    # An epoch has 64 updates. The half of the model that is trained may reach the target after one
    # epoch, or needs two.
    assert args["updates"] in (64, 2 * 64)
    # Two of the four parameters.
    assert (args["names"], args["number"], args["parameters"]) == ("0.weight, 0.bias", 2, 4)


class ZeroGradients(ToyJob):
    """Its first layer gets zero gradients, as by a compiler bug; only weight decay changes it."""

    def _compute_loss_sum(self, batch: Batch) -> torch.Tensor:
        """Return the sum of the losses of a batch, which does not depend on the first layer."""
        first = self.stepper.model[0]
        # Adds nothing to the loss, but gives the first layer gradients of zero instead of none.
        zero = sum((parameter * 0).sum() for parameter in first.parameters())
        features, labels = batch.tensors
        scores = torch.nn.Sequential(*list(self.stepper.model)[1:])(first(features).detach())
        return torch.nn.functional.cross_entropy(scores, labels, reduction="sum") + zero


def test_zero_gradients_fail_the_run_though_weight_decay_changes_the_parameters(
    run_job: Run,
) -> None:
    # The weight decay is the optimizer's, which makes weights smaller in each update, whatever
    # their gradients. So a check for changed weights alone would find nothing.
    kind, code, args = read_cause(run_job(ZeroGradients))
    assert (kind, code) == ("not_trained", "gradients_zero")
    # Of four parameters, weight and bias of the first layer.
    assert args == {"names": "0.weight, 0.bias", "number": 2, "parameters": 4}


class TrainsWhenSaved(ToyJob):
    """Takes another step after the training."""

    def save(self, _folder: Path) -> None:
        self.step(self.batches(9))


def test_training_after_the_end_fails_the_run(run_job: Run) -> None:
    # The job takes another step when the trained model is saved, which is not timed.
    assert read_cause(run_job(TrainsWhenSaved)) == (
        "untimed_work",
        "parameters_changed_after_training",
        {},
    )


class DropsTheRest(ToyJob):
    """Skips the last step of an epoch and reports it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # The job announces an epoch without its last step: 64 of the 4,096 samples of the toy case.
        self.steps_per_epoch -= 1
        self.samples_per_epoch = 4096 - 64

    def batches(self, epoch: int) -> Iterator[Batch]:
        return itertools.islice(super().batches(epoch), self.steps_per_epoch)


def test_epoch_that_drops_rows_is_reported_and_passes_with_a_finding(run_job: Run) -> None:
    # The job skips the last step of each epoch, 64 of the 4,096 rows.
    record = run_job(DropsTheRest)
    assert record.status == "passed"  # as the job itself announces the shorter epoch
    assert [finding.as_dict() for finding in list_doubts(record)] == [
        {"code": "own_epoch", "args": {"samples": 4032, "rows": 4096}}
    ]


class SameLoss(ToyJob):
    """Trains, and reports the same loss for each batch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        take_step = self.step
        # None still says that the epoch has ended.
        self.step = lambda batches: None if take_step(batches) is None else torch.tensor(0.25)


def test_a_loss_that_never_changes_is_a_finding(run_job: Run) -> None:
    # The job trains as it should, but reports another loss than it computed, always the same.
    record = run_job(SameLoss, max_epochs=1)
    assert record.status == "passed"
    (finding,) = list_doubts(record)
    # An epoch has 64 steps, for each of which the job reports 0.25.
    assert (finding.code, finding.args) == ("loss_never_changes", {"loss": 0.25, "steps": 64})


@pytest.mark.parametrize(("ahead", "noted"), [(2, False), (5, False), (6, True)])
def test_batches_read_before_measuring_are_noted(run_job: Run, ahead: int, noted: bool) -> None:
    # ``ahead`` is how many batches are read ahead, ``noted`` whether the record has a note of it.
    # 60 steps, of which 10 warm up. Up to 5 batches that were ready before are a tenth of the 50
    # measured steps and not worth a note.
    record = run_job(ToyJob, max_steps=60, read_ahead_batches=ahead)
    notes = [note.args for note in record.findings if note.code == "read_before_measured"]
    assert notes == ([{"ahead": ahead, "batches": 50}] if noted else [])


class SlowSteps(ToyJob):
    """Takes 20 ms a step, so that windows are long enough to be compared with clocks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        take_step = self.step

        def step_slowly(batches: Iterator[Batch]) -> Any:
            end_ns = worker.clock() + 20_000_000
            loss = take_step(batches)
            while worker.clock() < end_ns:  # a sleep could take longer
                pass
            return loss

        self.step = step_slowly


def test_step_times_at_half_the_hosts_rate_are_a_finding(
    run_job: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of the 20 steps takes 20 ms of the host's clock and 10 ms of the device's.
    # A device whose clock for steps runs at half the rate of the host's.
    monkeypatch.setattr(CpuDevice, "elapsed_ns", lambda _self, start, end: (end - start) // 2)
    record = run_job(SlowSteps, max_epochs=1, max_steps=20)
    # The times of the steps do not add up to those of their windows, which the host measures.
    (finding,) = [note for note in record.findings if note.code == "steps_beside_windows"]
    assert finding.args["rank"] == 0
    assert finding.args["steps_s"] <= finding.args["windows_s"] / 2
    assert "steps_beside_windows" in [reason.code for reason in record.trust.reasons]


class EverySecondStep(ToyJob):
    """Takes every second step's batches without training on them."""

    def __init__(self, *arguments: Any) -> None:
        # The loop calls ``self.step``, which is replaced; the true one is kept as
        # ``take_honest_step``.
        super().__init__(*arguments)
        self.num_steps = 0
        self.take_honest_step = self.step
        self.step = self.train_every_second_step

    def train_every_second_step(self, batches: Iterator[Batch]) -> torch.Tensor | None:
        """Train on a batch, or only read it; return the loss, None at the end of the epoch.

        Args:
            batches: those that the epoch still has.
        """
        self.num_steps += 1
        if self.num_steps % 2:  # the first one, the third one and so on
            return self.take_honest_step(batches)
        if next(batches, None) is None:  # the epoch has no further batch
            return None
        return torch.tensor(1.0 / self.num_steps)  # not computed, but it falls as a true loss does


def test_steps_that_train_nothing_are_a_finding_that_forbids_quoting(run_job: Run) -> None:
    # One epoch of 64 steps, without a target, which half of the training could miss.
    record = run_job(EverySecondStep, max_epochs=1, target_value="none")
    # Half of the steps updated the weights, and none was skipped for an overflow.
    assert [finding.as_dict() for finding in list_doubts(record)] == [
        {"code": "few_updates", "args": {"updates": 32, "steps": 64, "skipped": 0}}
    ]
    assert record.trust.grade == "do_not_quote"
    assert "few_updates" in [reason.code for reason in record.trust.reasons]


class ScoresHalf(ToyJob):
    """Reports that it scored half of the validation rows."""

    def evaluate(self) -> Evaluation:
        quality = super().evaluate()
        return replace(quality, samples=quality.samples // 2)


def test_an_evaluation_over_fewer_rows_is_a_finding(run_job: Run) -> None:
    # Reports 500 of the 1,000 rows of validation data, which is also the cause of a failed run.
    record = run_job(ScoresHalf)
    assert read_cause(record)[:2] == ("wrong_evaluation", "evaluation_rows")
    assert [finding.as_dict() for finding in list_doubts(record)] == [
        {"code": "evaluated_rows", "args": {"scored": 500, "rows": 1000}}
    ]


class ByHand(ToyJob):
    """Scores in batches of 300 rows, which do not divide the 1000 of the validation data."""

    split = "validation"

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        scored = EvaluationSum()
        self.means: list[float] = []
        for (features, labels), rows in self.scored_batches():
            # A batch has features and labels; ``rows`` says how many of its rows count. Rows that
            # only fill up the last batch do not. ``EvaluationSum`` adds up right answers and rows.
            right = (self.model(features).argmax(1) == labels)[: rows.count]
            scored.add(rows, total=right.sum())
            self.means.append(float(right.float().mean()))  # for jobs that are derived from it
        return self.reported(scored.mean(world_size=1, device=self.stepper.device))

    def scored_batches(self) -> list[Any]:
        """Return the batches of the first 1,000 rows of ``split`` with the rows they score.

        ``split`` is "validation", or "train" in a job that scores the wrong data. ``Clouds`` are
        rows of the toy case's data, points of two clouds with their labels.
        """
        rows = self.data[self.split]
        rows = Clouds(rows.features[:1000], rows.labels[:1000])
        return list(scored_rows(evaluation_batches(rows, size=300, rank=0, world_size=1)))

    def reported(self, evaluation: Evaluation) -> Evaluation:
        """Return what the job reports of its evaluation; derived jobs change it."""
        return evaluation


class ScoresTrainingRows(ByHand):
    """Scores training rows, as many as the validation data has."""

    split = "train"


class DropsLastBatch(ByHand):
    """Skips the last 100 rows and reports all."""

    def scored_batches(self) -> list[Any]:
        return super().scored_batches()[:-1]

    def reported(self, evaluation: Evaluation) -> Evaluation:
        return replace(evaluation, samples=1000)


class AveragesBatchMeans(ByHand):
    """Gives the last 100 rows the weight of 300."""

    def reported(self, evaluation: Evaluation) -> Evaluation:
        return replace(evaluation, value=fmean(self.means))


class AddsUpMeans(ByHand):
    """Sums means of batches instead of scores."""

    def reported(self, evaluation: Evaluation) -> Evaluation:
        scores = replace(evaluation.scores, total=sum(self.means), weight=4.0)
        return replace(evaluation, value=fmean(self.means), scores=scores)


class ScoresOneBatch(ByHand):
    """Scores the same 250 rows four times."""

    def scored_batches(self) -> list[Any]:
        rows = Clouds(self.data["validation"].features[:250], self.data["validation"].labels[:250])
        return 4 * list(scored_rows(evaluation_batches(rows, size=250, rank=0, world_size=1)))


class ScoresOtherRows(ByHand):
    """Scores other rows in each evaluation."""

    def scored_batches(self) -> list[Any]:
        rows = self.data["validation"]
        # Rows count as others if their features differ, so each evaluation shifts them further.
        self.shift = getattr(self, "shift", 0.0) + 1.0
        rows = Clouds(rows.features + np.float32(self.shift), rows.labels)
        return list(scored_rows(evaluation_batches(rows, size=300, rank=0, world_size=1)))


class SaysNothing(ByHand):
    """Does not report which rows it scored."""

    def reported(self, evaluation: Evaluation) -> Evaluation:
        return replace(evaluation, scores=None)


@pytest.mark.parametrize(
    ("job_type", "code", "args"),
    [
        (ScoresTrainingRows, "evaluation_of_training_rows", {"number": 1, "known": 256}),
        (DropsLastBatch, "evaluation_rows", {"number": 1, "rows": 900, "expected": 1000}),
        (AveragesBatchMeans, "evaluation_not_the_mean", {"number": 1, "name": "acc"}),
        (AddsUpMeans, "evaluation_weights", {"number": 1, "rows": 1000, "weight": 4.0}),
        (ScoresHalf, "evaluation_rows", {"number": 1, "rows": 500, "expected": 1000}),
    ],
)
def test_wrong_evaluation_fails_the_run(
    run_job: Run, job_type: type[ToyJob], code: str, args: dict[str, Any]
) -> None:
    # The jobs: one scores training rows as validation data, one leaves out its last batch (100
    # rows), one takes the mean of the means of batches of 300 and of 100 rows, one divides the sum
    # of these means by their number, 4, and one reports half of its rows. There is no target, as a
    # run that missed it would fail for this.
    kind, found_code, details = read_cause(run_job(job_type, target_value="none", max_epochs=1))
    assert (kind, found_code) == ("wrong_evaluation", code)
    # The validation data has 1,000 rows, scored in four batches of up to 300. ``args`` are those
    # arguments of the message that are known exactly: ``number`` is that of the evaluation,
    # ``known`` counts the training rows whose keys were noted, ``weight`` is the job's divisor.
    assert {name: details[name] for name in args} == args


def test_correct_evaluation_without_the_helper_passes(run_job: Run) -> None:
    # This job counts right answers itself, batch by batch, instead of calling the helper that other
    # jobs evaluate with. The validation data has 1,000 rows.
    record = run_job(ByHand)
    assert (record.status, list_doubts(record)) == ("passed", [])
    (point, *_) = record.quality.history
    assert point.scored == {
        "rows": 1000,
        "digest": point.scored["digest"],
        "mean": point.value,
        "of": "",  # the mean is the quality itself, not one of its details
    }
    # Each evaluation scored the same rows.
    assert {evaluation.scored["digest"] for evaluation in record.quality.history} == {
        point.scored["digest"]
    }


@pytest.mark.parametrize(
    # ``lowers_trust``: whether the finding also lowers the grade of trust.
    ("job_type", "code", "args", "lowers_trust"),
    [
        # Scores the same 250 rows four times.
        (ScoresOneBatch, "evaluation_rows_repeated", {"rows": 1000, "distinct": 250}, True),
        # One evaluation after each of two epochs.
        (ScoresOtherRows, "evaluation_rows_change", {"evaluations": 2}, True),
        (SaysNothing, "evaluation_unchecked", {}, False),  # does not report its rows
    ],
)
def test_doubtful_evaluation_is_a_finding(
    run_job: Run, job_type: type[ToyJob], code: str, args: dict[str, Any], lowers_trust: bool
) -> None:
    record = run_job(job_type, target_value="none")
    assert record.status == "passed"
    assert [(finding.code, finding.args) for finding in list_doubts(record)] == [(code, args)]
    assert (code in [reason.code for reason in record.trust.reasons]) is lowers_trust


class ChangesPrecision(ToyJob):
    """Lets matmuls run in a lower precision than the recipe's."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        torch.set_float32_matmul_precision("medium")
        return super().batches(epoch)


def test_a_precision_that_the_job_changed_fails_the_run(run_job: Run) -> None:
    # ``changes`` names each setting that changed, with its value before and after.
    # Before each epoch the job calls ``torch.set_float32_matmul_precision("medium")``, which lets
    # matmuls compute in bf16. For the recipe's fp32 it must be "highest".
    kind, code, args = read_cause(run_job(ChangesPrecision))
    assert (kind, code) == ("changed_precision", "changed_precision")
    assert "float32_matmul: highest -> medium" in args["changes"]


class StepsInLowPrecision(ToyJob):
    """Computes a step in bf16 although the recipe says fp32, and restores the flags."""

    def _compute_loss_sum(self, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super()._compute_loss_sum(batch)


class StepsInFloat32(ToyJob):
    """Computes a step in float32 although the recipe says bf16."""

    def _compute_loss_sum(self, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return super()._compute_loss_sum(batch)


class LowersMatmulPrecision(ToyJob):
    """Lowers the precision of matmuls for its forward pass alone."""

    def _compute_loss_sum(self, batch: Batch) -> torch.Tensor:
        """Return the sum of the losses of a batch, computed in the lower precision."""
        # A check before or after the step finds the precision that the recipe asks for.
        torch.set_float32_matmul_precision("medium")
        try:
            return super()._compute_loss_sum(batch)
        finally:
            torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("job_type", "precision", "change"),
    [
        (StepsInLowPrecision, "fp32", "matmuls: float32 -> bfloat16"),
        (StepsInFloat32, "bf16", "matmuls: bfloat16 -> float32"),
        (LowersMatmulPrecision, "fp32", "float32_matmul: highest -> medium"),
    ],
)
def test_a_precision_that_is_changed_within_a_step_alone_fails_the_run(
    run_job: Run, job_type: type[ToyJob], precision: str, change: str
) -> None:
    # Within each step one job computes in bf16, one in float32, and one lets matmuls of float32 use
    # bf16 ("medium"), against the recipe's ``precision``. Each restores the settings afterwards.
    kind, _, args = read_cause(run_job(job_type, precision=precision))
    assert kind == "changed_precision"
    # Not seen before and after a step, but in a step that is watched.
    assert args["changes"].startswith(f"{change} (in a step)")


class ClaimsFlops(ToyJob):
    """Counts a fused multiply-add as four FLOPs."""

    def model_flops(self, counts: Counts) -> float:
        return 2 * super().model_flops(counts)


def test_flops_that_a_step_does_not_compute_are_a_finding(run_job: Run) -> None:
    (finding,) = list_doubts(run_job(ClaimsFlops))
    assert finding.code == "flops_above_counted"
    # It claims four FLOPs for a multiply-add, which are two. ``share`` is what it claims, divided
    # by what was counted in a step.
    assert finding.args["share"] == pytest.approx(2.0, rel=0.05)


class SameRows(ToyJob):
    """Trains the first rows of the data again and again."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        batches = list(super().batches(epoch))
        yield from (replace(batch, tensors=batches[0].tensors) for batch in batches)


def test_rows_that_are_read_again_within_an_epoch_are_a_finding(run_job: Run) -> None:
    # "do_not_quote" is a grade of trust for results that must not be quoted.
    # The job trains on the first rows again and again; the target is reached with few rows too.
    record = run_job(SameRows, target_value=0.1)
    assert "rows_repeated" in [finding.code for finding in record.findings]
    assert record.trust.grade == "do_not_quote"
