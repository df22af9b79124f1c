"""Scaling: exact efficiencies, both kinds, both languages, and what does not scale."""

from __future__ import annotations

from typing import Any

import pytest

from support.document_texts import translate_rows
from support.fakes import GOLDEN, check_golden
from trainmark.pages.document import Paragraph, Section, Table
from trainmark.pages.page import build_documents
from trainmark.pages.rendering import to_markdown
from trainmark.pages.texts import translate
from trainmark.record.record import Record, Trust
from trainmark.spec import message

TEMPLATE = Record.model_validate_json((GOLDEN / "record_distilbert.json").read_bytes())


def make_record(
    world: str,
    rate: float,
    *,
    number: int = 0,
    micro: int = 32,
    changes: dict[str, Any] | None = None,
    **fields: Any,
) -> Record:
    """Return a record of ``world`` (nodes x ranks of each) at ``rate`` samples/s.

    The rate is that of all ranks together, the figure ``final_result``. All else is as in
    ``TEMPLATE``, the golden record of DistilBERT on two A100.

    Args:
        number: number of the launch, which makes its run id unique.
        micro: micro-batch size.
        changes: recipe fields with other values than in the template.
        fields: other fields of the record.
    """
    nnodes, nproc = map(int, world.split("x"))
    recipe = TEMPLATE.plan.recipe | {"micro_batch_size": micro, "world": world} | (changes or {})
    plan = TEMPLATE.plan.model_copy(update={"recipe": recipe, "nnodes": nnodes, "nproc": nproc})
    result = TEMPLATE.figures["final_result"].model_copy(update={"value": rate, "reason": None})
    known = {
        "plan": plan,
        "run_id": f"{world}-r{number}",
        "figures": TEMPLATE.figures | {"final_result": result},
    }
    return TEMPLATE.model_copy(update=known | fields)


def make_weak_scaling_records() -> list[Record]:
    """Return two launches of 2x8, three of 1x1 and one of 1x8, not in order of world size."""
    return [
        make_record("2x8", rate=1600.0, number=1),
        make_record("2x8", rate=1156.0, number=2),
        *(
            make_record("1x1", rate, number=launch_number)
            for launch_number, rate in enumerate([100.0, 80.0, 125.0])
        ),
        make_record("1x8", rate=760.0),
    ]


def list_scaling_sections(runs: list[Record]) -> list[Section]:
    """Return the sections of scaling on the first page of a report, which is that of all runs.

    There may be one of weak scaling (the same batch on each rank) and one of strong scaling (the
    same batch in all).
    """
    return [
        section
        for section in build_documents(runs)[0].sections
        if section.anchor.startswith("scaling")
    ]


def list_world_rows(section: Section) -> list[tuple[str, ...]]:
    """Return the English cells of a section's table, which has a row for each world size."""
    assert isinstance(section.blocks[0], Table)
    return translate_rows(section.blocks[0])


def test_weak_scaling_has_throughput_and_efficiency_per_number_of_ranks() -> None:
    (section,) = list_scaling_sections(make_weak_scaling_records())
    assert translate(section.heading, "en").endswith("weak scaling")
    # World, launches, micro-batch, geometric mean and range of throughput, efficiency and range.
    # The efficiency is against the mean of 1x1, 100 samples/s, times the ranks: 760 / 800 = 95%,
    # 1360 / 1600 = 85%. Its range is from 1156 / (16 x 125) to 1600 / (16 x 80). The base has none,
    # nor has 1x8, of which there is a single launch.
    assert list_world_rows(section) == [
        ("1x1", "3", "32", "100.0 (80.0 – 125.0)", "100.0%"),
        ("1x8", "1", "32", "760.0 (1 launch)", "95.0%"),
        ("2x8", "2", "32", "1360.0 (1156.0 – 1600.0)", "85.0% (57.8% – 125.0%)"),
    ]


def test_strong_scaling_keeps_the_global_batch() -> None:
    (section,) = list_scaling_sections(
        [make_record("1x2", rate=200.0, micro=64), make_record("2x4", rate=640.0, micro=16)]
    )
    # A world is nodes x ranks of each: 2 ranks of 64 samples, and 8 of 16, so 128 samples a step in
    # both. Cells of a row: micro-batch and efficiency, without its range: 640 / (200 x 4) = 80%.
    assert [(row[2], row[4].split()[0]) for row in list_world_rows(section)] == [
        ("64", "100.0%"),
        ("16", "80.0%"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        make_record("1x8", rate=760.0, status="failed"),
        make_record("1x8", rate=760.0, changes={"lr": 1.0}),
        make_record("1x8", rate=760.0, micro=31),
    ],
)
def test_other_work_and_runs_without_a_result_do_not_scale(other: Record) -> None:
    assert list_scaling_sections([make_record("1x1", rate=100.0), other]) == []


def test_runs_with_two_batch_sizes_show_weak_and_strong_scaling() -> None:
    scaling_sections = list_scaling_sections(
        [
            make_record("1x1", rate=1.0),
            make_record("1x8", rate=8.0),
            make_record("1x8", rate=6.0, number=1, micro=4),
        ]
    )
    # The usual micro-batch is 32. One rank is in both tables: with eight ranks of 32 each (weak),
    # and with eight ranks of 4, which are 32 in all (strong).
    assert [len(list_world_rows(section)) for section in scaling_sections] == [2, 2]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_scaling_pages_match_their_golden_files(lang: str) -> None:
    # ``make_weak_scaling_records`` has runs of 1, 8 and 16 ranks; the golden file is the reviewed
    # page.
    check_golden(
        f"page.scaling.{lang}.md",
        # The first page is that of all runs.
        to_markdown(build_documents(make_weak_scaling_records())[:1], lang),
    )


@pytest.mark.parametrize(
    ("rate", "doubted"), [(200.0, False), (209.0, False), (212.0, True), (733.0, True)]
)
def test_efficiency_above_105_percent_has_a_doubt(rate: float, doubted: bool) -> None:
    # Two ranks at twice the rate of one, 200 samples/s, are an efficiency of 1. More than 1.05, 210
    # samples/s, is hardly possible, so a paragraph of the tone "warn" doubts it.
    (section,) = list_scaling_sections([make_record("1x1", rate=100.0), make_record("1x2", rate)])
    paragraphs = [block for block in section.blocks if isinstance(block, Paragraph)]
    doubts = [block.text for block in paragraphs if block.tone == "warn"]
    expected = message(
        "scaling_above_one", world="1x2", first="1x1", efficiency=rate / 200, most=1.05
    )
    assert doubts == ([expected] if doubted else [])


def make_trust(grade: str) -> Trust:
    """Return trust of this grade, with a reason that gives it: none if the result is usable.

    ``noisy``: other programs used a quarter of the cores; ``do_not_quote``: data was generated.
    """
    reasons = {
        "usable": [],
        "noisy": [message("machine_busy", share=0.25)],
        "do_not_quote": [message("trust_generated_data")],
    }
    return Trust(grade=grade, reasons=reasons[grade])


@pytest.mark.parametrize(
    ("first", "second", "status", "tone", "words"),
    [
        ("usable", "usable", "passed", "good", "2 of 2 launches passed"),
        ("usable", "noisy", "passed", "warn", "2 of 2 launches passed"),
        ("do_not_quote", "usable", "passed", "doubt", "2 of 2 launches passed, not to be quoted"),
        ("usable", "usable", "failed", "bad", "1 of 2 launches passed"),
    ],
)
def test_badge_of_different_work_is_that_of_the_worst_run(
    first: str, second: str, status: str, tone: str, words: str
) -> None:
    # ``first`` and ``second``: grades of trust of a run on one rank and one on eight, which is
    # other work; ``status`` is that of the second. The badge stands at the title of the page of
    # both.
    runs = [
        make_record("1x1", rate=100.0, trust=make_trust(first)),
        make_record("1x8", rate=760.0, trust=make_trust(second), status=status),
    ]
    page = build_documents(runs)[0]
    assert (page.tone, translate(page.badge, "en")) == (tone, words)


def test_badge_of_a_repeat_with_a_failed_launch_is_bad() -> None:
    # Five launches of the same work, which are enough for a usable result; then a sixth one failed.
    # Their rates are 100 to 104 samples/s; the tone is the colour of the badge at the page's title.
    runs = [
        make_record("1x1", 100.0 + launch_number, number=launch_number, trust=make_trust("usable"))
        for launch_number in range(5)
    ]
    assert build_documents(runs)[0].tone == "good"
    failed = make_record(
        "1x1", rate=90.0, number=9, status="failed", trust=make_trust("do_not_quote")
    )
    page = build_documents([*runs, failed])[0]
    assert (page.tone, translate(page.badge, "en")) == ("bad", "5 of 6 launches passed")
