"""References: loading, refusing, and what printed figures imply."""

import pytest

from trainmark.errors import RecordError
from trainmark.plan import reference

HEAD = """
columns = ["precision", "fix_hp", "e2e_time", "p_whole"]
samples_per_pass = 1000
[[source]]
id = "page"
evidence = "C"
text = {en = "a page", zh = "某页面"}
"""
ROW = """
[[reference]]
source = "page"
configuration = "X单机单卡（1x1）"
device = "X"
world = "1x1"
precision = "fp32"
"""


def write(tmp_path, text):
    """Write a file of published results and return its path.

    Args:
        text: of the file: usually ``HEAD``, its columns and source, and rows (``ROW``).
    """
    path = tmp_path / "reference.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_row_keeps_its_cells_as_printed(tmp_path):
    # ``HEAD`` has the names of the four columns and the source; ``ROW`` is on 1x1 devices.
    path = write(tmp_path, HEAD + ROW + 'cells = ["fp32", "bs=8, lr=1e-05", "100", "20.50"]')
    (row,) = reference.read_reference_file(path).rows
    assert row.cells == {
        "precision": "fp32",
        "fix_hp": "bs=8, lr=1e-05",
        "e2e_time": "100",
        "p_whole": "20.50",
    }
    assert row.fix_hp == "bs=8, lr=1e-05"
    assert (row.nnodes, row.nproc) == (1, 1)
    assert row.kind == "published"
    assert row.source.evidence == "C"
    assert row.source.date is None  # ``HEAD`` names none


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + ROW + 'cells = ["fp32", "/", "1"]', "3 cells"),  # of four columns
        (HEAD + ROW + 'cells = ["a", "b", "c", "d"]\ncolour = "red"', "reference.0.colour"),
        ('column = ["acc"]\n' + HEAD, "column: not valid; there is no such key"),
        (HEAD + ROW.replace('"page"', '"pge"') + 'cells = ["", "", "", ""]', "source 'pge'"),
        (HEAD + ROW.replace("1x1", "1-1") + 'cells = ["", "", "", ""]', "reference.0.world"),
        (
            HEAD + ROW + 'cells = ["", "", "", ""]\ncells_en = {mfu = "1"}',
            "cells_en has unknown columns: mfu",
        ),
        (HEAD.replace('"C"', '"certain"'), "source.0.evidence"),
        (HEAD.replace("zh =", "zz ="), "source.0.text.zz"),
        ("columns = [", "cannot be read"),
    ],
)
def test_invalid_file_is_refused_with_its_name(tmp_path, text, words):
    # ``HEAD`` is the valid beginning of a file: four columns, and a source "page" of evidence "C"
    # with an English and a Chinese text. ``ROW`` is a row of that source on 1x1 devices, to which
    # the cells are added. Each text has one mistake, which ``words`` name.
    with pytest.raises(RecordError) as caught:
        reference.read_reference_file(write(tmp_path, text))
    assert words in str(caught.value)
    assert "reference.toml" in str(caught.value)
