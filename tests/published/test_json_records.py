"""JSON records of one case, as the public tool and ours write them."""

from __future__ import annotations

import json

import pytest

from trainmark.record.index_record import IndexRecord

INDEX = {
    "log_file": "train.log", "model_name": "nlp_gpt_sp_bs32_fp32_1", "mission_name": "语义表示",
    "direction_id": 1, "run_mode": "sp", "index": 1, "gpu_num": 1, "FINAL_RESULT": 9000,
    "JOB_FAIL_FLAG": 0, "UNIT": "tokens/s",
}  # fmt: skip


def test_record_is_a_row_of_its_line(import_text):
    # ``INDEX`` is a record of the public tool: a job on one device with 9,000 tokens/s.
    text = f"{IndexRecord(**INDEX).to_json()}\n"
    first, row = import_text(text + text, "results").rows
    assert (row.form, first.line, row.line) == ("index", 1, 2)
    assert (row.configuration, row.raw) == ("nlp_gpt_sp_bs32_fp32_1", text.strip())
    # From parts of the model's name: domain, model, mode, batch size, precision, devices.
    assert (row.model, row.case, row.precision) == ("gpt", "gpt_megatron", "fp32")
    assert (row.world_size, row.changes) == (1, {"bs": "32"})
    assert {name: (figure.value, figure.unit) for name, figure in row.figures.items()} == {
        "final_result": (9000.0, "tokens/s"),
    }
    assert row.cells["mission_name"] == "语义表示"


def test_failed_job_has_no_figure(import_text):
    # ``INDEX`` is a record of the public tool, of a job with a result and without a loss. Of a
    # failed job the tool prints 0 as the result.
    failed = INDEX | {"FINAL_RESULT": 0.0, "JOB_FAIL_FLAG": 1, "LOSS_RESULT": 2.5}
    (row,) = import_text(IndexRecord(**failed).to_json(), "file.json").rows
    assert [note.code for note in row.notes] == ["run_not_successful"]
    assert {name: figure.value for name, figure in row.figures.items()} == {
        "final_result": None,
        "final_loss": 2.5,
    }


def test_failed_job_has_no_memory(import_text):
    # ``INDEX`` is a record of the public tool. With the ``index`` 2 its result is a memory; 0 of a
    # failed job is none.
    failed = INDEX | {"index": 2, "UNIT": "MiB", "FINAL_RESULT": 0.0, "JOB_FAIL_FLAG": 1}
    # ``LOSS_RESULT`` is a figure that the row has, so that the row is read.
    imported = import_text(json.dumps(failed | {"LOSS_RESULT": 2.5}), "file.json")
    assert imported.unread == []
    assert imported.rows[0].figure("mem") is None


def test_each_record_of_a_list_has_its_own_text(import_text):
    # ``INDEX`` is a record of the public tool. The third record has a key that such records do not
    # have, so it is not read; its text is kept all the same.
    records = [INDEX, INDEX | {"gpu_num": 8}, INDEX | {"other": 1}]
    imported = import_text(json.dumps(records), "file.json")
    texts = [entry.raw for entry in (*imported.rows, *imported.unread)]
    assert [json.loads(text) for text in texts] == records


@pytest.mark.parametrize(
    ("loss", "figure"), [("6.5E+00", 6.5), (6.5, 6.5), (0, None), ("nan", None), (None, None)]
)
def test_loss_of_the_public_tool_is_text_or_zero(import_text, loss, figure):
    # ``INDEX`` is a record of the public tool, which prints a loss as a text, and 0 if it found
    # none.
    (row,) = import_text(json.dumps(INDEX | {"LOSS_RESULT": loss}), "file.json").rows
    assert row.figure("final_loss") == figure


def test_job_that_the_public_tool_could_not_analyze_has_no_unit(import_text):
    # ``INDEX`` is a record of the public tool, with a result of 9,000 and a unit. For a log without
    # a speed, the tool writes 0, sets the flag of a failure and leaves out the unit.
    failed = INDEX | {"FINAL_RESULT": 0, "JOB_FAIL_FLAG": 1, "LOSS_RESULT": 0}
    del failed["UNIT"]
    (row,) = import_text(json.dumps(failed), "file.json").rows
    assert [note.code for note in row.notes] == ["run_not_successful"]
    assert row.figure("final_result") is None


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("{", ["json_malformed"]),
        (json.dumps(INDEX | {"other": 1}), ["json_malformed"]),
        ('{"a":' * 100_000, ["json_malformed"]),
        (json.dumps(INDEX | {"index": 9}), ["json_malformed"]),
        (json.dumps(INDEX | {"FINAL_RESULT": float("nan")}), ["json_malformed"]),
        (json.dumps(INDEX | {"index": 2, "UNIT": "fortnights"}), ["cell_is_no_number"]),
        ('{"a": 1}\n[]\n', ["table_without_results"]),
        ("", ["file_without_results"]),
    ],
)
def test_unreadable_parts_are_listed(import_text, text, codes):
    # ``INDEX`` is a record of the public tool. As JSON that is cut off or too deep, a record with
    # an unknown key, an unknown kind (``index``) or a result that is no number is malformed as a
    # whole.
    assert [entry.reason.code for entry in import_text(text, "file.json").unread] == codes
