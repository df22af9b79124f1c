"""CSV: our export, and tables of others."""

from __future__ import annotations

import pytest

from support.fakes import GOLDEN
from trainmark.export.tables import render_csv
from trainmark.record.record import Record
from trainmark.record.work import describe_printed_work


def test_our_csv_is_imported_with_the_figures_of_its_records(import_text):
    # The record of a run of DistilBERT on one node with two devices, with a batch size and a
    # learning rate of its own: the only changes of its recipe.
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    record = Record.model_validate_json(text)
    imported_rows = import_text(render_csv([record, record]), "results.csv")
    row, second_row = imported_rows.rows
    assert imported_rows.unread == []
    # Line 1 is the header.
    assert (row.line, second_row.line, row.form) == (2, 3, "csv")
    assert (row.case, row.device, row.nnodes, row.nproc, row.vendor) == (
        "distilbert_sst2",
        "NVIDIA A100-SXM4-40GB",
        1,
        2,
        "nvidia",
    )
    assert (row.metric, row.figure("acc")) == ("acc", record.quality.value)
    assert row.figure("acc_target") == record.quality.target
    assert row.changes == {"bs": "96", "lr": "0.00015"}
    for name, entry in record.figures.items():
        assert row.figure(name) == entry.value, name
        assert row.figures[name].unit == entry.unit, name


@pytest.mark.parametrize(
    ("status", "codes"),
    [
        ("passed", []),
        ("diverged", ["run_not_converged"]),
        ("failed", ["run_not_successful"]),
    ],
)
def test_row_has_its_stated_status_and_data(import_text, status, codes):
    # ``describe_printed_work`` returns facts about a row's work by name; "data" is its kind of
    # data.
    text = f"status,data_origin,nnodes,nproc,p_whole\n{status},generated,1,2,9\n"
    (row,) = import_text(text, "r.csv").rows
    assert [note.code for note in row.notes] == codes
    assert describe_printed_work(row)["data"] == "generated"
    # Without that column, the data is taken for real.
    (other,) = import_text(text.replace("data_origin", "else"), "r.csv").rows
    assert describe_printed_work(other)["data"] == "real"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_cell_over_several_lines_is_read_as_one_text(import_text, ending):
    text = 'device,"tokens\nper second"\n"A100\nPCIe",5\nH100,6\n'.replace("\n", ending)
    rows = import_text(text, "r.csv").rows
    # The header has the lines 1 and 2, the first row 3 and 4; its number is that of the last one.
    assert [(row.line, row.device, row.figure("p_train_tokens")) for row in rows] == [
        (4, "A100 PCIe", 5.0),
        (5, "H100", 6.0),
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_with_known_column_names_is_read(import_text, delimiter):
    # Line 3 has no figure: its sixth cell is no fault, as empty cells after the last column do not
    # count. Line 5 has too few cells; the empty line 4 is no row.
    text = "device,nnodes,nproc,p_whole,note\nX100,2,8,12.5,mine\nX100,1,1,n/a,,\n\nX100,8,1,7\n"
    imported_rows = import_text(text.replace(",", delimiter), "r.csv")
    (row,) = imported_rows.rows
    assert (row.configuration, row.world_size, row.figure("p_whole")) == ("X100 (2x8)", 16, 12.5)
    assert row.cells["note"] == "mine"
    assert [(entry.line, entry.reason.code) for entry in imported_rows.unread] == [
        (3, "row_without_figures"),
        (5, "row_has_other_cells"),
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "table_without_results"),
        ("a,b\n1,2\n", "table_without_results"),  # neither header is that of a figure
        ('p_whole,a\n1,"open\n2,b\n', "csv_malformed"),  # a quote that does not end
        # Between semicolons, a comma and a point in one column: which is decimal is not clear.
        ("p_whole;device\n12,345;x\n1.234;y\n", "csv_with_decimal_commas"),
        ("p_whole,device\n1,234,x\n", "row_has_other_cells"),  # three under two headers
    ],
)
def test_unreadable_csv_is_listed(import_text, text, code):
    imported_rows = import_text(text, "r.csv")
    assert (imported_rows.rows, [entry.reason.code for entry in imported_rows.unread]) == (
        [],
        [code],
    )
