"""Published rows beside launches and beside each other: a plain ratio, and never a regression."""

from __future__ import annotations

from typing import Any

import pytest

from comparison_records import row, series
from trainmark.errors import UsageError
from trainmark.judge.comparison import compare
from trainmark.record.rows import Reading
from trainmark.record.work import printed_work
from trainmark.spec import message

RATES = [100.0, 101.0, 99.0, 100.5, 99.5]


def launches() -> Any:
    changed = {"micro_batch_size": 96, "learning_rate": 0.00015}
    return [
        one.model_copy(update={"plan": one.plan.model_copy(update={"fix_hp": changed})})
        for one in series("b", RATES)
    ]


def test_a_row_has_a_ratio_without_an_interval() -> None:
    found = compare([row(3)], launches())
    (one,) = found.figures
    assert (one.name, one.launches, one.verdict) == ("p_core", (1, 5), "too_little_data")
    assert one.ratio == pytest.approx(one.b / 200 if one.b else None)
    assert (one.low, one.high, one.sentence.code) == (None, None, "compare_no_interval")
    assert (found.a.evidence, found.b.evidence, found.a.names) == ("C", None, ("page.md:3",))
    assert (found.exit_code, found.trust, found.paired) == (3, found.b.trust, False)
    assert {x.name: x.a for x in found.differences} == {"devices.name": ("A100",)}


def test_many_rows_that_fall_are_no_regression() -> None:
    many = [row(line, 1e6) for line in range(1, 7)]
    found = compare(many, launches(), figures=["p_core"])
    assert found.figures[0].launches == (6, 5)
    assert (found.figures[0].low, found.verdict) == (None, "too_little_data")


def test_of_a_page_the_rows_of_the_same_work_count() -> None:
    rows = [
        row(1, nproc=8), row(2), row(3, changes={}), row(4, precision="fp32"),
        row(5, nproc=8, changes={}), row(6, None),
    ]  # fmt: skip
    found = compare(rows, launches())
    assert found.a.names == ("page.md:2", "page.md:6")
    assert found.figures[0].launches == (1, 5)
    keys = {one.name: one.reason.args["key"] for one in found.a.left_out}
    assert keys == {
        "page.md:1": "ran_world", "page.md:3": "fix_hp", "page.md:4": "precision",
        "page.md:5": "ran_world",
    }  # fmt: skip


def test_where_no_row_is_of_the_same_work_the_nearest_is_refused() -> None:
    rows = [row(1, nproc=8, changes={}), row(2, precision="fp32")]
    with pytest.raises(UsageError) as fault:
        compare(rows, launches())
    assert fault.value.what == "precision is 'fp32' and 'tf32'"
    assert fault.value.remedy == "--allow precision"
    found = compare(rows, launches(), allow=["precision"])
    assert [(one.name, one.a, one.b) for one in found.allowed] == [
        ("precision", ("fp32",), ("tf32",))
    ]
    assert found.a.names == ("page.md:2",)


def test_rows_of_several_worlds_are_never_one_side() -> None:
    allow = ["ran_world", "fix_hp"]
    found = compare([row(1, nproc=8), row(2, changes={})], launches(), allow=allow)
    assert found.a.names == ("page.md:2",)


def test_a_row_whose_run_did_not_pass_is_left_out() -> None:
    said = message("run_not_successful")
    found = compare([row(1, notes=[said]), row(2, changes={})], launches(), allow=["fix_hp"])
    assert (found.a.names, found.a.left_out[0].reason) == (("page.md:2",), said)
    found = compare([row(1, notes=[said])], [row(2)])
    assert (found.a.names, found.verdict) == ((), "too_little_data")


def test_rows_of_a_model_that_is_no_case_of_ours_are_of_other_work() -> None:
    unlike = {"case": None, "model": "ResNet50"}
    rows = [row(1, **unlike), row(2)]
    found = compare(rows, launches())
    assert found.a.left_out[0].reason == message("compare_other_row", key="case")
    with pytest.raises(UsageError) as fault:
        compare(rows[:1], launches())
    assert "never compared" in fault.value.what
    with pytest.raises(UsageError) as fault:
        compare(rows[:1], [row(3, **unlike | {"model": "vit"})])
    assert "never compared" in fault.value.what
    again = compare(rows[:1], [row(4, 300.0, **unlike | {"model": "resnet50"})])
    assert again.figures[0].ratio == pytest.approx(1.5)


def result(value: float, unit: str, **more: str) -> dict[str, Reading]:
    told = {"final_result": (value, unit)} | {name: (100.0, of) for name, of in more.items()}
    return {name: Reading(value=number, unit=of, raw="") for name, (number, of) in told.items()}


def test_a_figure_in_another_unit_is_as_not_told() -> None:
    tokens = row(1, figures=result(5e4, "tokens/s"))
    samples = row(2, figures=result(477.0, "samples/s"))
    (one,) = compare([tokens], launches(), figures=["final_result"]).figures
    assert (one.ratio, one.a, one.b, one.unit) == (
        None, pytest.approx(5e4), None, "tokens/s",
    )  # fmt: skip
    assert (one.launches, one.sentence.code) == ((1, 0), "compare_absent")
    for a in ([tokens, samples], [samples, tokens]):
        (one,) = compare(a, launches(), figures=["final_result"]).figures
        assert (one.a, one.unit, one.launches) == (pytest.approx(477.0), "samples/s", (1, 5))
    both = row(3, figures=result(5e4, "tokens/s", e2e_time="s"))
    assert [one.name for one in compare([both], launches()).figures] == ["e2e_time"]
    untold = row(4, figures=result(477.0, ""))
    (one,) = compare([untold], launches(), figures=["final_result"]).figures
    assert (one.ratio, one.unit) == (pytest.approx(one.b / 477 if one.b else None), "samples/s")


def test_rows_compare_with_rows_of_the_same_work_only() -> None:
    found = compare([row(1, 100.0)], [row(2, 150.0, vendor="other")])
    assert (found.figures[0].ratio, found.trust) == (pytest.approx(1.5), None)
    with pytest.raises(UsageError, match="fix_hp is"):
        compare([row(1)], [row(2, changes={})])
    with pytest.raises(UsageError, match="records and published rows"):
        compare([row(1), *launches()], [row(2)])


def test_what_a_row_tells_of_its_work() -> None:
    told = printed_work(row(1, nproc=None, precision=None, case=None))
    assert told.keys() == {"fix_hp", "data"}
    page = printed_work(
        row(1, precision="fp16", changes={"数据精度": "fp16", "local_batchsize": "4"})
    )
    assert (page["precision"], page["fix_hp"]) == ("fp16", "bs=4")
    amp = printed_work(row(1, precision="amp", changes={"precision": "amp", "bs": "8"}))
    assert (amp["precision"], amp["fix_hp"]) == ("fp16", "bs=8")


def test_a_launch_of_another_model_is_never_held_against_a_row() -> None:
    def changed(**extra: Any) -> list[Any]:
        return [
            one.model_copy(update={"plan": one.plan.model_copy(update={"extra": extra})})
            for one in launches()
        ]

    with pytest.raises(UsageError, match="it changes weight_decay") as fault:
        compare([row(3)], changed(weight_decay=0.5), allow=["fix_hp"])
    assert "--allow" not in str(fault.value)
    assert compare([row(3)], changed(max_steps=7), allow=["fix_hp"]).figures[0].ratio
