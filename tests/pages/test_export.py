"""JSON, CSV and OpenMetrics of records."""

import csv
import io
import json

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as collector_families

from exported_runs import write_two_ranks
from fakes import GOLDEN, check_golden
from trainmark.pages.exports.forms import to_index, to_json, to_openmetrics
from trainmark.pages.exports.tables import to_csv
from trainmark.record.record import FigureEntry, Record


def record(**changes):
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    return Record.model_validate_json(text).model_copy(update=changes)


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_json_is_an_array_of_whole_records():
    made = [record(), record(run_id="b")]
    found = json.loads(to_json(made))
    assert [item.pop("verification") for item in found] == ["unverified"] * 2
    assert [Record.model_validate(item) for item in found] == made
    assert json.loads(to_json([])) == []


def test_csv_has_a_row_a_record_with_units_in_the_names():
    (row,) = rows_of(to_csv([record()]))
    assert row["run_id"] == "20261121T081500Z-distilbert_sst2-5eed01"
    assert row["e2e_time_s"] == "46.15"
    assert float(row["p_core_samples_per_s"]) == record().figure("p_core")
    assert row["mem_bytes"] == "35862976921.0"
    assert row["fix_hp"] == "bs=96,lr=0.00015"
    assert row["quality_reached"] == "true"
    assert row["labels"] == "self-reported recipe-written-for-1x8"
    assert row["cause_kind"] == ""
    assert row["extra"] == ""


def test_figures_of_a_case_come_last_with_their_unit():
    made = record()
    own = {"energy": FigureEntry(value=1.5, unit="J/sample")}
    with_own = record(figures=made.figures | own)
    first, second = rows_of(to_csv([made, with_own]))
    assert list(second)[-1] == "energy_J_per_sample"
    assert (first["energy_J_per_sample"], second["energy_J_per_sample"]) == ("", "1.5")


def test_cells_that_a_spreadsheet_would_run_are_text():
    (row,) = rows_of(to_csv([record(case_key='=HYPERLINK("x")\n')]))
    assert row["case_key"] == """'=HYPERLINK("x") """.strip()


def test_the_texts_are_golden(tmp_path):
    check_golden("export_csv.csv", to_csv([record()]))
    check_golden("export_index.jsonl", to_index([record()]))
    check_golden("export_openmetrics.txt", to_openmetrics([write_two_ranks(tmp_path / "run")[0]]))


def test_the_collectors_parsers_read_the_same_gauges():
    text = to_openmetrics([record(), record(run_id='a"\\b')])
    strict, lax = ([
        (sample.labels["run_id"], sample.labels["figure"], sample.value)
        for family in families(text) for sample in family.samples
    ] for families in (text_string_to_metric_families, collector_families))  # fmt: skip
    assert sorted(strict) == sorted(lax)
    known = [name for name, entry in record().figures.items() if entry.value is not None]
    assert len(strict) == 2 * len(known)
