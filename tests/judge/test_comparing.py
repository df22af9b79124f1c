"""Comparisons of launches: verdicts, exit codes, refusals, and what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.comparison_records import (
    make_alternating_launches,
    make_launch,
    make_series,
    read_golden_record,
    replace_plan_fields,
)
from trainmark.errors import UsageError
from trainmark.judge.comparison import compare
from trainmark.record.messages import render
from trainmark.record.record import Cause, Trust
from trainmark.record.trust import grade_reasons
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.record.record import Record

RATES_NEAR_100 = [100.0, 101.0, 99.0, 100.5, 99.5]


def multiply(rates: list[float], factor: float) -> list[float]:
    """Return throughputs that are ``factor`` times as high."""
    return [rate * factor for rate in rates]


@pytest.mark.parametrize(
    ("factor", "verdict", "code"),
    [
        # Factor of side B, verdict and exit code; a difference below 3% does not count.
        (1.10, "faster", 0),
        (0.90, "slower", 1),
        (1.00, "no_difference", 0),
        (0.975, "too_noisy", 3),
        (1.031, "too_noisy", 3),
    ],
)
def test_verdict_needs_the_whole_interval_on_one_side(
    factor: float, verdict: str, code: int
) -> None:
    """``RATES_NEAR_100``: five throughputs from 99 to 101; those of B are ``factor`` times these.

    The noise of such launches puts an interval around the ratio B / A. Near the threshold of 3% it
    has ratios on both sides of it, and so is too noisy for a verdict.
    """
    comparison = compare(
        make_series("a", RATES_NEAR_100),
        make_series("b", multiply(RATES_NEAR_100, factor), first_minute=10),
    )
    assert (comparison.verdict, comparison.exit_code, comparison.paired) == (verdict, code, False)
    assert {figure.verdict for figure in comparison.figures} == {verdict}
    assert [figure.name for figure in comparison.figures] == ["p_core", "p_train", "p_whole"]
    for figure in comparison.figures:
        assert figure.ratio == pytest.approx(factor)
        assert (figure.low or 0) < factor < (figure.high or 0)
        for lang in ("en", "zh"):
            assert f"{factor:.3f}" in render(figure.sentence, lang)
            assert f"{figure.low:.3f}" in render(figure.sentence, lang)


def test_longer_time_is_slower_and_more_memory_is_worse() -> None:
    # ``make_launch`` returns a record with these figures: of A 50 s from end to end and 1 GB of
    # memory, of B 60 s and 2 GB. All others are those of a golden record.
    # All launches of B run after those of A.
    a = [
        make_launch(
            f"a{number}", round_=number, minute=number, figures={"e2e_time": 50.0, "mem": 1e9}
        )
        for number in range(1, 6)
    ]
    b = [
        make_launch(
            f"b{number}", round_=number, minute=9 + number, figures={"e2e_time": 60.0, "mem": 2e9}
        )
        for number in range(1, 6)
    ]
    comparison = compare(a, b, figures=["e2e_time", "mem", "mem_total"])
    verdicts = [figure.verdict for figure in comparison.figures]
    assert verdicts == ["slower", "worse", "no_direction"]  # a total is neither good nor bad
    assert [(figure.a, figure.b) for figure in comparison.figures[:2]] == [
        (pytest.approx(50.0), pytest.approx(60.0)),
        (pytest.approx(1e9), pytest.approx(2e9)),
    ]
    assert [figure.verdict for figure in compare(b, a, figures=["e2e_time", "mem"]).figures] == [
        "faster",
        "better",
    ]


def test_fewer_than_five_launches_have_too_little_data() -> None:
    """``RATES_NEAR_100`` has five throughputs; A has the first four, B half of each of the five."""
    comparison = compare(
        make_series("a", RATES_NEAR_100[:4]),
        make_series("b", multiply(RATES_NEAR_100, factor=0.5), first_minute=10),
    )
    (figure, *_) = comparison.figures
    assert (figure.verdict, figure.launches) == ("too_little_data", (4, 5))
    # There is a ratio, but no interval, which takes five launches of each side.
    assert (figure.ratio, figure.low, figure.high) == (pytest.approx(0.5, rel=1e-2), None, None)
    assert (comparison.exit_code, comparison.sentence.code) == (3, "compare_no_interval")


def test_alternating_launches_are_paired() -> None:
    """The machine drifts by 20% on both sides: only pairs show the difference of 5%.

    ``drift`` has the throughputs of A's five launches. A launch of A and the launch of B beside it
    are a pair; ``make_alternating_launches`` starts them in turns.
    """
    drift = [100.0, 105.0, 110.0, 115.0, 120.0]
    comparison = compare(*make_alternating_launches(drift, multiply(drift, factor=0.95)))
    assert (comparison.paired, comparison.verdict) == (True, "slower")
    # The same rates, but all launches of A before those of B.
    one_by_one = compare(
        make_series("a", drift), make_series("b", multiply(drift, factor=0.95), first_minute=10)
    )
    assert (one_by_one.paired, one_by_one.verdict) == (False, "too_noisy")


def test_incomplete_round_is_excluded() -> None:
    """Launches of A and B alternate; launch n of A and launch n of B are a round."""
    # B's sixth launch fails, so A's sixth has no partner. Its rate of 50 would make A slower.
    a, b = make_alternating_launches([100.0, 101.0, 99.0, 100.5, 99.5, 50.0], [100.0] * 6)
    b[5] = b[5].model_copy(
        update={"status": "oom", "cause": Cause(kind="oom", message=message("x"))}
    )
    comparison = compare(a, b)
    assert comparison.paired
    assert comparison.a.names == ("a1", "a2", "a3", "a4", "a5")
    assert [(excluded.name, excluded.reason.code) for excluded in comparison.a.left_out] == [
        ("a6", "compare_alone_in_round")
    ]
    assert [
        (excluded.name, excluded.reason.code, excluded.reason.args)
        for excluded in comparison.b.left_out
    ] == [("b6", "compare_not_passed", {"status": "oom"})]
    assert comparison.figures[0].launches == (5, 5)


def test_refuted_launches_are_excluded_and_doubtful_ones_keep_their_trust() -> None:
    # ``RATES_NEAR_100``: throughputs of five launches, the same on both sides.
    # Doubtful: not to be quoted, but true. Refuted: its files were altered.
    doubtful = Trust(grade="do_not_quote", reasons=[message("trust_generated_data")])
    refuted = grade_reasons([message("evidence_altered", file="plan.json")])
    b = make_series("b", RATES_NEAR_100, first_minute=10, trust=doubtful)
    # If it counted, B would be far slower.
    b.append(make_launch("b6", round_=6, minute=15, trust=refuted, figures={"p_core": 1.0}))
    comparison = compare(make_series("a", RATES_NEAR_100), b)
    assert [(excluded.name, excluded.reason.code) for excluded in comparison.b.left_out] == [
        ("b6", "compare_refuted")
    ]
    assert comparison.b.trust.grade == "do_not_quote"
    assert [reason.code for reason in comparison.b.trust.reasons] == ["trust_generated_data"]
    assert comparison.verdict == "no_difference"
    # Without a launch that counts, nothing of its machine is compared.
    assert compare(make_series("a", RATES_NEAR_100), b[-1:]).differences == ()


def make_missed_target(record: Any) -> Any:
    """Return the launch ``record`` as one that missed its target; its quality's value stays."""
    quality = record.quality.model_copy(update={"reached": False})
    cause = Cause(kind="target_missed", message=message("x"))
    return record.model_copy(update={"quality": quality, "status": "target_missed", "cause": cause})


def make_early_failure(name: str) -> Record:
    """Return a launch that failed before its ranks reported devices and built the model.

    It is the ninth of its run and started at minute 50: after all others of a test.
    """
    failed = make_launch(
        name,
        round_=9,
        minute=50,
        status="failed",
        cause=Cause(kind="error", message=message("exception", text="x")),
    )
    # As planned on a machine that does not have the devices, and so does not know their names.
    device = failed.plan.device.model_copy(update={"product_names": []})
    plan = failed.plan.model_copy(update={"device": device})
    # What the ranks would have reported.
    unknown = {"job": None, "devices": [None] * plan.world_size}
    return failed.model_copy(update={"plan": plan, "environment": failed.environment | unknown})


@pytest.mark.parametrize("failed_of", ["a", "b", "ab"])
def test_launch_that_failed_before_its_model_was_built_is_excluded(failed_of: str) -> None:
    """Each side has five launches that passed; one is added to the sides in ``failed_of``.

    ``RATES_NEAR_100``: throughputs of five launches; those of B are a tenth lower. ``allowed`` are
    differences of the work that the user allowed; ``left_out`` are launches that do not count.
    """
    sides = {
        "a": make_series("a", RATES_NEAR_100),
        "b": make_series("b", multiply(RATES_NEAR_100, factor=0.9), first_minute=10),
    }
    for name in failed_of:
        sides[name].append(make_early_failure(f"{name}-failed"))
    comparison = compare(sides["a"], sides["b"])
    # Unknown facts of the failed launch are no difference between the sides.
    assert (comparison.verdict, comparison.allowed) == ("slower", ())
    left_out = {
        name: [(excluded.name, excluded.reason.code) for excluded in side.left_out]
        for name, side in (("a", comparison.a), ("b", comparison.b))
    }
    expected = {name: [] for name in "ab"}
    expected |= {name: [(f"{name}-failed", "compare_not_passed")] for name in failed_of}
    assert left_out == expected


def test_side_with_only_failed_launches_has_too_little_data() -> None:
    """Five launches that passed are compared with one that failed before its model was built.

    ``RATES_NEAR_100``: throughputs of the five. ``figure.launches``: how many launches of A and of
    B count.
    """
    comparison = compare(make_series("a", RATES_NEAR_100), [make_early_failure("b1")])
    assert (comparison.verdict, comparison.exit_code) == ("too_little_data", 3)
    assert [figure.launches for figure in comparison.figures] == [(5, 0)]
    # The figure is absent because the launch is excluded, not because it has no value.
    sentence = comparison.sentence
    assert sentence.code == "compare_no_launch"
    assert (sentence.args["excluded_a"], sentence.args["excluded_b"]) == (0, 1)
    reversed_sides = compare([make_early_failure("b1")], make_series("a", RATES_NEAR_100)).sentence
    assert (reversed_sides.args["excluded_a"], reversed_sides.args["excluded_b"]) == (1, 0)


@pytest.mark.parametrize(
    ("of_a", "of_b", "verdict", "code"),
    [
        (0, 0, "no_difference", 0),
        (0, 1, "too_noisy", 3),
        (1, 1, "no_difference", 0),
        (0, 4, "target_missed", 1),
        (5, 5, "no_difference", 0),
    ],
)
def test_target_is_missed_if_most_launches_of_side_b_alone_miss_it(
    of_a: int, of_b: int, verdict: str, code: int
) -> None:
    """``of_a`` and ``of_b`` of ten launches a side miss the target.

    ``RATES_NEAR_100`` has five throughputs; the ten launches of a side have each of them twice.
    If ``of_b`` is 4, each side has only five launches, so that most of B miss it. If all of A reach
    it, a few misses of B are too noisy for a verdict; if A misses it too, they are no difference.
    """
    a, b = (
        make_series("a", RATES_NEAR_100 * 2),
        make_series("b", RATES_NEAR_100 * 2, first_minute=20),
    )
    a[:of_a] = [make_missed_target(launch) for launch in a[:of_a]]
    b[:of_b] = [make_missed_target(launch) for launch in b[:of_b]]
    if of_b == 4:
        a, b = a[:5], b[:5]
    comparison = compare(a, b)
    assert (comparison.verdict, comparison.exit_code) == (verdict, code)
    assert comparison.quality is not None
    # The number of A's launches that reached the target, and of B's that had a target.
    assert (comparison.a.reached, comparison.b.judged) == (len(a) - of_a, len(b))


def test_changed_recipe_field_is_refused_with_both_values_unless_allowed() -> None:
    """``RATES_NEAR_100``: throughputs of five launches, which are the same on both sides.

    Launches are those of a golden record, without ``compile`` and without a limit of the steps.
    """
    a = make_series("a", RATES_NEAR_100)
    b = make_series("b", RATES_NEAR_100, first_minute=10, recipe={"compile": True, "max_steps": 7})
    with pytest.raises(UsageError) as fault:
        compare(a, b)
    assert fault.value.exit_code == 2
    assert fault.value.what == "compile differs: False and True"
    assert fault.value.rule == "only the same work can be compared"
    assert fault.value.fix == "add --allow compile --allow max_steps"
    with pytest.raises(UsageError, match="max_steps differs: none and 7"):
        compare(a, b, allow=["compile"])
    comparison = compare(a, b, allow=["compile", "max_steps"])
    assert [(difference.name, difference.a, difference.b) for difference in comparison.allowed] == [
        ("compile", (False,), (True,)),
        ("max_steps", (None,), (7,)),
    ]
    # The seed is no difference of the work.
    assert compare(a, make_series("b", RATES_NEAR_100, recipe={"seed": 2})).allowed == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"figures": ["p_cor"]}, "no figure named 'p_cor'"),
        ({"allow": ["compyle"]}, "no setting 'compyle'"),
        ({"threshold": 1.0}, "threshold is 1"),
        ({"threshold": float("nan")}, "threshold is nan"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], says: str) -> None:
    """Names with an error of typing, and thresholds that are no share below 1.

    ``RATES_NEAR_100``: throughputs of five launches, the same on both sides.
    """
    with pytest.raises(UsageError, match=says):
        compare(make_series("a", RATES_NEAR_100), make_series("b", RATES_NEAR_100), **arguments)


def test_same_run_twice_and_an_empty_side_are_refused() -> None:
    """``RATES_NEAR_100``: throughputs of five launches."""
    a = make_series("a", RATES_NEAR_100)
    with pytest.raises(UsageError, match="given twice"):
        compare(a, a)
    with pytest.raises(UsageError, match="has no launches"):
        compare(a, [])


def test_only_differences_of_environment_are_listed() -> None:
    """The expected values of side A are those of the golden record; side B changes some of them.

    ``RATES_NEAR_100``: throughputs of five launches, which are the same on both sides.
    """
    base = read_golden_record().environment
    other = base | {
        "driver": "590.1",
        "variables": {},
        "others_cpu_share": 0.5,  # a state of the machine at that time, not a difference
        "packages": base["packages"] | {"torch": "2.11.0"},
    }
    comparison = compare(
        make_series("a", RATES_NEAR_100),
        make_series("b", RATES_NEAR_100, first_minute=9, environment=other),
    )
    assert {
        difference.name: (difference.a, difference.b) for difference in comparison.differences
    } == {
        "driver": (("580.65.06",), ("590.1",)),
        "torch": (("2.13.0+cu130",), ("2.11.0",)),
        "OMP_NUM_THREADS": (("8",), ()),  # not set on side B
    }


def test_trend_of_unpaired_side_is_too_noisy() -> None:
    """The machine slows down by 0.6% per launch: B equals A but seems 3% slower.

    The five launches of B come after the five of A, so five times 0.6%.
    """
    # With a scatter of 0.05%. A has the first five launches and B the next five.
    rates = [100 * 0.994**number * (1 + 0.0005 * (-1) ** number) for number in range(10)]
    comparison = compare(make_series("a", rates[:5]), make_series("b", rates[5:], first_minute=10))
    assert (comparison.verdict, comparison.exit_code) == ("too_noisy", 3)
    assert comparison.sentence.code == "compare_trend"
    assert comparison.sentence.args["change"] == pytest.approx(-0.006, rel=0.1)
    assert "alternate" in render(comparison.sentence, "en")
    # Pairs are not disturbed by the trend.
    paired = compare(*make_alternating_launches(rates[:5], multiply(rates[:5], factor=0.9)))
    assert paired.verdict == "slower"


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_copied_step_times_are_refused(factor: float) -> None:
    """``factor``: a copy remains one if all times are multiplied by the same number.

    The fifth launch of B gets the times of A's first one.
    """
    rng = np.random.default_rng(1)
    # Two sides of five launches with random times of 40 steps, about 0.1 s each.
    a, b = (
        [
            make_launch(
                f"{x}{number}", number, steps_ns=rng.integers(10**8, 10**8 + 10**6, 40).tolist()
            )
            for number in range(1, 6)
        ]
        for x in "ab"
    )
    compare(a, b)  # raises nothing
    b[4] = make_launch("b5", round_=5, steps_ns=[int(factor * time) for time in a[0].steps.time_ns])
    with pytest.raises(UsageError, match="a1 and b5 are the same or proportional"):
        compare(a, b)


@pytest.mark.parametrize("key", ["case", "content_id"])
def test_another_case_or_data_set_is_refused_in_one_sentence(key: str) -> None:
    """``key``: what differs, the case or ``content_id``, the hash of the contents of its data.

    ``RATES_NEAR_100``: throughputs of five launches, the same on both sides. B also has another
    limit of the steps, 7.
    """
    plan = read_golden_record().plan
    fields: dict[str, Any]
    if key == "case":
        fields = {"case": "toy"}
    else:
        fields = {"data": plan.data.model_copy(update={"content_id": "feed"})}
    launches = make_series("b", RATES_NEAR_100, recipe={"max_steps": 7})
    b = [replace_plan_fields(launch, **fields) for launch in launches]
    # Not even if it is allowed; the other difference of the work is not mentioned.
    for allow in ([], [key]):
        with pytest.raises(UsageError, match="never compared") as fault:
            compare(make_series("a", RATES_NEAR_100), b, allow=allow)
        assert fault.value.fix is None  # nothing would help


def test_other_model_is_refused_even_if_its_recipe_is_allowed() -> None:
    """B has another limit of the steps, which is allowed, and another model, which never is.

    ``RATES_NEAR_100``: throughputs of five launches, the same on both sides. A has the number of
    parameters of the golden record, B has 7.
    """
    b = []
    for launch in make_series("b", RATES_NEAR_100, recipe={"max_steps": 7}):
        # Another number of parameters is another model.
        environment = launch.environment | {"job": {"parameters": 7}}
        b.append(launch.model_copy(update={"environment": environment}))
    with pytest.raises(UsageError, match="never compared") as fault:
        compare(make_series("a", RATES_NEAR_100), b, allow=["max_steps"])
    assert fault.value.fix is None  # nothing would help
    assert "balanced" not in str(fault.value)  # that rule is about other runs


def test_run_with_forced_expert_balance_is_never_compared_with_a_training() -> None:
    """The label ``balanced-bound`` marks runs whose router gave all experts equal loads.

    ``bound`` is the name of this difference. ``RATES_NEAR_100``: throughputs of five launches, the
    same on both sides.
    """
    b = [
        replace_plan_fields(launch, labels=[*launch.plan.labels, "balanced-bound"])
        for launch in make_series("b", RATES_NEAR_100, first_minute=10)
    ]
    for allow in ([], ["bound"]):  # not even if this difference is allowed
        with pytest.raises(UsageError, match=r"a balanced run, .* is never compared") as fault:
            compare(make_series("a", RATES_NEAR_100), b, allow=allow)
        assert fault.value.fix is None  # nothing would help


def make_series_at_ranks(
    name: str, rates: list[float], nproc: int, minute: int = 0, **recipe: Any
) -> Any:
    """Return launches on ``nproc`` ranks, with these throughputs of all ranks together.

    Args:
        name: beginning of their ids.
        rates: samples per second, one for each launch.
        nproc: number of ranks, all on one node.
        minute: at which the first one starts.
        recipe: changed fields of the recipe.
    """
    records = []
    for record, rate in zip(
        make_series(name, rates, first_minute=minute, recipe=recipe), rates, strict=True
    ):
        result = record.figures["final_result"].model_copy(update={"value": rate, "reason": None})
        plan = record.plan.model_copy(update={"nproc": nproc})
        figures = record.figures | {"final_result": result}
        records.append(record.model_copy(update={"plan": plan, "figures": figures}))
    return records


@pytest.mark.parametrize("swapped", [False, True])
def test_other_numbers_of_ranks_show_the_efficiency(swapped: bool) -> None:
    """Three launches of each side: about 100 samples/s on 2 ranks, and about 360 on 8 ranks.

    ``swapped``: which side has more ranks does not matter.
    """
    sides = [
        make_series_at_ranks("a", [100.0, 101.0, 99.0], nproc=2),
        make_series_at_ranks("b", [360.0, 356.4, 363.6], nproc=8, minute=10),
    ]
    comparison = compare(*(reversed(sides) if swapped else sides))
    assert (comparison.verdict, comparison.exit_code, comparison.figures) == ("other_world", 2, ())
    assert comparison.sentence.code == "compare_weak_scaling"
    assert comparison.scaling is not None
    small, large = comparison.scaling.worlds
    assert (small.name, small.efficiency, large.name) == ("1x2", 1.0, "1x8")
    # 3.6 times the throughput on 4 times the ranks. Of three launches the interval is the range, so
    # that the bounds combine the extremes of both: the slowest of 8 ranks with the fastest of 2.
    assert large.efficiency == pytest.approx(0.9, rel=1e-6)
    assert large.low == pytest.approx(0.25 * 356.4 / 101)
    assert large.high == pytest.approx(0.25 * 363.6 / 99)
    assert comparison.scaling.doubts == []
    assert comparison.as_dict()["scaling"]["worlds"][1]["ranks"] == 8


def test_equal_batch_of_all_ranks_is_strong_scaling() -> None:
    """One launch a side, with 100 and 300 samples/s of all ranks together."""
    # 192 samples a step on 2 and on 8 ranks: 2 x 96 and 8 x 24.
    a = make_series_at_ranks("a", [100.0], nproc=2, micro_batch_size=96)
    b = make_series_at_ranks("b", [300.0], nproc=8, minute=10, micro_batch_size=24)
    comparison = compare(a, b)  # 3 times the throughput on 4 times the ranks: 0.75
    assert comparison.sentence.code == "compare_strong_scaling"
    assert comparison.sentence.args["efficiency"] == pytest.approx(0.75)


@pytest.mark.parametrize("key", ["max_epochs", "epochs"])
def test_scaling_is_shown_with_allowed_differences(key: str) -> None:
    """One launch a side, with 100 samples/s on 2 ranks and 360 on 8, and other epochs.

    The batch of each rank is the same, so that this is weak scaling.
    """
    a, b = (
        make_series_at_ranks("a", [100.0], nproc=2, max_epochs=10),
        make_series_at_ranks("b", [360.0], nproc=8, minute=10, max_epochs=2),
    )
    with pytest.raises(UsageError, match="max_epochs"):
        compare(a, b)
    comparison = compare(a, b, allow=[key])  # the field's name or its short name
    assert comparison.sentence.code == "compare_weak_scaling"
    # 3.6 times the rate on 4 times the ranks.
    assert comparison.sentence.args["efficiency"] == pytest.approx(0.9)
    assert [difference.name for difference in comparison.allowed] == ["max_epochs"]


def test_efficiency_above_one_has_a_doubt() -> None:
    """One launch a side: 100 samples/s on 1 rank, and 733 on 2 ranks."""
    comparison = compare(
        make_series_at_ranks("a", [100.0], nproc=1),
        make_series_at_ranks("b", [733.0], nproc=2, minute=10),
    )
    assert comparison.scaling is not None
    (doubt,) = comparison.scaling.doubts
    # 7.33 times the rate on twice the ranks.
    assert (doubt.code, doubt.args["efficiency"]) == ("scaling_above_one", pytest.approx(3.665))
    sentence = render(doubt, "en")
    assert "366.5%" in sentence


def test_allowed_ranks_are_compared_and_other_work_is_refused() -> None:
    """Five launches a side with equal throughputs, ``RATES_NEAR_100``, on 2 and on 8 ranks.

    ``ran_world`` is the name of this difference. A has 96 samples of a rank in each step, 192 in
    all; 11 samples on 8 ranks, or 3 x 96 on each of them, equal neither of these numbers.
    """

    def make_b(**recipe: Any) -> Any:
        """Return the launches of B with changed fields of the recipe."""
        return make_series_at_ranks("b", RATES_NEAR_100, nproc=8, minute=10, **recipe)

    a, b = make_series_at_ranks("a", RATES_NEAR_100, nproc=2), make_b()
    # With the number of ranks allowed, it is an ordinary comparison.
    comparison = compare(a, b, allow=["ran_world"])
    assert (comparison.scaling, comparison.verdict) == (None, "no_difference")
    with pytest.raises(UsageError, match="learning_rate"):
        compare(a, make_b(learning_rate=1.0))
    # Neither the batch of a rank (weak scaling) nor that of all ranks (strong scaling) is equal.
    for unlike in ({"micro_batch_size": 11}, {"grad_accum_steps": 3}):
        with pytest.raises(UsageError, match="only the same work can be compared"):
            compare(a, make_b(**unlike))
    # Failed launches show no efficiency either.
    failed = [launch.model_copy(update={"status": "failed"}) for launch in b]
    with pytest.raises(UsageError, match="ran_world"):
        compare(a, failed)


def test_each_side_has_its_trust() -> None:
    """The launches of B have generated data, which is a reason not to quote them.

    ``RATES_NEAR_100``: throughputs of five launches, the same on both sides; A has no reason.
    """
    doubtful = grade_reasons([message("trust_generated_data")])
    a, b = (
        make_series("a", RATES_NEAR_100),
        make_series("b", RATES_NEAR_100, first_minute=10, trust=doubtful),
    )
    comparison = compare(a, b)
    assert (comparison.a.trust.grade, comparison.b.trust.grade) == ("usable", "do_not_quote")
    assert [reason.code for reason in comparison.a.trust.reasons] == []
    assert [reason.code for reason in comparison.b.trust.reasons] == ["trust_generated_data"]
