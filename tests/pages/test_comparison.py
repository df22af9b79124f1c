"""A comparison on a terminal, in both languages."""

from __future__ import annotations

import pytest

from support.comparison_records import make_series
from support.fakes import check_golden
from trainmark.judge.comparison import compare
from trainmark.pages.comparison_charts import chart_ratios
from trainmark.pages.judgements import build_comparison
from trainmark.pages.terminal import show
from trainmark.pages.texts import translate
from trainmark.record.record import Cause, Trust
from trainmark.spec import message


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_comparison_is_printed_on_a_terminal(lang: str) -> None:
    # Side B is slower, on a busy machine with another driver, trains fewer steps, and has a sixth
    # launch that failed.
    rates = [100.0, 101.0, 99.0, 100.5, 99.5]
    noisy = Trust(grade="noisy", reasons=[message("machine_busy", share=0.25)])
    a = make_series("a", rates)
    other = {"driver": "590.1", "variables": {}}
    b = make_series(
        "b",
        [0.9 * rate for rate in rates],
        first_minute=9,
        trust=noisy,
        environment=a[0].environment | other,
        recipe={"max_steps": 7},
    )
    cause = Cause(kind="oom", message=message("exception", text="x"))
    b.append(
        a[0].model_copy(
            update={
                "run_id": "b6",
                "status": "oom",
                "cause": cause,
                "plan": b[0].plan,
            }
        )
    )
    # The difference in steps is allowed, or the two would be other work and not be compared.
    # ``figures`` are those to compare; the golden file has the text as it was reviewed.
    # ``make_series`` returns a launch of the golden record for each rate (``p_core``, samples/s); b
    # starts nine minutes after a.
    comparison = compare(a, b, figures=["p_core", "mem"], allow=["max_steps"])
    text = show(build_comparison(comparison), lang, width=100)
    assert "\x1b" not in text
    check_golden(f"comparison.{lang}.txt", text + "\n")


def test_sentences_name_their_side() -> None:
    # Each side has one launch with a ``p_core`` of 100 samples/s, and in all else is the golden
    # record, which reached its target.
    a, b = make_series("a", [100.0]), make_series("b", [100.0])
    # The second side is named C, as on a page with several comparisons.
    text = show(build_comparison(compare(a, b), "C"), width=200)
    assert "p_core of C is 1.000 times that of A" in text
    assert "the target was reached by 1 of 1 launches of A and by 1 of 1 launches of C" in text


@pytest.mark.parametrize(
    ("speedup", "expected", "logarithmic"),
    [
        (0.9, "✗ slower", False),
        (1.5, "✓ faster", False),
        (3.5, "✓ faster", True),
    ],
)
def test_ratios_are_drawn_with_good_and_bad_marked(
    speedup: float, expected: str, *, logarithmic: bool
) -> None:
    # ``speedup``: B's speed over A's. A chart of ratios has a row for each figure of each side: its
    # name, the ratio, the ends of its confidence interval, and the verdict. Five launches with a
    # spread of 1% are enough for a verdict on these differences.
    rates = [100.0, 101.0, 99.0, 100.5, 99.5]
    a = make_series("a", rates)
    # All launches of B start after those of A.
    b = make_series("b", [speedup * rate for rate in rates], first_minute=9)
    chart = chart_ratios({"B": compare(a, b, figures=["p_core"])})
    assert chart
    assert chart.table
    ((name, ratio, low, high, mark_and_verdict),) = chart.table.rows
    assert (name, ratio) == ("B p_core", f"{speedup:.3f}")
    assert translate(mark_and_verdict, "en") == expected
    assert float(str(low)) < speedup < float(str(high))
    # A ratio far from 1 needs a logarithmic axis.
    scale = chart.spec["layer"][0]["encoding"]["x"]["scale"]
    assert (scale.get("type") == "log") is logarithmic
