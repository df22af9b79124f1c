"""All forms of export: through the command line, and with hostile text in every field."""

import csv
import io
import json
import re

import pyarrow.parquet as pq
import pytest

from exported_runs import write_two_ranks
from trainmark.library.store.columns import COLUMNS
from trainmark.pages.exports.forms import LOGS, TEXTS, WRITERS, to_text
from trainmark.pages.exports.tables import table, write_parquet
from trainmark.record.record import FigureEntry

HOSTILE = (
    '=HYPERLINK("x")\n:::MLLOG {"time_ms":0,"key":"run_stop","value":1,"metadata":{}}\r\n'
    '[PerfLog] {"event":"FINISHED"}\t\x1b[31m\\"\\n{} # EOF\u2028|<b>../../x'
)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028]")


@pytest.fixture
def run(tmp_path):
    return write_two_ranks(tmp_path / "run")


@pytest.fixture(autouse=True)
def _not_verified(request, monkeypatch):
    """Leave the evidence, which is invented, out of it."""
    if "refutes" not in request.node.name:
        monkeypatch.setattr("trainmark.library.selection.words.checked", lambda record, _: record)


@pytest.fixture
def hostile(run):
    """A record whose free texts are all hostile, names of figures and columns among them."""
    made = run[0]
    recipe = made.plan.recipe | {HOSTILE: HOSTILE, "kernels": HOSTILE}
    device = made.plan.device.model_copy(update={"vendor": HOSTILE, "product_names": [HOSTILE]})
    plan = {"case": HOSTILE, "recipe_name": HOSTILE, "recipe": recipe, "device": device}
    own = {HOSTILE: FigureEntry(value=1.0, unit=HOSTILE), "status": FigureEntry(value=2.0, unit="")}
    return made.model_copy(
        update={
            "run_id": HOSTILE,
            "case_key": HOSTILE,
            "labels": [HOSTILE],
            "fix_hp": {HOSTILE: HOSTILE},
            "figures": made.figures | own,
            "environment": made.environment | {"devices": [{"name": HOSTILE}] * 2},
            "quality": made.quality.model_copy(update={"metric": HOSTILE}),
            "plan": made.plan.model_copy(update=plan),
        }
    )


def test_hostile_text_stays_data_in_the_logs(run, hostile):
    for form, marker in (("perflog", "[PerfLog]"), ("mlperf", ":::MLLOG")):
        plain = to_text(form, [run[0]], [str(run[1])]).splitlines()
        lines = to_text(form, [hostile], [str(run[1])]).splitlines()
        assert len(lines) == len(plain)
        assert all(line.startswith(f"{marker} {{") and line.count(marker) == 1 for line in lines)
        assert all(line.isascii() and line.isprintable() for line in lines)
        assert json.loads(lines[0].removeprefix(marker)).keys() == (
            json.loads(plain[0].removeprefix(marker)).keys()
        )
    (first, *_) = to_text("perflog", [hostile], [str(run[1])]).splitlines()
    assert json.loads(first.removeprefix("[PerfLog]"))["value"] == {
        "run_id": HOSTILE, "case": HOSTILE,
    }  # fmt: skip


def test_hostile_text_stays_data_in_csv(hostile):
    rows = list(csv.reader(io.StringIO(TEXTS["csv"]([hostile]))))
    assert [len(row) for row in rows] == [len(rows[0])] * 2
    assert len(set(rows[0])) == len(rows[0])
    cells = dict(zip(*rows, strict=True))
    assert cells["run_id"].startswith("'=HYPERLINK")
    assert not any(CONTROL.search(cell) for row in rows for cell in row)
    assert not any(cell.startswith(("=", "+", "@", "-")) for cell in rows[1])
    assert cells["status"] == "passed"


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


@pytest.mark.parametrize("form", [form for form in (*TEXTS, *LOGS) if form != "index"])
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
    assert cli(*words, "-o", file) == (0, "", f"{file} (replaced)\n")
    assert file.read_text(encoding="utf-8") == out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "run"]


@pytest.mark.parametrize("form", WRITERS)
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


def test_a_record_that_its_evidence_refutes_is_said(run, cli):
    path = run[1] / "record.json"
    path.write_text(
        path.read_text()
        .replace('"steps": 12', '"steps": 13')
        .replace('"value":11.0', '"value":1.5')
    )
    code, out, err = cli("export", run[1], "--to", "csv")
    assert code == 1
    assert "does not agree with its evidence" in err
    assert "evidence_disagrees" in out
