"""Verdicts of the gate, each by its rule, with its exit code."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.comparison_records import make_launch, read_golden_record, replace_plan_fields
from trainmark.errors import RecordError, UsageError
from trainmark.judge.comparison.baseline_gate import compute_tolerance, judge_against_baseline
from trainmark.judge.comparison.gate import Judgement, combine_exit_codes
from trainmark.judge.comparison.history_gate import judge_against_history
from trainmark.record.messages import render
from trainmark.record.record import Cause, FigureEntry
from trainmark.record.trust import grade_reasons
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record

OOM = {"status": "oom", "cause": Cause(kind="oom", message=message("exception", text="x"))}


def make_launches(
    name: str, rates: Sequence[float], figure: str = "p_train", **changes: Any
) -> list[Record]:
    """Return launches of one run, one for each value of ``figure``, one a minute.

    Args:
        name: beginning of their ids: NAME-r1, NAME-r2 …
        rates: the values of the figure.
        figure: its name.
        changes: of each launch, as ``make_launch`` takes them.
    """
    return [
        make_launch(
            f"{name}-r{number}",
            round_=number,
            minute=number,
            figures={figure: rate},
            **changes,
        )
        for number, rate in enumerate(rates, 1)
    ]


def make_baseline(rates: Sequence[float], figure: str = "p_train") -> list[Record]:
    """Return baseline launches with these values of ``figure``.

    With one launch, a figure is regressed if it is 3% worse, and improved if it is 10% better.
    """
    return make_launches("base", rates, figure)


@pytest.mark.parametrize(
    ("rates", "worse", "better"),
    [
        ([100.0], 0.03, 0.1),  # one launch: nothing is known of its scatter
        ([100.0, 100.4, 99.6], 0.03, 0.1),  # CV 0.4%: six times it is below the minimum of 3%
        ([100.0, 102.0, 98.0], 0.12, 0.24),  # CV 2%: six times it, and twice that for better
        ([50.0, 100.0, 200.0], 1.0, 1.0),  # at most 100%
    ],
)
def test_tolerance_follows_scatter_of_launches(
    rates: list[float], worse: float, better: float
) -> None:
    # A launch with the rate 100 is judged; ``rates`` are those of the baseline's launches.
    judgement = judge_rates([100.0], make_baseline(rates))
    args = judgement.message.args
    assert (args["worse_by"], args["better_by"]) == (worse, better)
    # If the tolerance is wider than 10%, the launches are never better than noisy.
    assert (judgement.verdict, judgement.message.code) == (
        ("noisy", "gate_noisy_baseline") if worse > 0.1 else ("passed", "gate_passed")
    )
    # A tolerance that the user gives replaces the computed one.
    given_tolerance = judge_rates([100.0], make_baseline(rates), worse_by=0.07)
    assert given_tolerance.message.args["worse_by"] == 0.07


@pytest.mark.parametrize(("count", "max_share"), [(3, 0.015), (5, 0.01), (10, 0.005)])
def test_later_launch_rarely_exceeds_tolerance(count: int, max_share: float) -> None:
    """With normal noise of 2%, for which the minimum tolerance does not matter.

    ``count`` launches are the baseline; ``max_share`` of 20,000 later launches may be beyond it.
    With several seeds 1.1%, 0.6% and 0.35% were; by a baseline without error it would be 0.13%, as
    the tolerance is at least three standard deviations.
    """
    rng = np.random.default_rng(7)
    launched = 1 + 0.02 * rng.standard_normal((20_000, count))
    cvs = launched.std(axis=1, ddof=1) / launched.mean(axis=1)
    tolerances = np.array([compute_tolerance(float(cv), count) for cv in cvs])
    # Relative to the geometric mean of the baseline.
    later = (1 + 0.02 * rng.standard_normal(20_000)) / np.exp(np.log(launched).mean(axis=1))
    assert np.mean(later < 1 - tolerances) <= max_share


def test_failed_or_refuted_run_is_rejected_as_baseline() -> None:
    """``OOM``: fields of the record of a run that ended out of memory. Refuted: altered files."""
    refuted = grade_reasons([message("evidence_altered", file="events.rank0.jsonl")])
    for bad in (make_launch("bad", **OOM), make_launch("bad", trust=refuted)):
        with pytest.raises(RecordError) as caught:
            list(judge_against_baseline([read_golden_record()], [read_golden_record(), bad], []))
        assert caught.value.where == "bad"
    with pytest.raises(UsageError):  # there is no baseline
        list(judge_against_baseline([read_golden_record()], [], []))


def test_run_is_not_its_own_baseline() -> None:
    """A run of two launches is judged against launches among which are its own.

    ``make_launches`` returns a launch, a-r1, a-r2 …, for each of these values of ``p_train``.
    """
    runs = make_launches("a", [100.0, 101.0])
    with pytest.raises(UsageError) as caught:
        list(judge_against_baseline(runs, runs, ["p_train"]))
    assert caught.value.where == "a-r1"
    # If the baseline has other launches too, those of the run itself do not count in it.
    others = make_launches("base", [200.0])
    (judgement,) = judge_against_baseline(runs, [*runs, *others], ["p_train"])
    assert (judgement.verdict, judgement.message.args["expected"]) == ("regressed", 200.0)


@pytest.mark.parametrize("judge", [judge_against_baseline, judge_against_history])
def test_unknown_figure_is_rejected_with_closest_name(judge: Any) -> None:
    """``judge``: judges launches by a baseline or by earlier nights; both take names of figures."""
    with pytest.raises(UsageError, match="did you mean p_train"):
        list(judge([read_golden_record()], [read_golden_record()], ["p_trian"]))


# ---- Verdicts


def read_verdicts(judgements: Sequence[Judgement]) -> list[tuple[str, str, int]]:
    """Return figure, verdict and exit code of each judgement."""
    return [(judgement.figure, judgement.verdict, judgement.exit_code) for judgement in judgements]


def judge_rates(
    rates: Sequence[float],
    baseline: Sequence[Record],
    figure: str = "p_train",
    *,
    worse_by: float | None = None,
    **changes: Any,
) -> Judgement:
    """Judge launches with these values of ``figure``; return the judgement of all of them.

    Args:
        rates: the values, one for each launch that is judged.
        baseline: the launches that they are compared with.
        figure: the name of the figure.
        worse_by: the tolerance; None: as the scatter of the baseline says.
        changes: of each launch that is judged, as ``make_launch`` takes them.
    """
    launches = make_launches("run", rates, figure, **changes)
    *_, judgement = judge_against_baseline(launches, baseline, [figure], worse_by=worse_by)
    return judgement


@pytest.mark.parametrize(
    ("rates", "verdict", "code"),
    [
        ([97.1], "passed", "gate_passed"),
        ([96.9], "regressed", "gate_regressed"),
        ([110.1], "improved", "gate_improved"),
        ([96.0, 95.0, 96.5], "regressed", "gate_regressed"),  # the range is beyond
        ([99.0, 96.0, 100.0], "noisy", "gate_noisy"),  # though the mean is within
        ([105.0, 115.0], "passed", "gate_passed"),  # only one of the two is more than 10% better
    ],
)
def test_few_launches_are_judged_by_their_range(
    rates: list[float], verdict: str, code: str
) -> None:
    # With a single launch in the baseline, 3% worse is regressed and 10% better is improved.
    judgement = judge_rates(rates, make_baseline([100.0]))
    assert (judgement.verdict, judgement.message.code) == (verdict, code)
    assert judgement.message.args["launches"] == len(rates)


VALUES_NEAR_1 = [1.0, 1.01, 0.99, 1.005, 0.995]


@pytest.mark.parametrize(
    ("factor", "scatter", "verdict"),
    [
        (1.0, 1, "passed"),
        (0.97, 1, "noisy"),
        (1.2, 1, "improved"),
        (1.0, 8, "noisy"),
        (0.8, 8, "regressed"),
    ],
)
def test_five_launches_are_judged_by_interval(factor: float, scatter: float, verdict: str) -> None:
    """``VALUES_NEAR_1``: five values from 0.99 to 1.01, of mean 1.

    An interval that only partly lies beyond the limit, 3% worse, is ``noisy``.
    """
    # ``scatter`` is how many times as far the rates are from their mean as those of the baseline.
    rates = [100 * factor * (1 + scatter * (value - 1)) for value in VALUES_NEAR_1]
    judgement = judge_rates(
        rates, make_baseline([100 * value for value in VALUES_NEAR_1]), worse_by=0.03
    )
    assert judgement.verdict == verdict
    low, change, high = (
        float(judgement.message.args[name] or 0) for name in ("low", "change", "high")
    )
    assert low < change < high
    assert judgement.message.args["launches"] == 5


def test_lower_time_is_better() -> None:
    # With a baseline of one launch, 3% worse is regressed and 10% better is improved.
    baseline = make_baseline([100.0], "e2e_time")
    assert judge_rates([104.0], baseline, "e2e_time").verdict == "regressed"
    assert judge_rates([89.0], baseline, "e2e_time").verdict == "improved"
    # A longer time is a change for the worse, so negative.
    assert judge_rates([104.0], baseline, "e2e_time").message.args["change"] == pytest.approx(-0.04)


def test_quality_is_judged_by_its_direction() -> None:
    """``about`` has what a plan says of its case: here that a lower quality is a better one."""
    lower_is_better = read_golden_record().plan.about.model_copy(update={"higher_is_better": False})
    plan_with_lower_better = read_golden_record().plan.model_copy(update={"about": lower_is_better})
    # 12% below the golden record's 0.911697; 3% worse is regressed, and 10% better is improved.
    lower_quality = read_golden_record().quality.model_copy(update={"value": 0.8})
    for plan, verdict in (
        (read_golden_record().plan, "regressed"),
        (plan_with_lower_better, "improved"),
    ):
        (judgement,) = judge_against_baseline(
            [make_launch("x", quality=lower_quality).model_copy(update={"plan": plan})],
            [read_golden_record()],
            ["quality"],
        )
        assert (judgement.figure, judgement.verdict) == ("quality", verdict)


def test_missing_figure_fails() -> None:
    """``gone`` is a launch whose figure ``p_train`` has no value; that of the baseline is 100.

    ``read_verdicts`` returns figure, verdict and exit code of each judgement.
    """
    gone = make_launch("x").model_copy(
        update={
            "figures": {
                **read_golden_record().figures,
                "p_train": FigureEntry(value=None, unit="samples/s"),
            }
        }
    )
    judgements = list(judge_against_baseline([gone], make_baseline([100.0]), ["p_train"]))
    assert read_verdicts(judgements) == [("p_train", "missing", 1)]
    # A figure that the baseline does not have is judged only if it is asked for.
    unasked = judge_against_baseline([read_golden_record()], [gone], [])
    assert "p_train" not in [judgement.figure for judgement in unasked]


def test_other_work_names_the_key_and_both_values() -> None:
    """The baseline has the golden record's batch, 96 samples of a rank, and its epochs."""
    other = make_launches("run", [100.0], recipe={"micro_batch_size": 8})
    (judgement,) = judge_against_baseline(other, make_baseline([100.0]), [])
    assert (judgement.verdict, judgement.exit_code) == ("other_work", 2)
    # ``entry`` describes the nearest work of the baseline in words.
    assert judgement.message.code == "gate_other_work_in_one_key"
    assert judgement.message.args | {"entry": ""} == {
        "key": "micro_batch_size",
        "known": "96",
        "found": "8",
        "others": 0,
        "entry": "",
    }
    other = make_launches("run", [100.0], recipe={"micro_batch_size": 8, "max_epochs": 99})
    (judgement,) = judge_against_baseline(other, make_baseline([100.0]), [])
    # Of two keys that differ one is named; ``others`` counts the rest.
    assert (judgement.message.code, judgement.message.args["others"]) == ("gate_other_work", 1)


def test_field_that_the_baseline_lacks_is_same_work_if_it_is_none() -> None:
    """A case of the user's own got the field ``clip`` after the baseline was measured.

    None is the value that stands for the behaviour before the field existed.
    """
    run = make_launches("run", [100.0], recipe={"clip": None})
    (judgement,) = judge_against_baseline(run, make_baseline([100.0]), ["p_train"])
    assert judgement.verdict == "passed"
    run = make_launches("run", [100.0], recipe={"clip": 1.0})
    (judgement,) = judge_against_baseline(run, make_baseline([100.0]), ["p_train"])
    assert (judgement.verdict, judgement.message.args["key"]) == ("other_work", "clip")


def test_noisy_baseline_is_the_reason_if_launches_exceed_its_tolerance_too() -> None:
    """More launches to judge would not help against a baseline with a tolerance of 12%.

    The tolerance is six times the variation of the baseline's three launches, 2%.
    """
    judgement = judge_rates([80.0, 120.0], make_baseline([100.0, 102.0, 98.0]))
    assert (judgement.verdict, judgement.message.code) == ("noisy", "gate_noisy_baseline")
    assert judgement.message.args["baseline_launches"] == 3


def test_run_with_forced_expert_balance_is_other_work_than_training() -> None:
    """The label ``balanced-bound`` marks runs whose router gave all experts equal loads."""
    bounds = [
        replace_plan_fields(launch, labels=[*launch.plan.labels, "balanced-bound"])
        for launch in make_launches("run", [100.0])
    ]
    (judgement,) = judge_against_baseline(bounds, make_baseline([100.0]), [])
    assert (judgement.verdict, judgement.exit_code) == ("other_work", 2)
    assert judgement.message.args["key"] == "bound"


def test_failed_or_refuted_runs_fail_and_others_are_judged() -> None:
    """``OOM``: fields of the record of a run that ended out of memory. Refuted: altered files.

    ``read_verdicts`` returns figure, verdict and exit code of each judgement.
    """
    refuted = make_launch(
        "refuted", trust=grade_reasons([message("evidence_altered", file="plan.json")])
    )
    failed, good = make_launch("failed", **OOM), make_launch("good", figures={"p_train": 100.0})
    judgements = list(
        judge_against_baseline([failed, refuted, good], make_baseline([100.0]), ["p_train"])
    )
    assert [(judgement.verdict, judgement.message.code) for judgement in judgements] == [
        ("failed", "gate_status"),
        ("failed", "gate_refuted"),
        ("passed", "gate_passed"),
    ]
    assert [judgement.message.args["run"] for judgement in judgements[:2]] == ["failed", "refuted"]
    # The status of a run that failed is its only judgement.
    judgements_alone = list(judge_against_baseline([failed], make_baseline([100.0]), []))
    assert read_verdicts(judgements_alone) == [("status", "failed", 1)]


@pytest.mark.parametrize("reason", ["machine_busy", "device_shared"])
def test_regression_on_busy_machine_is_noisy(reason: str) -> None:
    """``reason``: why the machine was not the run's alone; 80 is far below the baseline of 100.

    ``share``, any number, is only a part of the reason's text.
    """
    disturbed_trust = grade_reasons([message(reason, share=0.3)])
    judgement = judge_rates([80.0], make_baseline([100.0]), trust=disturbed_trust)
    assert (judgement.verdict, judgement.message.code) == ("noisy", "gate_disturbed")
    assert judge_rates([100.0], make_baseline([100.0]), trust=disturbed_trust).verdict == "passed"


def test_worst_exit_code_counts() -> None:
    """The exit codes: 0 for ``passed``, 1 for ``regressed``, 2 for other work, 3 for ``noisy``."""

    def make_judgement(verdict: Any) -> Judgement:
        """Return a judgement with this verdict; its run, figure and message do not matter."""
        return Judgement("w", "f", verdict, message("gate_missing", figure="f", unit=""))

    passed, noisy, other, bad = map(make_judgement, ("passed", "noisy", "other_work", "regressed"))
    assert combine_exit_codes([passed]) == 0
    assert combine_exit_codes([passed, noisy]) == 3
    assert combine_exit_codes([noisy, other]) == 2
    assert combine_exit_codes([noisy, bad, other]) == 1  # in the order 1, 2, 3, 0
    assert combine_exit_codes([]) == 3  # nothing was judged


# ---- History


FIRST = datetime(2026, 1, 5, tzinfo=timezone.utc)


def make_nights(
    rates: Sequence[float], *, repeat: int = 1, first: int = 0, **changes: Any
) -> list[Record]:
    """Return the launches of one run each night, with the rate of the night.

    Args:
        rates: the value of ``p_train`` for each night.
        repeat: number of launches of each run.
        first: number of the first night.
        changes: of each launch, as ``make_launch`` takes them.
    """
    return [
        make_launch(
            f"night{night}-r{number}",
            number,
            figures={"p_train": rate},
            started=(FIRST + timedelta(days=night, minutes=number)).isoformat(),
            **changes,
        )
        for night, rate in enumerate(rates, first)
        for number in range(1, repeat + 1)
    ]


def judge_last_night(rates: Sequence[float], *, repeat: int = 1) -> Judgement:
    """Judge the last night by those before it; return the judgement of its ``p_train``.

    Args:
        rates: the value of each night.
        repeat: number of launches of a night.
    """
    records = make_nights(rates, repeat=repeat)
    (judgement,) = judge_against_history(records[-repeat:], records[:-repeat], ["p_train"])
    return judgement


# Of 80 nights without a change: normal noise of 0.5%.
RATES_NEAR_100 = list(100 * (1 + 0.005 * np.random.default_rng(5).standard_normal(80)))


def test_night_within_the_usual_scatter_passes() -> None:
    """The last of 40 nights is judged by the 39 before it.

    ``RATES_NEAR_100``: the rates of the nights, 100 with a noise of 0.5%.
    """
    judgement = judge_last_night(RATES_NEAR_100[:40])
    assert (judgement.verdict, judgement.message.code) == ("passed", "gate_usual_passed")
    assert judgement.message.args["expected"] == pytest.approx(100.0, rel=0.005)


def test_single_slow_launch_is_noisy_and_five_slow_launches_are_a_regression() -> None:
    """``RATES_NEAR_100``: the rate of each night, 100 with a noise of 0.5%; a slow night has 90."""
    slow = [*RATES_NEAR_100[:40], 90.0]
    judgement = judge_last_night(slow)  # of one launch
    assert (judgement.verdict, judgement.message.code, judgement.exit_code) == (
        "noisy",
        "gate_usual_noisy",
        3,
    )
    assert judge_last_night(slow, repeat=5).verdict == "regressed"
    # The night after a slow one is as usual.
    assert judge_last_night([*RATES_NEAR_100[:40], 90.0, RATES_NEAR_100[41]]).verdict == "passed"


def test_step_fails_until_new_level_is_expected() -> None:
    """``RATES_NEAR_100``: the rates of 80 nights, 100 with a noise of 0.5%."""
    # From night 40 on, 5% slower; each of the next 20 nights is judged by those before it.
    stepped = [*RATES_NEAR_100[:40], *(0.95 * rate for rate in RATES_NEAR_100[40:])]
    judgements = [judge_last_night(stepped[: 40 + number]) for number in range(1, 21)]
    codes = [judgement.message.code for judgement in judgements]
    # Two nights are not yet a step; after about 15 the new level is what is expected. Noise
    # decides in which night between the code changes, so that these nights are left out.
    assert codes[:2] == ["gate_usual_noisy"] * 2
    assert codes[3:12] == ["gate_step"] * 9
    assert codes[-4:] == ["gate_usual_passed"] * 4
    # ``judgements[5]`` is of the sixth slow night, within the nights with ``gate_step``.
    step = judgements[5].message.args
    assert step["since"] == "night40"
    assert step["change"] == pytest.approx(-0.05, abs=0.01)
    assert judgements[5].verdict == "regressed"


def test_slow_drift_fails() -> None:
    """``RATES_NEAR_100``: the rates of 80 nights, 100 with a noise of 0.5%."""
    # 0.1% a night slower, for 30 nights.
    drifting = [
        *RATES_NEAR_100[:40],
        *(rate * (1 - 0.001 * number) for number, rate in enumerate(RATES_NEAR_100[40:70])),
    ]
    judgement = judge_last_night(drifting)
    assert (judgement.verdict, judgement.message.code) == ("regressed", "gate_drift")
    assert judgement.message.args["change"] == pytest.approx(-0.03, abs=0.01)
    # 29 nights at 0.1% are nearly 3%; ``rising`` is the same to faster.
    rising = [
        *RATES_NEAR_100[:40],
        *(rate * (1 + 0.001 * number) for number, rate in enumerate(RATES_NEAR_100[40:70])),
    ]
    assert judge_last_night(rising).verdict == "passed"  # a drift to faster


def test_short_history_is_reported_once() -> None:
    """A history has 10 runs at least; a night has one run, of one launch or of several.

    ``RATES_NEAR_100``: the rate of each night, 100 with a noise of 0.5%.
    """
    records = make_nights(RATES_NEAR_100[:10])
    (judgement,) = judge_against_history(records[-1:], records[:-1], [])  # one for all figures
    assert (judgement.verdict, judgement.message.code, judgement.exit_code) == (
        "no_history",
        "gate_no_history",
        3,
    )
    assert judgement.message.args == {"runs": 9, "least": 10}
    assert render(judgement.message, "en") == (
        "too few earlier runs of the same work report the same figure: 9, but at least 10 are "
        "needed"
    )
    assert judge_last_night(RATES_NEAR_100[:11]).verdict == "passed"
    # The last night is ``first=9``, so that it is none of the three of the history. ``[]`` above
    # stands for all figures.
    (judgement,) = judge_against_history(
        make_nights([100.0], first=9), make_nights(RATES_NEAR_100[:3], repeat=5), ["p_train"]
    )
    assert judgement.message.args["runs"] == 3  # launches of one run are one value


def test_only_earlier_passed_launches_of_same_work_count() -> None:
    """Night 13 is judged by the nights 0 to 11, whose rates are near 100.

    ``RATES_NEAR_100``: their rates, 100 with a noise of 0.5%. ``OOM``: fields of a failed record.
    """
    past = make_nights(RATES_NEAR_100[:12])
    # Launches at another rate which must not count: of other work, failed, later, altered.
    strange = [
        *make_nights([50.0] * 12, recipe={"micro_batch_size": 8}),
        *make_nights([50.0] * 12, **OOM),
        *make_nights([50.0] * 12, first=20),
        *make_nights([50.0] * 12, trust=grade_reasons([message("evidence_altered", file="x")])),
    ]
    (judgement,) = judge_against_history(
        make_nights([100.0], first=13), [*strange, *past], ["p_train"]
    )
    assert (judgement.verdict, judgement.message.args["expected"]) == (
        "passed",
        pytest.approx(100.0, rel=0.01),
    )


def test_known_figures_are_judged_and_missing_one_fails() -> None:
    """Night 13 is judged by the nights 0 to 11, with rates near 100 from ``RATES_NEAR_100``.

    ``OOM``: fields of the record of a run that failed.
    """
    past = make_nights(RATES_NEAR_100[:12])
    # Without a named figure: these four, which docs/compare.md lists, if they have a value.
    judgements = list(judge_against_history(make_nights([100.0], first=13), past, []))
    assert [judgement.figure for judgement in judgements] == [
        "final_result",
        "p_train",
        "e2e_time",
        "mem",
    ]
    # A named figure without a value fails, and so does a run that failed. ``read_verdicts`` returns
    # the figure, the verdict and the exit code of each judgement; 1 means failed.
    lost = FigureEntry(value=None, unit="samples/s")
    run = [
        record.model_copy(update={"figures": {**record.figures, "p_train": lost}})
        for record in make_nights([100.0], first=13)
    ]
    assert read_verdicts(list(judge_against_history(run, past, ["p_train"]))) == [
        ("p_train", "missing", 1)
    ]
    failed = list(judge_against_history(make_nights([100.0], first=13, **OOM), past, []))
    assert read_verdicts(failed) == [("status", "failed", 1)]
