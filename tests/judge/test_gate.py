"""Verdicts of the gate, each by its rule, with its exit code."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from comparison_records import golden, launch
from trainmark.errors import RecordError, UsageError
from trainmark.judge.comparison.gate import (
    Judgement,
    against_baseline,
    against_history,
    exit_code,
    tolerance,
)
from trainmark.record.record import Cause, FigureEntry
from trainmark.record.trust import graded
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record

OOM = {"status": "oom", "cause": Cause(kind="oom", message=message("exception", text="x"))}


def launches(
    name: str, rates: Sequence[float], figure: str = "p_train", **changes: Any
) -> list[Record]:
    return [launch(f"{name}-r{n}", n, n, figures={figure: rate}, **changes)
            for n, rate in enumerate(rates, 1)]  # fmt: skip


def expecting(rates: Sequence[float], figure: str = "p_train") -> list[Record]:
    """Return baseline launches; of one launch the tolerances are 3% and 10%."""
    return launches("base", rates, figure)


@pytest.mark.parametrize(
    ("rates", "worse", "better"),
    [
        ([100.0], 0.03, 0.1),  # one launch: nothing is known of its scatter
        ([100.0, 100.4, 99.6], 0.03, 0.1),  # CV 0.4%, 6 of them
        ([100.0, 102.0, 98.0], 0.12, 0.24),  # CV 2%
        ([50.0, 100.0, 200.0], 1.0, 1.0),
    ],
)
def test_tolerances_follow_the_scatter_of_launches(
    rates: list[float], worse: float, better: float
) -> None:
    args = one([100.0], expecting(rates)).message.args
    assert (args["worse_by"], args["better_by"]) == (worse, better)
    assert one([100.0], expecting(rates)).verdict == ("noisy" if worse > 0.1 else "passed")
    assert one([100.0], expecting(rates), worse_by=0.07).message.args["worse_by"] == 0.07


@pytest.mark.parametrize(("count", "most"), [(3, 0.015), (5, 0.01), (10, 0.005)])
def test_a_later_launch_is_rarely_beyond_the_tolerance(count: int, most: float) -> None:
    """With normal noise of 2%, where the least tolerance does not help."""
    rng = np.random.default_rng(7)
    launched = 1 + 0.02 * rng.standard_normal((20_000, count))
    cvs = launched.std(axis=1, ddof=1) / launched.mean(axis=1)
    allowed = np.array([tolerance(float(cv), count) for cv in cvs])
    later = (1 + 0.02 * rng.standard_normal(20_000)) / np.exp(np.log(launched).mean(axis=1))
    assert np.mean(later < 1 - allowed) <= most


def test_runs_that_failed_or_are_refuted_are_no_baseline() -> None:
    lying = graded([message("evidence_altered", file="events.rank0.jsonl")])
    for bad in (launch("bad", **OOM), launch("bad", trust=lying)):
        with pytest.raises(RecordError) as caught:
            list(against_baseline([golden()], [golden(), bad], []))
        assert caught.value.where == "bad"
    with pytest.raises(UsageError):
        list(against_baseline([golden()], [], []))


def test_run_is_not_its_own_baseline() -> None:
    runs = launches("a", [100.0, 101.0])
    with pytest.raises(UsageError) as caught:
        list(against_baseline(runs, runs, ["p_train"]))
    assert caught.value.where == "a-r1"
    others = launches("base", [200.0])
    (found,) = against_baseline(runs, [*runs, *others], ["p_train"])
    assert (found.verdict, found.message.args["expected"]) == ("regressed", 200.0)


@pytest.mark.parametrize("judge", [against_baseline, against_history])
def test_a_figure_that_is_not_known_is_refused_with_the_nearest(judge: Any) -> None:
    with pytest.raises(UsageError, match="did you mean p_train"):
        list(judge([golden()], [golden()], ["p_trian"]))


# ---- Verdicts


def verdicts(found: Sequence[Judgement]) -> list[tuple[str, str, int]]:
    return [(one.figure, one.verdict, one.exit_code) for one in found]


def one(
    rates: Sequence[float], baseline: Sequence[Record], figure: str = "p_train", *,
    worse_by: float | None = None, **changes: Any,
) -> Judgement:  # fmt: skip
    given = launches("run", rates, figure, **changes)
    *_, found = against_baseline(given, baseline, [figure], worse_by=worse_by)
    return found


@pytest.mark.parametrize(
    ("rates", "verdict", "code"),
    [
        ([97.1], "passed", "gate_passed"),
        ([96.9], "regressed", "gate_regressed"),
        ([110.1], "improved", "gate_improved"),
        ([96.0, 95.0, 96.5], "regressed", "gate_regressed"),  # the range is beyond
        ([99.0, 96.0, 100.0], "noisy", "gate_noisy"),  # though the mean is within
        ([105.0, 115.0], "passed", "gate_passed"),  # not all of them better by so much
    ],
)
def test_few_launches_are_judged_by_their_range(
    rates: list[float], verdict: str, code: str
) -> None:
    found = one(rates, expecting([100.0]))
    assert (found.verdict, found.message.code) == (verdict, code)
    assert found.message.args["launches"] == len(rates)


SCATTERED = [1.0, 1.01, 0.99, 1.005, 0.995]


@pytest.mark.parametrize(
    ("factor", "scatter", "verdict"),
    [(1.0, 1, "passed"), (0.97, 1, "noisy"), (1.2, 1, "improved"), (1.0, 8, "noisy"),
     (0.8, 8, "regressed")],
)  # fmt: skip
def test_enough_launches_are_judged_by_the_interval(
    factor: float, scatter: float, verdict: str
) -> None:
    rates = [100 * factor * (1 + scatter * (value - 1)) for value in SCATTERED]
    found = one(rates, expecting([100 * value for value in SCATTERED]), worse_by=0.03)
    assert found.verdict == verdict
    low, change, high = (float(found.message.args[name] or 0) for name in ("low", "change", "high"))
    assert low < change < high
    assert found.message.args["launches"] == 5


def test_of_times_lower_is_better() -> None:
    baseline = expecting([100.0], "e2e_time")
    assert one([104.0], baseline, "e2e_time").verdict == "regressed"
    assert one([89.0], baseline, "e2e_time").verdict == "improved"
    assert one([104.0], baseline, "e2e_time").message.args["change"] == pytest.approx(-0.04)


def test_quality_is_judged_by_its_direction() -> None:
    lower = golden().plan.about.model_copy(update={"higher_is_better": False})
    plan = golden().plan.model_copy(update={"about": lower})
    worse = golden().quality.model_copy(update={"value": 0.8})
    for of, verdict in ((golden().plan, "regressed"), (plan, "improved")):
        (found,) = against_baseline(
            [launch("x", quality=worse).model_copy(update={"plan": of})], [golden()], ["quality"]
        )
        assert (found.figure, found.verdict) == ("quality", verdict)


def test_a_figure_that_is_gone_fails() -> None:
    gone = launch("x").model_copy(
        update={
            "figures": {**golden().figures, "p_train": FigureEntry(value=None, unit="samples/s")}
        }
    )
    asked = list(against_baseline([gone], expecting([100.0]), ["p_train"]))
    assert verdicts(asked) == [("p_train", "missing", 1)]
    unasked = against_baseline([golden()], [gone], [])
    assert "p_train" not in [one.figure for one in unasked]


def test_other_work_names_the_key_and_both_values() -> None:
    other = launches("run", [100.0], recipe={"micro_batch_size": 8})
    (found,) = against_baseline(other, expecting([100.0]), [])
    assert (found.verdict, found.exit_code) == ("other_work", 2)
    assert found.message.args | {"entry": ""} == {
        "key": "micro_batch_size", "known": "96", "found": "8", "others": 0, "entry": ""
    }  # fmt: skip


def test_runs_that_failed_or_are_refuted_fail_and_the_others_are_judged() -> None:
    lying = launch("lying", trust=graded([message("evidence_altered", file="plan.json")]))
    failed, good = launch("failed", **OOM), launch("good", figures={"p_train": 100.0})
    found = list(against_baseline([failed, lying, good], expecting([100.0]), ["p_train"]))
    assert [(one.verdict, one.message.code) for one in found] == [
        ("failed", "gate_status"), ("failed", "gate_refuted"), ("passed", "gate_passed"),
    ]  # fmt: skip
    assert [one.message.args["run"] for one in found[:2]] == ["failed", "lying"]
    alone = list(against_baseline([failed], expecting([100.0]), []))
    assert verdicts(alone) == [("status", "failed", 1)]


@pytest.mark.parametrize("reason", ["machine_busy", "device_shared"])
def test_a_machine_in_use_is_no_regression(reason: str) -> None:
    used = graded([message(reason, share=0.3)])
    found = one([80.0], expecting([100.0]), trust=used)
    assert (found.verdict, found.message.code) == ("noisy", "gate_disturbed")
    assert one([100.0], expecting([100.0]), trust=used).verdict == "passed"


def test_the_worst_exit_code_counts() -> None:
    def judged(verdict: Any) -> Judgement:
        return Judgement("w", "f", verdict, message("gate_missing", figure="f", unit=""))

    passed, noisy, other, bad = map(judged, ("passed", "noisy", "other_work", "regressed"))
    assert exit_code([passed]) == 0
    assert exit_code([passed, noisy]) == 3
    assert exit_code([noisy, other]) == 2
    assert exit_code([noisy, bad, other]) == 1
    assert exit_code([]) == 3


# ---- History


FIRST = datetime(2026, 1, 5, tzinfo=timezone.utc)


def nights(
    rates: Sequence[float], *, repeat: int = 1, first: int = 0, **changes: Any
) -> list[Record]:
    """Return a run each night, of ``repeat`` launches with the same rate."""
    return [
        launch(f"night{night}-r{n}", n, figures={"p_train": rate},
               started=(FIRST + timedelta(days=night, minutes=n)).isoformat(), **changes)
        for night, rate in enumerate(rates, first) for n in range(1, repeat + 1)
    ]  # fmt: skip


def tonight(rates: Sequence[float], *, repeat: int = 1) -> Judgement:
    """Judge the last night by those before it."""
    records = nights(rates, repeat=repeat)
    (found,) = against_history(records[-repeat:], records[:-repeat], ["p_train"])
    return found


NOISE = list(100 * (1 + 0.005 * np.random.default_rng(5).standard_normal(80)))


def test_a_night_as_those_before_passes() -> None:
    found = tonight(NOISE[:40])
    assert (found.verdict, found.message.code) == ("passed", "gate_usual_passed")
    assert found.message.args["expected"] == pytest.approx(100.0, rel=0.005)


def test_one_slow_night_alone_is_a_doubt_and_five_launches_are_none() -> None:
    slow = [*NOISE[:40], 90.0]
    found = tonight(slow)
    assert (found.verdict, found.message.code, found.exit_code) == ("noisy", "gate_usual_noisy", 3)
    assert tonight(slow, repeat=5).verdict == "regressed"
    assert tonight([*NOISE[:40], 90.0, NOISE[41]]).verdict == "passed"


def test_a_step_fails_for_a_while_and_is_then_what_is_expected() -> None:
    stepped = [*NOISE[:40], *(0.95 * rate for rate in NOISE[40:])]
    found = [tonight(stepped[: 40 + n]) for n in range(1, 21)]
    codes = [one.message.code for one in found]
    assert codes[:2] == ["gate_usual_noisy"] * 2
    assert codes[3:12] == ["gate_step"] * 9
    assert codes[-4:] == ["gate_usual_passed"] * 4
    step = found[5].message.args
    assert step["since"] == "night40"
    assert step["change"] == pytest.approx(-0.05, abs=0.01)
    assert found[5].verdict == "regressed"


def test_a_slow_drift_fails() -> None:
    drifting = [*NOISE[:40], *(rate * (1 - 0.001 * n) for n, rate in enumerate(NOISE[40:70]))]
    found = tonight(drifting)
    assert (found.verdict, found.message.code) == ("regressed", "gate_drift")
    assert found.message.args["change"] == pytest.approx(-0.03, abs=0.01)
    assert tonight([*NOISE[:40], *(r * (1 + 0.001 * n) for n, r in enumerate(NOISE[40:70]))]
                   ).verdict == "passed"  # fmt: skip


def test_too_short_a_history_is_told_once_and_is_no_noise() -> None:
    records = nights(NOISE[:10])
    (found,) = against_history(records[-1:], records[:-1], [])
    assert (found.verdict, found.message.code, found.exit_code) == (
        "no_history", "gate_no_history", 3,
    )  # fmt: skip
    assert found.message.args == {"runs": 9, "least": 10}
    assert tonight(NOISE[:11]).verdict == "passed"
    (found,) = against_history(nights([100.0], first=9), nights(NOISE[:3], repeat=5), ["p_train"])
    assert found.message.args["runs"] == 3  # launches of one run are one value


def test_only_earlier_launches_of_the_same_work_that_passed_count() -> None:
    past = nights(NOISE[:12])
    strange = [
        *nights([50.0] * 12, recipe={"micro_batch_size": 8}),
        *nights([50.0] * 12, **OOM),
        *nights([50.0] * 12, first=20),
        *nights([50.0] * 12, trust=graded([message("evidence_altered", file="x")])),
    ]
    (found,) = against_history(nights([100.0], first=13), [*strange, *past], ["p_train"])
    assert (found.verdict, found.message.args["expected"]) == (
        "passed", pytest.approx(100.0, rel=0.01)
    )  # fmt: skip


def test_the_figures_that_are_known_are_judged_and_one_that_is_gone_fails() -> None:
    past = nights(NOISE[:12])
    found = list(against_history(nights([100.0], first=13), past, []))
    assert [one.figure for one in found] == ["final_result", "p_train", "e2e_time", "mem"]
    lost = FigureEntry(value=None, unit="samples/s")
    run = [one.model_copy(update={"figures": {**one.figures, "p_train": lost}})
           for one in nights([100.0], first=13)]  # fmt: skip
    assert verdicts(list(against_history(run, past, ["p_train"]))) == [("p_train", "missing", 1)]
    failed = list(against_history(nights([100.0], first=13, **OOM), past, []))
    assert verdicts(failed) == [("status", "failed", 1)]
