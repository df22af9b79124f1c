"""CSV, JSON records of one case, and rows that were written."""

from __future__ import annotations

import json

import pytest

from fakes import GOLDEN
from trainmark.library.importers import files
from trainmark.pages.exports.tables import to_csv
from trainmark.record.index_record import IndexRecord
from trainmark.record.record import Record
from trainmark.record.work import printed_work

INDEX = {
    "log_file": "train.log", "model_name": "nlp_gpt_sp_bs32_fp32_1", "mission_name": "语义表示",
    "direction_id": 1, "run_mode": "sp", "index": 1, "gpu_num": 1, "FINAL_RESULT": 9000,
    "JOB_FAIL_FLAG": 0, "UNIT": "tokens/s",
}  # fmt: skip


@pytest.fixture
def imported(tmp_path):
    def read(text, name="file.json"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return files.read([path])

    return read


def test_our_csv_gives_back_the_figures_of_its_records(imported):
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    record = Record.model_validate_json(text)
    found = imported(to_csv([record, record]), "results.csv")
    row, again = found.rows
    assert found.unread == []
    assert (row.line, again.line, row.form) == (2, 3, "csv")
    assert (row.case, row.device, row.nnodes, row.nproc, row.vendor) == (
        "distilbert_sst2", "NVIDIA A100-SXM4-40GB", 1, 2, "nvidia",
    )  # fmt: skip
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
def test_a_row_has_the_status_and_the_data_that_it_tells(imported, status, codes):
    text = f"status,data_origin,nnodes,nproc,p_whole\n{status},generated,1,2,9\n"
    (row,) = imported(text, "r.csv").rows
    assert [note.code for note in row.notes] == codes
    assert printed_work(row)["data"] == "generated"
    (other,) = imported(text.replace("data_origin", "else"), "r.csv").rows
    assert printed_work(other)["data"] == "real"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_with_named_columns(imported, delimiter):
    text = "device,nnodes,nproc,p_whole,note\nX100,2,8,12.5,mine\nX100,1,1,n/a,,\n\nX100,8,1,7\n"
    found = imported(text.replace(",", delimiter), "r.csv")
    row, second = found.rows
    assert (row.configuration, row.world_size, row.figure("p_whole")) == ("X100 (2x8)", 16, 12.5)
    assert row.cells["note"] == "mine"
    assert second.figures["p_whole"].value is None
    assert [(entry.line, entry.reason.code) for entry in found.unread] == [
        (5, "row_has_other_cells")
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "table_without_results"),
        ("a,b\n1,2\n", "table_without_results"),
        ('p_whole,a\n1,"open\n2,b\n', "csv_malformed"),
        ("p_whole;device\n12,345;x\n1.234;y\n", "csv_with_decimal_commas"),
        ("p_whole,device\n1,234,x\n", "row_has_other_cells"),
    ],
)
def test_csv_that_cannot_be_read(imported, text, code):
    found = imported(text, "r.csv")
    assert (found.rows, [entry.reason.code for entry in found.unread]) == ([], [code])


def test_a_json_record_of_one_case(imported):
    (row,) = imported(json.dumps(INDEX)).rows
    assert (row.form, row.line, row.configuration) == ("index", 1, "nlp_gpt_sp_bs32_fp32_1")
    assert (row.model, row.case, row.precision, row.world_size) == (
        "gpt",
        "gpt_megatron",
        "fp32",
        1,
    )
    assert row.changes == {"bs": "32"}
    assert {name: (found.value, found.unit) for name, found in row.figures.items()} == {
        "final_result": (9000.0, "tokens/s"),
    }  # fmt: skip
    assert row.cells["mission_name"] == "语义表示"


def test_a_record_keeps_its_line_and_its_text_in_any_layout(imported):
    text = f"[\n  {json.dumps(INDEX)},\n {json.dumps(INDEX, indent=1)}\n]\n"
    found = imported(text, "a.json")
    assert found.unread == []
    assert [row.line for row in found.rows] == [2, 3]
    assert [row.raw for row in found.rows] == [json.dumps(INDEX), json.dumps(INDEX, indent=1)]
    assert {row.figure("final_result") for row in found.rows} == {9000.0}


def test_a_failed_job_has_no_figure(imported):
    failed = INDEX | {"FINAL_RESULT": 0.0, "JOB_FAIL_FLAG": 1, "LOSS_RESULT": 2.5}
    (row,) = imported(IndexRecord(**failed).to_json()).rows
    assert [note.code for note in row.notes] == ["run_not_successful"]
    assert {name: found.value for name, found in row.figures.items()} == {
        "final_result": None, "final_loss": 2.5,
    }  # fmt: skip


def test_behind_a_malformed_record_the_next_is_read(imported):
    found = imported('{"a": 1,\n' + json.dumps(INDEX) + '\n{"b": [\n1,\n')
    assert [row.line for row in found.rows] == [2]
    assert [entry.line for entry in found.unread] == [1, 3]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "json_malformed"),
        ('{"a":' * 100_000, "json_malformed"),
        (json.dumps(INDEX | {"index": 9}), "json_malformed"),
        (json.dumps(INDEX | {"index": 2, "UNIT": "fortnights"}), "cell_is_no_number"),
        (json.dumps({"rows": [1], "unread": []}), "json_malformed"),
        ("[]", "file_without_results"),
        ('{"a": 1}', "json_of_unknown_form"),
    ],
)
def test_json_that_cannot_be_read(imported, text, code):
    assert [entry.reason.code for entry in imported(text).unread] == [code]


def test_a_record_of_ours_is_left_to_those_who_read_it(imported):
    text = (GOLDEN / "record_toy.json").read_text(encoding="utf-8")
    found = imported(text)
    assert (found.rows, [entry.reason.code for entry in found.unread]) == ([], ["file_is_record"])


LOG = '[PerfLog] {"event": "FINISHED", "value": {"e2e_time": 1.5}, "metadata": {}}\n'


@pytest.mark.parametrize(
    ("text", "name"),
    [(json.dumps(INDEX) + "\n{}\n", "a.jsonl"), ("begin\n" * 20_000 + LOG, "a.txt")],
)
def test_written_rows_are_read_again(imported, text, name):
    first = imported(text, name)
    assert len(first.rows) == 1
    document = json.dumps(first.document(), ensure_ascii=False)
    again = imported(document, "rows.json")
    assert again == first
