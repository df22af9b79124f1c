"""All forms of export through the command line."""

import pyarrow.parquet as pq
import pytest

from exported_runs import write_two_ranks
from trainmark.library.store.columns import COLUMNS
from trainmark.pages.exports.forms import to_text
from trainmark.pages.exports.tables import table, write_parquet


@pytest.fixture
def run(tmp_path):
    return write_two_ranks(tmp_path / "run")


@pytest.fixture(autouse=True)
def _not_verified(monkeypatch):
    """Leave the evidence, which is invented, out of it."""
    monkeypatch.setattr("trainmark.library.selection.checked", lambda record, _: record)


def test_parquet_has_the_rows_of_the_table_with_their_types(run, tmp_path):
    records = [run[0], run[0].model_copy(update={"run_id": "second"})]
    write_parquet(records, tmp_path / "a.parquet")
    found = pq.read_table(tmp_path / "a.parquet")
    names, rows = table(records)
    assert found.column_names == names
    assert [list(row.values()) for row in found.to_pylist()] == rows
    assert names[: len(COLUMNS)] == list(COLUMNS)
    assert {
        str(found.schema.field(name).type) for name in ("p_train_samples_per_s", "mem_bytes")
    } == {"double"}
    assert str(found.schema.field("energy_to_target_j").type) == "double"  # null in both
    assert str(found.schema.field("samples").type) == "int64"
    assert str(found.schema.field("quality_reached").type) == "bool"


@pytest.mark.parametrize("form", ["csv", "perflog"])
def test_a_text_goes_to_stdout_or_to_a_file_that_is_replaced_as_a_whole(form, run, cli, tmp_path):
    record, folder = run
    file = tmp_path / "out.txt"
    words = ("export", folder, "--to", form)
    code, out, err = cli(*words)
    assert (code, err) == (0, "")
    assert out == to_text(form, [record], [str(folder)])
    assert cli(*words, "-o", file) == (0, "", f"{file}\n")
    assert file.read_text(encoding="utf-8") == out
    file.write_text("x" * 10**6)
    assert cli(*words, "-o", file) == (0, "", f"{file}\n")
    assert file.read_text(encoding="utf-8") == out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "run"]


@pytest.mark.parametrize("form", ["parquet", "tensorboard"])
def test_what_is_no_text_needs_a_place(form, run, cli):
    code, out, err = cli("export", run[1], "--to", form)
    assert (code, out) == (2, "")
    assert "is no text" in err
    assert "-o PATH" in err


def test_a_log_is_of_one_run(run, cli):
    code, _, err = cli("export", run[1], run[1], "--to", "perflog")
    assert code == 2
    assert "2 runs in one log" in err


def test_a_place_that_cannot_be_written_is_said(run, cli, tmp_path):
    (tmp_path / "file").touch()
    for form in ("csv", "parquet", "tensorboard"):
        code, out, err = cli("export", run[1], "--to", form, "-o", tmp_path / "file" / "x")
        assert (code, out) == (2, "")
        assert "cannot write" in err
