"""The rows of the founding pages: shipped with the cases, and read back from pages cell by cell."""

from __future__ import annotations

import pytest

from trainmark.errors import UsageError
from trainmark.pages import document
from trainmark.pages.rendering import to_markdown
from trainmark.pages.sections.published_rows import build_reference_table
from trainmark.plan import reference
from trainmark.published.importers import files
from trainmark.published.importers.page import Page
from trainmark.published.importers.reference_rows import read_references
from trainmark.record.work import Row
from trainmark.results.selection import select_results

CASES = {"distilbert_sst2": 4, "glm_superglue": 3, "llama2_7b_lora": 2, "dlrm_criteo": 6}


def print_reference_page(case):
    """Return the published rows of a case as a page of ours prints them, in Chinese."""
    table = build_reference_table(reference.read_references(case))
    section = document.Section("性能指标", "figures", (table,))
    page = document.Document(
        title=case,
        badge="",  # the head of a page does not matter here
        tone="plain",
        verification="",
        sentence="",
        sections=(section,),
    )
    return to_markdown([page], "zh")


@pytest.mark.parametrize("case", CASES)
def test_founding_page_equals_the_reference_rows_cell_by_cell(case):
    printed = list(
        files.read_page(print_reference_page(case), Page(file="page.md", form="flagperf"))
    )
    shipped = list(read_references(case))
    # ``CASES`` has the number of published rows by case. All were read as rows, from the page and
    # from the files that are shipped with the case, and none as an unreadable place.
    assert [type(entry) for entry in (*printed, *shipped)] == [Row] * 2 * CASES[case]
    # A row as read from the page, as shipped, and as in the file.
    for row, known, source in zip(
        printed, shipped, reference.read_references(case).rows, strict=True
    ):
        assert list(row.cells.values()) == [source.configuration, *source.cells.values()]
        assert list(row.cells.values()) == list(known.cells.values())
        assert row.figures == known.figures
        same = ("configuration", "device", "nnodes", "nproc", "changes", "metric")
        assert [getattr(row, name) for name in same] == [getattr(known, name) for name in same]


def test_reference_row_names_its_file_and_line():
    first, second = select_results(["reference:distilbert"]).rows[:2]
    assert (first.file, first.form, first.case) == (
        "reference:distilbert_sst2",
        "reference",
        "distilbert_sst2",
    )
    assert (first.line, second.line) == (1, 2)
    assert (first.evidence, first.precision, first.world_size) == ("C", "fp32", 8)
    # As the first two lines of the file have them.
    assert first.figure("p_whole") == 1764.0
    assert second.changes == {"bs": "96"}


def test_case_without_references_has_none_and_an_unknown_one_is_refused():
    # "reference:CASE" selects the published results that are shipped with a case of the program.
    assert select_results(["reference:toy"]).rows == []
    with pytest.raises(UsageError, match="nonesuch"):
        select_results(["reference:nonesuch"])
