"""Summaries of repeated launches: which launches count, and their statistics."""

from pathlib import Path

import pytest

from support.comparison_records import read_golden_record
from support.document_texts import list_paragraphs, translate_headers, translate_rows
from trainmark.errors import RecordError, UsageError
from trainmark.launch.series import SeriesEntry
from trainmark.pages.repeats import (
    average_figures,
    build_repeats,
    build_summary,
    find_median_launch,
)
from trainmark.pages.results import build_series_table
from trainmark.pages.summary import list_first_lines
from trainmark.record.messages import MESSAGES
from trainmark.record.trust import grade_reasons
from trainmark.record.work import group_by_work
from trainmark.spec import message

GOLDEN = Path(__file__).parents[1] / "golden"


def make_launch_record(number, p_core, **changes):
    """Return the golden record as one of several launches.

    Args:
        number: of the launch, which is in its run id.
        p_core: the speed of this launch.
        changes: other fields of the record.
    """
    golden_record = read_golden_record()
    entry = golden_record.figures["p_core"].model_copy(update={"value": p_core})
    figures = golden_record.figures | {"p_core": entry}
    return read_golden_record(run_id=f"run{number}", figures=figures, **changes)


def change_recipe(**fields):
    """Return the golden record as another run with changed recipe fields; its id is "other"."""
    plan = read_golden_record().plan
    return read_golden_record(
        run_id="other", plan=plan.model_copy(update={"recipe": plan.recipe | fields})
    )


def test_summary_has_mean_interval_and_variation_over_launches():
    summary = build_summary(
        [
            make_launch_record(number, p_core=value)
            for number, value in enumerate([100.0, 102.0, 98.0, 101.0, 99.0])
        ]
    )
    core = summary.figures["p_core"]
    # Geometric mean and ends of the 95% interval, from the logarithms. Their variance is 2.5e-4 and
    # Student's t of 4 degrees of freedom 2.776, so both ends differ from the mean by the factor
    # exp(2.776 x sqrt(2.5e-4 / 5)).
    expected = (99.9900, 98.0457, 101.9728)
    assert (core.mean, core.low, core.high) == pytest.approx(expected, abs=1e-3)
    # The variation is the standard deviation, sqrt(10 / 4), over the arithmetic mean, 100.
    assert core.cv == pytest.approx(0.0158114, abs=1e-6)
    table, *lines = build_repeats(summary)
    assert list_paragraphs(lines) == ["5 of 5 launches passed"]
    assert "95% interval" in translate_headers(table)


def test_figure_of_too_few_launches_for_an_interval_is_named_a_range():
    # Five launches are enough for an interval, but only four have the figure p_core.
    launches = [make_launch_record(number, p_core=100.0) for number in range(4)]
    launches.append(make_launch_record(4, p_core=None))
    table, *_ = build_repeats(build_summary(launches))
    assert "95% interval" in translate_headers(table)  # five launches passed; one has no p_core
    # Cells: name, mean, unit, range, variation, and how many launches have the figure.
    row = ("p_core", "100.0", "samples/s", "100.0 – 100.0 (range)", "0.00%", "4")
    assert row in translate_rows(table)


def test_failed_launches_are_named_and_never_averaged_in():
    # The ``p_core`` of launches that failed or missed the target is 1 or 2 samples/s, so that the
    # mean would show it. 101.98 is the geometric mean, the square root of 100 x 104.
    launches = [
        make_launch_record(0, p_core=100.0),
        make_launch_record(1, p_core=1.0, status="failed"),
        make_launch_record(2, p_core=104.0),
    ]
    launches.append(make_launch_record(3, p_core=2.0, status="target_missed"))
    summary = build_summary(launches)
    assert summary.figures["p_core"].mean == pytest.approx(101.98039)  # of 100 and 104
    assert summary.figures["p_core"].launches == 2
    assert (len(summary.passed), len(summary.records)) == (2, 4)
    table, *lines = build_repeats(summary)
    assert "range" in translate_headers(table)
    assert "范围" in translate_headers(table, "zh")
    assert list_paragraphs(lines) == [
        "2 of 4 launches passed",
        "excluded from every figure: run1 (failed), run3 (target missed)",
        "A 95% interval needs at least five launches; with fewer, only the range is shown, and no "
        "conclusion can be drawn from it.",
    ]


def test_contradicted_launches_are_named_and_never_averaged_in():
    """Launch 1 passed, but a file of its evidence was changed afterwards.

    Its ``p_core`` of 1 sample/s would show in any mean. ``grade_reasons`` makes the trust in a run
    from the reasons to doubt it.
    """
    trust = grade_reasons([message("evidence_altered", file="plan.json")])
    launches = [
        make_launch_record(0, p_core=100.0),
        make_launch_record(1, p_core=1.0, trust=trust, verification="contradicted"),
        make_launch_record(2, p_core=104.0),
    ]
    summary = build_summary(launches)
    # The geometric mean of 100 and 104.
    assert summary.figures["p_core"].mean == pytest.approx(101.98039)
    assert summary.figures["p_core"].launches == 2
    assert summary.trust.grade == "do_not_quote"  # the contradiction is still told
    _, *lines = build_repeats(summary)
    assert list_paragraphs(lines)[:2] == [
        "3 of 3 launches passed",
        "excluded from every figure: run1 (contradicted)",
    ]
    assert average_figures(launches).figures["p_core"].value == pytest.approx(101.98039)
    assert find_median_launch(launches).run_id != "run1"
    printed = "\n".join(list_first_lines(launches))
    assert "p_core 102.0 samples/s" in printed
    assert "; excluded from every figure: run1 (contradicted)" in printed
    # A launch alone has no mean: its figures are shown, marked as contradicted.
    alone = "\n".join(list_first_lines(launches[1:2]))
    assert "p_core 1.000 samples/s" in alone
    assert "contradicted" in alone


def test_plan_file_entry_with_a_contradicted_launch_has_no_figures():
    # An entry of a plan file is a run with one or more launches: ``ended`` has the folder and the
    # record of each by its number. Of launch 1, a file of its evidence was changed afterwards, so
    # the row of an entry with both launches has no speed, though launch 0 alone has one.
    trust = grade_reasons([message("evidence_altered", file="plan.json")])
    launches = [
        make_launch_record(0, p_core=100.0),
        make_launch_record(1, p_core=1.0, trust=trust, verification="contradicted"),
    ]
    # Of an entry with launch 0 alone, and of one with both.
    for records, has_rate in ((launches[:1], True), (launches, False)):
        ended = {number: (Path(), record) for number, record in enumerate(records)}
        entry = SeriesEntry(name="a", state="finished", ended=ended)
        assert ("samples/s" in build_series_table([entry], width=200)) is has_rate


def test_first_lines_say_once_that_no_window_was_repeated():
    """Some windows of steps are repeated to check their results bit by bit; these had none."""
    # Both launches have the finding, and its sentence is printed once for the two of them.
    finding = message("no_window_replayed")
    launches = [make_launch_record(number, p_core=100.0, findings=[finding]) for number in range(2)]

    text = MESSAGES[finding.code].en
    assert list_first_lines(launches).count(text) == 1
    assert text not in list_first_lines([make_launch_record(0, p_core=100.0)])


def test_first_lines_show_a_printed_speed_that_differs_from_the_measured_one():
    # Findings about what a user's own program printed of its speed, against what was measured:
    # 200 tokens/s, but 100; ``change`` is -0.5, as the measured speed is half of it.
    findings = [
        message("printed_differs", reported=200.0, measured=100.0, unit="tokens/s", change=-0.5),
        message("printed_because_twice", ratio=2.0),
    ]
    record = make_launch_record(0, p_core=100.0, findings=findings)
    text = "the program reports 200 tokens/s; Trainmark measured 100 (-50.0%)"
    reason = "the program counts its work twice (2 times the actual work)"
    assert f"{text}; {reason}" in list_first_lines([record])
    chinese = (
        "程序自报 200 tokens/s，实测 100（-50.0%）；程序重复统计了工作量，统计值为实际工作量的 2 倍"
    )
    assert chinese in list_first_lines([record], lang="zh")
    agreeing = message("printed_agrees", reported=1.0, measured=1.0, unit="tokens/s", change=0.0)
    lines = list_first_lines([make_launch_record(0, p_core=100.0, findings=[agreeing])])
    assert not any("the program reports" in line for line in lines)


def test_figure_of_one_launch_has_no_variation_and_of_none_is_absent():
    # Cells: name, mean, unit, range, variation (a dash: none), number of launches.
    table, *_ = build_repeats(build_summary([make_launch_record(0, p_core=100.0)]))
    assert ("p_core", "100.0", "samples/s", "100.0 – 100.0", "–", "1") in translate_rows(table)
    summary = build_summary(
        [
            make_launch_record(0, p_core=1.0, status="failed"),
            make_launch_record(1, p_core=1.0, status="oom"),
        ]
    )
    # Of failed launches alone, there are no figures, but three sentences: how many passed, which
    # did not, and that fewer than five launches have no interval.
    assert (summary.figures, len(build_repeats(summary))) == ({}, 3)


def make_one_rank_plan(**plan_changes):
    """Return the golden plan on one rank, on generated data, with changed fields.

    Its recipe is for any number of ranks, so that a test may change their number.
    """
    plan = read_golden_record().plan
    recipe = plan.recipe | {"world": None, "data": "generated"}
    return plan.model_copy(update={"nproc": 1, "recipe": recipe} | plan_changes)


def test_another_world_or_other_data_is_other_work():
    # ``content_id`` is a digest of the data; that of the golden plan begins with "9ae5". The world
    # is nodes x ranks of each: 1x1 in ``make_one_rank_plan``.
    data = read_golden_record().plan.data.model_copy(update={"content_id": "feed"})
    for changes, words in (
        ({"nproc": 2}, "ran_world is '1x2', but '1x1' in the first launch"),
        ({"nnodes": 2}, "ran_world is '2x1', but '1x1' in the first launch"),
        ({"data": data}, "content_id is 'feed', but '9ae5ab26d6dc5efc' in the first launch"),
    ):
        first, second = (
            read_golden_record(run_id="one", plan=make_one_rank_plan()),
            read_golden_record(run_id="two", plan=make_one_rank_plan(**changes)),
        )
        assert len(group_by_work([first, second])) == 2
        with pytest.raises(RecordError) as caught:
            build_summary([first, second])
        assert words in str(caught.value)


def test_only_launches_of_the_same_work_have_a_summary():
    # The seed and the time limit are no part of the work.
    summary = build_summary([read_golden_record(), change_recipe(seed=2, timeout_s=60.0)])
    assert len(summary.records) == 2
    # A patch version of the program does not change the work, a minor version may.
    suite = read_golden_record().suite
    by_version = {
        version: read_golden_record(
            run_id=version, suite=suite.model_copy(update={"version": version})
        )
        for version in ("0.1.0", "0.1.1", "0.2.0")
    }
    assert len(group_by_work([by_version["0.1.0"], by_version["0.1.1"]])) == 1
    assert len(group_by_work([by_version["0.1.0"], by_version["0.2.0"]])) == 2
    # The same run given twice, as its id shows, and no run at all.
    with pytest.raises(UsageError, match="twice"):
        build_summary([read_golden_record(), read_golden_record()])
    with pytest.raises(RecordError, match="no record"):
        build_summary([])
