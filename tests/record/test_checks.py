"""Rules over ranks and findings, on runs written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import (
    GOLDEN,
    launch_event,
    make_event,
    make_parameters_event,
    make_window,
    measure,
    write_run,
)
from trainmark.events.timeline import read_run
from trainmark.plan.plan import Plan
from trainmark.record import findings
from trainmark.record.broken_rules import find_broken_rule
from trainmark.record.figures import FIGURES, compute_figures
from trainmark.record.messages import render
from trainmark.record.record import FigureEntry
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.events.timeline import RunTimeline
    from trainmark.spec import Message

S = 1_000_000_000


@pytest.fixture
def plan() -> Plan:
    """Return the toy's plan: 4096 rows, micro-batches of 64."""
    return Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())


def make_rank_events(
    samples: list[int],
    *,
    of_all: list[int],
    changed: list[str],
    unchanged: Sequence[str] = (),
    updates: int | None = None,
    evaluations: Sequence[dict[str, Any]] = (),
    **window_fields: Any,
) -> list[dict[str, Any]]:
    """Return the events of a rank that takes one step a second, all measured, with falling losses.

    The rank has a device named "Fake", for which 1,000 FLOP/s were measured before training.

    Args:
        samples: of each step on this rank.
        of_all: what the rank reports as the samples of each step on all ranks.
        changed: names of the parameters that changed.
        unchanged: names of those that did not.
        updates: number of the optimizer's updates; None: one in each step.
        evaluations: events that follow the window.
        window_fields: other fields of the event of the window.
    """
    if updates is None:
        updates = len(samples)
    end = len(samples) * S
    return [
        make_event(
            "facts",
            0,
            device={"name": "Fake"},
            matmul_flops_per_second=1e3,
            samples_per_epoch=None,
        ),
        make_window(
            0,
            end,
            step_ns=[S] * len(samples),
            samples=samples,
            step_samples=of_all,
            loss=[1.0 / (step + 1) for step in range(len(samples))],
            **window_fields,
        ),
        *evaluations,
        make_event(
            "trained", end, start_ns=0, end_ns=end, steps=len(samples), epochs=1, whole_epochs=0
        ),
        make_parameters_event(end, changed=changed, unchanged=unchanged, updates=updates),
    ]


def read_timeline(tmp_path: Path, *ranks: list[dict[str, Any]]) -> RunTimeline:
    """Write a run with these events of its ranks, and return what is read of it."""
    return read_run(write_run(tmp_path / "run", [launch_event()], *ranks), len(ranks))


def compute_run_figures(timeline: RunTimeline) -> dict[str, FigureEntry]:
    """Return the figures as the record has them; all steps are measured."""
    return {
        name: FigureEntry(
            value=item.value, unit=FIGURES[name].unit, reason=item.reason, note=item.note
        )
        for name, item in compute_figures(measure(timeline, warmup_steps=0)).items()
    }


def find_cause(plan: Plan, timeline: RunTimeline) -> tuple[str, dict[str, Any]] | None:
    """Return code and arguments of the first rule that a run breaks; None: it breaks none."""
    broken_rule = find_broken_rule(plan, timeline, compute_run_figures(timeline))
    return None if broken_rule is None else (broken_rule.message.code, broken_rule.message.args)


def test_ranks_that_share_a_step_unevenly_agree(plan: Plan, tmp_path: Path) -> None:
    # For each rank: the samples of its two steps, and (``of_all``) what it reports as those of both
    # ranks together. ``changed`` names the parameters that were trained.
    # The last step has 19 samples, 10 of one rank and 9 of the other.
    run_timeline = read_timeline(
        tmp_path,
        make_rank_events([64, 10], of_all=[128, 19], changed=["a"]),
        make_rank_events([64, 9], of_all=[128, 19], changed=["a"]),
    )
    assert find_cause(plan, run_timeline) is None


@pytest.mark.parametrize(
    # Of each rank: the samples of its steps, and what it reports as those of all ranks. The recipe
    # allows micro-batches of 64, so 128 samples in a step of two ranks.
    ("samples", "of_all", "expected"),
    [
        ([[64, 10], [64, 10]], [[128, 19]] * 2,
         ("samples_of_step", {"step": 2, "samples": 20, "step_samples": 19})),
        ([[64, 10], [64, 9]], [[128, 19], [128, 20]],
         ("step_samples_differ_over_ranks", {"step": 2})),
        ([[64, 10], [64]], [[128, 10], [128]],
         ("steps_differ_over_ranks", {"least": 1, "most": 2})),
        ([[100, 64], [64, 64]], [[164, 128]] * 2,
         ("samples_above_global_batch", {"step": 1, "samples": 164, "most": 128})),
    ],
)  # fmt: skip
def test_contradicting_ranks_fail_the_run(
    plan: Plan,
    tmp_path: Path,
    samples: list[list[int]],
    of_all: list[list[int]],
    expected: tuple[str, dict[str, int]],
) -> None:
    ranks = [
        make_rank_events(samples_of_rank, of_all=samples_of_step, changed=["a"])
        for samples_of_rank, samples_of_step in zip(samples, of_all, strict=True)
    ]
    assert find_cause(plan, read_timeline(tmp_path, *ranks)) == expected


def test_more_tokens_than_sequences_can_hold_fail_the_run(plan: Plan, tmp_path: Path) -> None:
    # One rank takes one step of 64 samples, which are all there are (``of_all``), and changes the
    # parameter "a". ``counts`` are those of its window.
    recipe = {**plan.recipe, "seq_length": 8}
    plan_with_length = plan.model_copy(update={"recipe": recipe})
    # 64 sequences of 8 tokens hold at most 512 tokens, padding included.
    counts = {"sequences": 64, "tokens": 300, "tokens_padded": 513}
    run_timeline = read_timeline(
        tmp_path, make_rank_events([64], of_all=[64], changed=["a"], **counts)
    )
    assert find_cause(plan_with_length, run_timeline) == (
        "tokens_above_length",
        {"tokens": 513, "sequences": 64, "length": 8},
    )
    assert find_cause(plan, run_timeline) is None  # a recipe without ``seq_length``


def test_parameter_changed_by_one_rank_counts_as_trained(plan: Plan, tmp_path: Path) -> None:
    # Each rank takes three steps of 32 samples, 64 on both ranks (``of_all``).
    # Each rank has some rows of the parameter "table", such as embeddings; no sample used those of
    # the second rank. Another parameter, "a", is trained on both.
    run_timeline = read_timeline(
        tmp_path,
        make_rank_events([32] * 3, of_all=[64] * 3, changed=["a", "table"]),
        make_rank_events([32] * 3, of_all=[64] * 3, changed=["a"], unchanged=["table"]),
    )
    assert find_cause(plan, run_timeline) is None


@pytest.mark.parametrize(
    ("updates", "code"), [(0, "never_updated"), (1, None), (2, "parameters_never_changed")]
)
def test_parameter_changed_by_no_rank_is_named(
    plan: Plan, tmp_path: Path, updates: int, code: str | None
) -> None:
    # Two ranks with three steps of 32 samples, 64 on both (``of_all``). Of six parameters, "a"
    # changed and the five of ``names`` did not. ``updates`` is how many updates the optimizer
    # counted.
    names = [f"layer{number}" for number in range(5)]
    ranks = [
        make_rank_events([32] * 3, of_all=[64] * 3, changed=["a"], unchanged=names, updates=updates)
        for _ in range(2)
    ]
    # A single update may leave a parameter as it was; of the names, three are printed.
    cause = find_cause(plan, read_timeline(tmp_path, *ranks))
    assert (None if cause is None else cause[0]) == code
    if code == "parameters_never_changed":
        assert cause is not None
        assert cause[1] == {
            "names": "layer0, layer1, layer2",
            "number": 5,
            "parameters": 6,
            "updates": 2,
        }


def list_doubts(timeline: RunTimeline, device: str = "cuda") -> list[Message]:
    """Return the findings of a run, but for the one that all of these short runs have.

    Args:
        device: torch's type of the devices on which the run was.
    """
    run_findings = findings.find_findings(
        measure(timeline, device=device), compute_run_figures(timeline), timeline
    )
    return [finding for finding in run_findings if finding.code != "steadiness_unknown"]


def test_rows_missing_from_an_evaluation_are_a_finding(tmp_path: Path) -> None:
    # One rank with two steps of 10 samples (``of_all``: there is no other rank), which change the
    # parameter "a", and with an evaluation that scored 100 rows (``samples``).
    evaluation = make_event(
        "evaluate",
        0,
        epoch=0,
        step=2,
        start_ns=0,
        end_ns=S,
        value=0.9,
        samples=100,
        detail={},
        target_reached=True,
    )
    events = make_rank_events([10, 10], of_all=[10, 10], changed=["a"], evaluations=[evaluation])
    assert list_doubts(read_timeline(tmp_path, events)) == [
        message("evaluated_rows", scored=100, rows=1000)  # of the toy case's validation data
    ]


@pytest.mark.parametrize(("flops", "doubted"), [(2_000.0, False), (2_002.0, True)])
def test_more_flops_than_preflight_measured_are_doubted(
    tmp_path: Path, flops: float, doubted: bool
) -> None:
    # Of the fake rank: two steps with 10 samples each that take a second each, a parameter "a" that
    # changes, and a matmul rate of 1e3 FLOP/s that was measured before training. So at most 2,000
    # FLOPs are possible. 2,002 FLOPs in 2 s are 1,001 FLOP/s, or 1.001e-9 TFLOP/s.
    events = make_rank_events([10, 10], of_all=[10, 10], changed=["a"], model_flops=flops)
    findings = list_doubts(read_timeline(tmp_path, events))
    assert [finding.code for finding in findings] == (["flops_above_preflight"] if doubted else [])
    if doubted:
        assert findings[0].args == {
            "tflops": pytest.approx(1.001e-9),
            "matmul_tflops": pytest.approx(1e-9),
            "share": pytest.approx(1.001),
        }


@pytest.mark.parametrize(
    ("step_ns", "differs"),
    [(S, False), (900_000_000, False), (899_000_000, True), (1_101_000_000, True)],
)
def test_steps_whose_times_differ_from_their_window_by_more_than_a_tenth_are_noted(
    tmp_path: Path, step_ns: int, differs: bool
) -> None:
    # The host's clock times a window of two steps as 2 s; the device's clock times each step.
    events = make_rank_events([10, 10], of_all=[10, 10], changed=["a"])
    (window,) = [event for event in events if event["event"] == "window"]
    window["step_ns"] = [step_ns, step_ns]
    noted = message("steps_beside_windows", rank=0, steps_s=2 * step_ns / S, windows_s=2.0)
    assert (noted in list_doubts(read_timeline(tmp_path, events))) is differs


def test_a_graph_compiled_after_the_warm_up_is_noted(tmp_path: Path) -> None:
    # One measured step of 8 samples on the only rank, which changes the parameter "a", and in which
    # ``torch.compile`` made 3 graphs.
    events = make_rank_events([8], of_all=[8], changed=["a"], graphs_compiled=3)
    assert message("compiled_while_measured", graphs=3) in list_doubts(
        read_timeline(tmp_path, events)
    )


def make_ranks_with_rates(*rates: float | None, last_device: str = "X1") -> list[Any]:
    """Return the events of a rank for each matmul rate in FLOP/s, None if it was not measured.

    Args:
        last_device: name of the last rank's device; those of the others are called ``X1``.
    """
    ranks = []
    for number, rate in enumerate(rates):
        facts, *other_events = make_rank_events([8], of_all=[8 * len(rates)], changed=["a"])
        name = last_device if number == len(rates) - 1 else "X1"
        changed = {"device": {"name": name}, "matmul_flops_per_second": rate}
        ranks.append([facts | changed, *other_events])
    return ranks


@pytest.mark.parametrize(
    ("ranks", "slow"),
    [
        (make_ranks_with_rates(100e12), []),
        (make_ranks_with_rates(100e12, 95e12), []),
        (make_ranks_with_rates(94e12, 100e12), [(0, 94.0, 100.0)]),
        (make_ranks_with_rates(100e12, 80e12, 98e12, 96e12), [(1, 80.0, 98.0)]),
        (make_ranks_with_rates(100e12, 50e12, 60e12), [(1, 50.0, 60.0)]),
        (make_ranks_with_rates(100e12, 50e12, last_device="X2"), []),
        (make_ranks_with_rates(100e12, None), []),
    ],
)
def test_a_device_slower_than_its_siblings_is_doubted(
    tmp_path: Path, ranks: list[Any], slow: list[tuple[int, float, float]]
) -> None:
    # ``slow``: rank, its TFLOP/s, and the median of all ranks with the same device, of which it is
    # more than 5% short. Of an even number of ranks, the higher of the two middle values counts.
    doubts = list_doubts(read_timeline(tmp_path, *ranks))
    messages = [doubt for doubt in doubts if doubt.code == "slow_device"]
    assert all("less than the median of all ranks" in render(x, "en") for x in messages)
    findings = [doubt.args for doubt in messages]
    assert [(args["rank"], args["tflops"], args["others_tflops"]) for args in findings] == slow
    assert [args["share"] for args in findings] == [1 - rate / median for _, rate, median in slow]
    assert all(args["device"] == "X1" for args in findings)
    # Ranks on the CPU are not compared, as they share its cores.
    findings_on_cpu = list_doubts(read_timeline(tmp_path, *ranks), device="cpu")
    assert "slow_device" not in [finding.code for finding in findings_on_cpu]


def test_parameters_that_differ_between_ranks_fail_the_run(plan: Plan, tmp_path: Path) -> None:
    # Two ranks take one step with 8 samples each, 16 together, which changes two parameters.
    ranks = [make_rank_events([8], of_all=[16], changed=["a", "b"]) for _ in range(2)]
    for number, events in enumerate(ranks):
        (parameters,) = [entry for entry in events if entry["event"] == "parameters"]
        parameters["sums"] = {"a": 5, "b": 7 + number}  # checksums: b differs
    finding = find_cause(plan, read_timeline(tmp_path, *ranks))
    args = {"names": "b", "number": 1, "parameters": 2, "rank": 1}
    assert finding == ("parameters_differ", args)


def make_evaluation(value: float, samples: int = 1000, **scores: Any) -> dict[str, Any]:
    """Return an evaluation of a rank that scored half of the validation rows.

    Args:
        value: the quality that the rank reports, which should be the mean of the scores, 0.8.
        samples: number of validation rows of all ranks.
        scores: other values of fields of ``Scored``.
    """
    usual_scores = {
        "rows": 500,
        "keys": 500,  # rows that have a key; equal rows have equal keys
        "digest": 7,  # sum of the keys
        "distinct": 500,  # different keys
        "known": 64,  # training rows that the rank had noted
        "trained": 0,  # those of them that it scored
        "total": 400.0,  # over the weight: a mean of 0.8
        "weight": 500.0,
    }
    return make_event(
        "evaluate",
        S,
        epoch=0,
        step=1,
        start_ns=S,
        end_ns=S,
        value=value,
        samples=samples,
        detail={},
        target_reached=False,
        scores=usual_scores | scores,
    )


def make_two_ranks(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> RunTimeline:
    """Return a run of two ranks, each of which takes a step of 64 samples that changes "a".

    Args:
        first, second: the evaluation of rank 0 and that of rank 1.
    """
    ranks = (
        make_rank_events([64], of_all=[128], changed=["a"], evaluations=[entry])
        for entry in (first, second)
    )
    return read_timeline(tmp_path, *ranks)


def test_ranks_that_scored_the_validation_data_together_agree(plan: Plan, tmp_path: Path) -> None:
    # By default, ``make_evaluation`` has 500 rows with a mean score of 0.8. So two ranks scored all
    # of the 1,000 validation rows, and both report their mean, 0.8, as the quality.
    assert (
        find_cause(plan, make_two_ranks(tmp_path, make_evaluation(0.8), make_evaluation(0.8)))
        is None
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            make_evaluation(0.8),
            make_evaluation(0.7),
            (
                "evaluation_differs_over_ranks",
                {"rank": 1, "first_rank": 0}
                | {"value": 0.7, "first": 0.8, "samples": 1000, "samples_first": 1000},
            ),
        ),
        (
            make_evaluation(0.8),
            make_evaluation(0.8, samples=500),
            (
                "evaluation_differs_over_ranks",
                {"rank": 1, "first_rank": 0}
                | {"value": 0.8, "first": 0.8, "samples": 500, "samples_first": 1000},
            ),
        ),
        (
            make_evaluation(0.8),
            make_evaluation(0.8, rows=499),
            ("evaluation_rows", {"number": 1, "rows": 999, "expected": 1000}),
        ),
        (
            make_evaluation(0.79),
            make_evaluation(0.79),
            ("evaluation_not_the_mean", {"number": 1, "name": "acc", "value": 0.79, "mean": 0.8}),
        ),
        (
            make_evaluation(0.8, total=1.6, weight=2.0),
            make_evaluation(0.8, total=1.6, weight=2.0),
            ("evaluation_weights", {"number": 1, "weight": 4.0, "rows": 1000}),
        ),
        (
            make_evaluation(0.8, trained=4),
            make_evaluation(0.8, trained=4),
            ("evaluation_of_training_rows", {"number": 1, "rows": 8, "known": 128}),
        ),
    ],
)
def test_wrong_evaluation_over_ranks_is_named(
    plan: Plan,
    tmp_path: Path,
    first: dict[str, Any],
    second: dict[str, Any],
    expected: tuple[str, Any],
) -> None:
    # Evaluations of two ranks, each by default of 500 rows with a total score of 400 (a mean of
    # 0.8): ranks that report different values, or different numbers of rows; 500 + 499 rows; a
    # value that is not the mean; a weight of 2 + 2 where each of 1,000 rows should count; and
    # training rows. ``number``: of the evaluation, from 1. In the last case, 4 + 4 of the scored
    # rows are training rows: of 128 that the ranks know, 64 each.
    assert find_cause(plan, make_two_ranks(tmp_path, first, second)) == expected


def test_few_rows_that_are_in_both_splits_are_no_training_rows(plan: Plan, tmp_path: Path) -> None:
    some = make_evaluation(0.8, trained=3)
    assert find_cause(plan, make_two_ranks(tmp_path, some, some)) is None
