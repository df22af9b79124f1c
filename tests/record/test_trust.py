"""The trust grade of a record and of several launches: thresholds and order of the reasons."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from support.comparison_records import read_golden_record
from support.fakes import GOLDEN, S, launch_event, make_event, rank_events, write_events, write_run
from trainmark.record import reduce
from trainmark.record.findings import FINDING_KINDS
from trainmark.record.measurement import Measurement
from trainmark.record.record import FigureEntry, Record
from trainmark.record.trust import grade_launch, grade_reasons, grade_repeats
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Trust
    from trainmark.spec import Message

# The grade to which each finding lowers the trust, by the finding's code. Records contain both, and
# other programs read them, so neither may change unnoticed.
GRADES_OF_FINDINGS = {
    "loss_never_changes": "do_not_quote",
    "flops_above_preflight": "do_not_quote",
    "evaluated_rows": "do_not_quote",
    "evaluation_rows_change": "do_not_quote",
    "steps_beside_windows": "do_not_quote",
    "quality_above_best": "do_not_quote",
    "device_shared": "do_not_quote",
    "replay_differs": "do_not_quote",
    "device_errors": "do_not_quote",
    "few_updates": "do_not_quote",
    "rows_repeated": "do_not_quote",
    "flops_above_counted": "do_not_quote",
    "evaluation_rows_repeated": "do_not_quote",
    "witness_batch": "do_not_quote",
    "witness_tokens": "do_not_quote",
    "witness_precision": "do_not_quote",
    "witness_no_gradients": "do_not_quote",
    "witness_pauses": "do_not_quote",
    "witness_gradients": "do_not_quote",
    "witness_changed_outside": "do_not_quote",
    "witness_loss_not_finite": "do_not_quote",
    "parameters_unchanged_in_window": "do_not_quote",
    "gradients_zero": "do_not_quote",
    "parameters_changed_after_training": "do_not_quote",
    "slow_device": "noisy",
    "slow_rank": "noisy",
    "slow_data": "noisy",
    "throttled_while_measured": "noisy",
    "steadiness_unknown": "noisy",
    "not_steady": "noisy",
    "machine_busy": "noisy",
    "read_before_measured": "noisy",
    "compiled_while_measured": "noisy",
    "kernel_messages": "noisy",
    "nodes_differ": "usable",
    "resumed": "usable",
    "replay_not_deterministic": "usable",
    "no_window_replayed": "usable",
    "device_errors_corrected": "usable",
    "own_epoch": "usable",
    "evaluation_unchecked": "usable",
    "witness_batches_unseen": "usable",
    "printed_agrees": "usable",
    "printed_because_accumulation": "usable",
    "printed_because_all_ranks": "usable",
    "printed_because_fastest": "usable",
    "printed_because_formula": "usable",
    "printed_because_micro_batches": "usable",
    "printed_because_one_rank": "usable",
    "printed_because_padding": "usable",
    "printed_because_peak": "usable",
    "printed_because_twice": "usable",
    "printed_because_waiting": "usable",
    "printed_because_warmup": "usable",
    "printed_because_whole": "usable",
    "printed_differs": "usable",
    "printed_nothing": "usable",
    "printed_unknown": "usable",
    "printed_unmeasured": "usable",
}


def grade_single_launch(
    *,
    labels: Sequence[str] = (),
    swing: float | None = 0.1,
    passed: bool = True,
    cv: float = 10.0,
    findings: Sequence[Message] = (),
) -> tuple[str, list[str]]:
    """Return grade and codes of a single launch, which by default is sound.

    Args:
        labels: of the run's plan.
        swing: relative change of the matmul rate while it was measured; None: not measured. The
            default is the largest that is sound.
        passed: whether the run passed or failed.
        cv: coefficient of variation of the step times, in percent; the default as for ``swing``.
        findings: doubts that checks of the run found.
    """
    measurement = Measurement.from_record(read_golden_record())
    plan = measurement.plan.model_copy(update={"labels": list(labels)})
    rank = measurement.ranks[0].model_copy(update={"matmul_swing": swing})
    trust = grade_launch(
        dataclasses.replace(measurement, plan=plan, ranks=[rank]),
        status="passed" if passed else "failed",
        figures={"step_time_cv": FigureEntry(value=cv, unit="%")},
        findings=list(findings),
    )
    return read_grade(trust)


def read_grade(trust: Trust) -> tuple[str, list[str]]:
    """Return the grade and the codes of its reasons without that of too few launches.

    Every launch that is alone has that reason, as its last one.
    """
    codes = [reason.code for reason in trust.reasons]
    if codes and codes[-1] == "trust_few_launches":
        codes.pop()
    return trust.grade, codes


@pytest.mark.parametrize(
    ("changes", "grade", "codes"),
    [
        # A single launch is noisy at best. The limits of ``cv`` and ``swing`` are 10% and 0.1.
        ({}, "noisy", []),
        ({"cv": 10.1}, "noisy", ["trust_cv"]),
        ({"swing": 0.11}, "noisy", ["trust_swing"]),
        ({"swing": None}, "noisy", []),
        ({"labels": ["simulated-device"]}, "do_not_quote", ["trust_simulated_device"]),
        ({"labels": ["generated-data"]}, "do_not_quote", ["trust_generated_data"]),
        ({"passed": False}, "do_not_quote", ["trust_not_passed"]),
        ({"labels": ["oversubscribed"]}, "do_not_quote", ["oversubscribed"]),
        ({"cv": 50.0, "labels": ["generated-data"]}, "do_not_quote",
         ["trust_generated_data", "trust_cv"]),
    ],
)  # fmt: skip
def test_each_reason_gives_its_grade(changes: dict[str, Any], grade: str, codes: list[str]) -> None:
    assert grade_single_launch(**changes) == (grade, codes)


def test_each_listed_finding_gives_its_grade() -> None:
    # A single launch without findings is noisy too, but then without a code: the codes show what a
    # finding does.
    assert GRADES_OF_FINDINGS.keys() == FINDING_KINDS.keys()
    for code, grade in GRADES_OF_FINDINGS.items():
        # Given twice, a finding is one reason.
        graded = grade_single_launch(findings=[message(code)] * 2)
        assert graded == (("noisy", []) if grade == "usable" else (grade, [code]))


def test_a_built_record_carries_its_trust(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    # A quarter of the CPU's time went to other processes. The label ``self-reported`` lowers no
    # grade; it replaces that of generated data, which would.
    ranks_ended = make_event("ranks_ended", 13 * S, failures=[], others_cpu_share=0.25)
    write_run(run_dir, [launch_event(), ranks_ended], rank_events())
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    (run_dir / "plan.json").write_text(json.dumps(plan | {"labels": ["self-reported"]}))
    assert read_grade(reduce.reduce(run_dir).trust) == ("noisy", ["machine_busy"])
    # Other processes on the device: one that only draws the screen gives no finding, one that
    # computes does.
    computing = {
        "device": "X",
        "process": "python (process 7)",
        "used_bytes": None,
        "computes": True,
    }
    drawing = computing | {"computes": False}
    for users, codes in (([drawing], []), ([drawing, computing], ["device_shared"])):
        launched = launch_event(environment={"cpu": "Fake CPU", "device_users": users})
        write_events(run_dir / "events.launcher.jsonl", [launched, ranks_ended])
        built = reduce.reduce(run_dir)
        assert [
            finding.code for finding in built.findings if finding.code.startswith("device")
        ] == codes
        assert built.environment["device_users"] == users
    assert built.trust.grade == "do_not_quote"  # as a process computed on its device


def make_launches(count: int, **changes: Any) -> list[Record]:
    """Return golden records of so many launches of one run; ``changes`` are fields of all."""
    return [read_golden_record(run_id=f"r{number}", **changes) for number in range(count)]


def test_five_launches_that_agree_are_usable() -> None:
    # ``make_launches`` returns records that differ in their id alone; ``[]``: no reason against
    # them.
    assert read_grade(grade_repeats(make_launches(5))) == ("usable", [])
    trust_of_four = grade_repeats(make_launches(4))
    assert (trust_of_four.grade, trust_of_four.reasons) == (
        "noisy",
        [message("trust_few_launches", launches=4, least=5)],
    )


def test_launches_that_differ_by_more_than_a_tenth_are_noisy() -> None:
    # The golden record is a stored one of a launch that is sound; only its training throughput,
    # ``p_train``, is changed. ``trust_launch_cv``: launches vary by more than 10%.
    figure = read_golden_record().figures["p_train"]
    rates = [100.0, 120.0, 100.0, 120.0, 100.0]  # a coefficient of variation of 10.1%
    records = [
        read_golden_record(
            figures=read_golden_record().figures
            | {"p_train": figure.model_copy(update={"value": rate})}
        )
        for rate in rates
    ]
    assert read_grade(grade_repeats(records)) == ("noisy", ["trust_launch_cv"])


def test_only_passed_launches_count_and_each_reason_appears_once() -> None:
    # Each of five launches that passed has the same reason: its steps became 20% slower.
    # ``grade_reasons`` returns the trust that has these reasons, with the grade that they give.
    failed = read_golden_record(
        run_id="x", status="failed", trust=grade_reasons([message("trust_not_passed")])
    )
    drifted = grade_reasons([message("not_steady", drift=0.2)])
    trust = grade_repeats([*make_launches(5, trust=drifted), failed])
    assert read_grade(trust) == ("noisy", ["not_steady"])
    # Unless none passed.
    assert read_grade(grade_repeats([failed])) == ("do_not_quote", ["trust_not_passed"])


def test_reason_of_several_launches_has_the_worst_value() -> None:
    # Five launches with two reasons each: the drift of their steps, and their variation ``cv``,
    # whose highest value, 0.54, is that of the drift -0.4.
    launches = [
        read_golden_record(
            run_id=f"r{drift}",
            trust=grade_reasons(
                [message("not_steady", drift=drift), message("trust_cv", cv=0.5 - drift / 10)]
            ),
        )
        for drift in (0.2, -0.4, 3.1, 0.3, 0.1)
    ]
    assert grade_repeats(launches).reasons == [
        message("not_steady", drift=3.1),
        message("trust_cv", cv=0.54),
    ]
    # Of steps that became 20% slower and 40% faster, the larger change is the worse one.
    assert grade_repeats(launches[:2]).reasons[0] == message("not_steady", drift=-0.4)


def test_reason_without_its_argument_is_the_least_bad() -> None:
    # The record of one of two launches was edited: its reason lacks ``cv``.
    launches = [
        read_golden_record(run_id=f"r{number}", trust=grade_reasons([reason]))
        for number, reason in enumerate((message("trust_cv"), message("trust_cv", cv=0.2)))
    ]
    assert grade_repeats(launches).reasons[0] == message("trust_cv", cv=0.2)
