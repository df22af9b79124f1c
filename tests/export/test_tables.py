"""Records in every form of export: golden, and read back by the readers of those forms."""

import csv
import io
import json
import shutil

import pyarrow.parquet as pq
import pytest

from support.comparison_records import read_golden_record
from support.exported_runs import write_two_ranks
from support.fakes import check_golden
from trainmark.export.tables import (
    build_record_table,
    render_csv,
    render_index,
    render_json,
    render_text,
    write_parquet,
)
from trainmark.record.record import FigureEntry, Record
from trainmark.results.store.columns import COLUMNS


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a record and its folder.

    A command that reads it does not check it: it trained fewer samples than its plan says, which
    the check would take for a contradiction.
    """
    monkeypatch.setattr("trainmark.results.selection.check_record", lambda record, _: record)
    return write_two_ranks(tmp_path / "run")


def parse_csv(text):
    """Return the rows of a table, each a dict by column."""
    return list(csv.DictReader(io.StringIO(text)))


def test_json_is_an_array_of_whole_records():
    records = [read_golden_record(), read_golden_record(run_id="b")]
    entries = json.loads(render_json(records))
    # Each entry is a record and says whether its evidence was checked.
    assert [entry.pop("verification") for entry in entries] == ["unverified"] * 2
    assert [Record.model_validate(entry) for entry in entries] == records
    assert json.loads(render_json([])) == []


def test_figures_of_a_case_come_last_with_their_unit():
    """A case may add figures to those of all records: here ``energy``, to the second of two.

    ``read_golden_record`` returns a stored record with the given fields replaced; ``parse_csv``
    returns the rows of a table, each a dict by column.
    """
    case_figures = {"energy": FigureEntry(value=1.5, unit="J/sample")}
    first, second = parse_csv(
        render_csv(
            [
                read_golden_record(),
                read_golden_record(figures=read_golden_record().figures | case_figures),
            ]
        )
    )
    assert list(second)[-1] == "energy_J_per_sample"
    # A record without the figure has an empty cell.
    assert (first["energy_J_per_sample"], second["energy_J_per_sample"]) == ("", "1.5")


def test_cells_that_a_spreadsheet_would_run_are_text():
    """A cell that begins with = is a formula; ``case_key`` stands for any column of texts."""
    plan = read_golden_record().plan.model_copy(update={"case_key": '=HYPERLINK("x")\n'})
    (row,) = parse_csv(render_csv([read_golden_record(plan=plan)]))
    assert row["case_key"] == """'=HYPERLINK("x")"""  # on one line; the quote makes it text


def test_text_formats_match_their_golden_files():
    """The golden record as a table, and in the form that result collections import."""
    check_golden("export_csv.csv", render_csv([read_golden_record()]))
    check_golden("export_index.jsonl", render_index([read_golden_record()]))


def test_parquet_has_the_rows_of_the_table_with_their_types(run, tmp_path):
    """``COLUMNS``: the columns that every table has; figures of cases follow them."""
    record, _ = run
    records = [record, record.model_copy(update={"run_id": "second"})]
    write_parquet(records, tmp_path / "a.parquet")
    read_back = pq.read_table(tmp_path / "a.parquet")
    names, rows = build_record_table(records)
    assert read_back.column_names == names
    assert [list(row.values()) for row in read_back.to_pylist()] == rows
    assert names[: len(COLUMNS)] == list(COLUMNS)  # before the figures of cases
    kinds = {name: str(read_back.schema.field(name).type) for name in names}
    # No record has a value for energy_to_target_j; its column is still of floats.
    assert kinds["p_train_samples_per_s"] == kinds["energy_to_target_j"] == "double"
    assert (kinds["samples"], kinds["quality_reached"]) == ("int64", "bool")


@pytest.mark.parametrize("form", ["csv", "perflog"])
def test_text_is_printed_or_replaces_a_whole_file(form, run, cli, tmp_path):
    """Without ``-o`` the text is printed; with it, the file has it and its name is printed.

    ``run`` is a record and its folder ``run``; ``cli`` runs a command and returns its exit code,
    output and errors. ``render_text`` returns what the export of records in this form consists of.
    """
    record, folder = run
    file = tmp_path / "out.txt"
    args = ("export", folder, "--to", form)
    code, out, err = cli(*args)
    assert (code, err) == (0, "")
    assert out == render_text(form, [record], [str(folder)])
    file.write_text("x" * 10**6)  # longer than what replaces it
    assert cli(*args, "-o", file) == (0, "", f"{file}\n")
    assert file.read_text(encoding="utf-8") == out
    # No temporary file is left.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "run"]


def test_impossible_export_is_refused_with_the_reason(run, cli, tmp_path):
    """``run`` is a record and its folder; ``cli`` runs a command.

    It returns the exit code, 2 for a wrong command line, the output and the errors.
    """
    _, folder = run
    copy = shutil.copytree(folder, tmp_path / "copy")
    _, other_folder = write_two_ranks(tmp_path / "other", run_id="other")
    (tmp_path / "file").touch()  # nothing can be written below a file
    for form, args, reported in (
        ("parquet", (), "-o FILE"),  # it cannot be printed
        ("csv", ("-o", tmp_path / "file" / "x"), "cannot write"),
        ("parquet", ("-o", tmp_path / "file" / "x"), "cannot write"),
        ("perflog", (other_folder,), "2 runs cannot be written to one log"),
        ("csv", (folder,), "the same run is given twice\n"),  # the same folder
        ("csv", (copy,), f"as {folder} and {copy}"),
    ):
        code, out, err = cli("export", folder, *args, "--to", form)
        assert (code, out) == (2, "")
        assert reported in err
