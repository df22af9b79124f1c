"""Tables in common public forms: which cells are figures and which are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainmark.published.importers import files
from trainmark.published.importers.headers import read_header, read_headers
from trainmark.published.importers.labels import divide_into_machines, find_device
from trainmark.published.importers.units import parse_unit

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = Path(__file__).parent / "tables"
GIB = 1024**3


def read_file(name: str) -> files.Imported:
    """Import a file of ``tables/`` beside this test, which is laid out as published pages are."""
    return files.read_files([TABLES / name])


def import_page(import_text: Callable[..., files.Imported], text: str) -> files.Imported:
    """Import the text of a page in Markdown."""
    return import_text(text, "page.md")


def test_units_in_headers_are_used_and_settings_are_no_figures() -> None:
    imported_rows = read_file("precision_and_units.md")
    assert imported_rows.unread == []
    row = imported_rows.rows[0]
    # As line 6 of the file prints them, each with its unit in the header. Figures were measured;
    # ``changes`` are settings, which tell what was trained.
    assert (row.device, row.world_size, row.precision) == ("h100_80gb", 64, "amp_bf16")
    assert {name: reading.value for name, reading in row.figures.items()} == {
        "MFU": 42.57,
        "HFU": 56.76,
        "Model TFLOP": 4.212583e14,
        "p_whole": 32.0,
        "p_train_tokens": 66523.0,
        "token/p/s": 1039.0,
    }
    assert row.changes == {
        "seq_length": "2048",
        "micro_batch_size": "8",
        "grad_accum_steps": "4",
        "global_batch_size": "2048",
        "global_batch_tokens": "4194304",
        "parameters": "64862437376",
    }
    # All rows of the page's two tables were read.
    assert [row.line for row in imported_rows.rows] == [6, 7, 8, 13]


def test_column_for_each_precision_gives_a_row_for_each() -> None:
    imported_rows = read_file("two_precisions.md")
    assert imported_rows.unread == []
    assert len({row.table for row in imported_rows.rows}) == 3
    first, second = imported_rows.rows[:2]
    assert (first.line, first.precision, first.figure("p_whole")) == (9, "fp32", 8.36)
    assert (second.line, second.precision, second.figure("p_whole")) == (9, "amp", 30.08)
    assert (first.device, first.world_size) == ("V100 32G", 1)
    # Line 9 has a batch size of its own for each precision.
    assert (first.changes["micro_batch_size"], second.changes["micro_batch_size"]) == ("4", "8")
    # The last table is of inference, so the name says so. It has one line, with fp32 and amp, and
    # prints the number of fp32 as 28\.32.
    fp32, amp = imported_rows.rows[-2:]
    assert (fp32.line, fp32.precision, amp.line, amp.precision) == (25, "fp32", 25, "amp")
    assert {name: x.value for name, x in fp32.figures.items()} == {"inference Throughput": 28.32}


def test_headers_of_four_lines_are_joined_and_options_name_the_precision() -> None:
    imported_rows = read_file("four_header_lines.md")
    assert imported_rows.unread == []
    # The file has one table of four rows; a header is spread over four lines. The precision is in
    # the command-line options that a cell quotes.
    assert [(row.precision, row.figure("p_whole")) for row in imported_rows.rows] == [
        ("fp32", 93.68),
        ("tf32", 210.53),
        ("fp16", 217.75),
        ("bf16", 224.09),
    ]
    assert imported_rows.rows[0].device == "A100"
    assert imported_rows.rows[0].figure("final_loss") == 2.21


def test_units_in_cells_are_used_if_headers_have_none() -> None:
    imported_rows = read_file("units_in_cells.md")
    row = imported_rows.rows[1]
    assert (row.model, row.device, row.world_size) == ("Llama 2", "A100-SXM4-40GB", 1)
    assert row.figure("mem") == pytest.approx(21.30 * GIB)
    assert row.figures["mem"].raw == "21.30 GB"
    assert (row.figure("Time 1k iterations"), row.figures["Time 1k iterations"].unit) == (
        2.36,
        "min",
    )
    # ``rows[1]`` is line 10 of the file, 7 B of Llama 2 on one GPU; a printed GB counts as a GiB.
    # In lines 11 and 12, the memory is "OOM" and an error message.
    assert [(entry.line, entry.kind, entry.reason.code) for entry in imported_rows.unread] == [
        (11, "row", "row_out_of_memory"),
        (12, "row", "row_without_figures"),
    ]


def test_table_of_benchmarks_by_nodes_is_read() -> None:
    # The headers of the columns are numbers of nodes; a cell has the minutes of a benchmark on so
    # many nodes. The row of llama2 has three such cells, each of which becomes a row.
    imported_rows = read_file("mlperf_summary.csv")
    assert imported_rows.unread == []
    rows = [row for row in imported_rows.rows if row.model == "llama2"]
    assert [(row.nnodes, row.figures["e2e_time"].raw) for row in rows] == [
        (1, "1687.8"),
        (8, "309.6"),
        (64, "126.3"),
    ]
    # The table has minutes, the figure seconds: 1687.8 x 60 = 101,268.
    assert [row.figure("e2e_time") for row in rows] == pytest.approx([101268.0, 18576.0, 7578.0])


def test_counts_in_headers_need_a_unit_and_a_counted_thing(import_text) -> None:
    # Headers that are counts: of nothing named, without a unit, and complete.
    text = "benchmark,1,2,4\nssd,10,6,3\n"
    assert [entry.reason.code for entry in import_text(text, "r.csv").unread] == ["counts_of_what"]
    text = "nodes,1,2,4\nssd,10,6,3\n"
    assert [entry.reason.code for entry in import_text(text, "r.csv").unread] == [
        "counts_without_unit"
    ]
    imported_rows = import_text("Throughput (tokens/s) by GPUs,1,2,4\ngpt,10,19,36\n", "r.csv")
    assert [(row.world_size, row.figure("p_train_tokens")) for row in imported_rows.rows] == [
        (1, 10.0),
        (2, 19.0),
        (4, 36.0),
    ]


def test_text_table_in_a_code_block_is_read() -> None:
    imported_rows = read_file("text_table.md")
    assert imported_rows.unread == []
    row = imported_rows.rows[2]
    # Line 19 is a line of fixed-width text, whose column "perf" names no unit.
    assert (row.line, row.model, row.world_size) == (19, "llm-lora-ddp-gpus", 4)
    assert row.device == "A100 80GB PCIe"
    assert (row.figure("perf"), row.figures["perf"].unit) == (5415.41, "")


def test_flat_json_object_is_read() -> None:
    imported_rows = read_file("flat.jsonl")
    assert imported_rows.unread == []
    row = imported_rows.rows[0]
    # Known keys of the object in line 1; all three lines have one.
    assert (row.model, row.precision, row.configuration) == ("pytorch-bert-base", "fp32", "node-01")
    assert row.figure("sample/p/s") == pytest.approx(279.8794623591105)
    assert row.figure("step_time") == pytest.approx(0.11459167)
    assert len(imported_rows.rows) == 3


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("nopipe.md", [{"MFU": 46.44}]),
        ("brackets.md", [{"token/p/s": 5762.0, "mem": 82.4 * GIB, "step_time": 2.843}]),
        (
            "plain_heads.md",
            [
                {"p_whole": 231.68, "p_train_tokens": 118620.0},
                {"p_whole": 231.68},
                {"p_whole": 231.68},
            ],
        ),
        ("unit_column.csv", [{"token/p/s": 11000.0}]),
    ],
)
def test_plain_english_headers_are_read(name: str, figures: list[dict[str, float]]) -> None:
    imported_rows = read_file(name)
    assert imported_rows.unread == []
    # ``figures`` are those of each row of the file, as printed, but for a memory in bytes instead
    # of GiB and a step time in seconds instead of ms. In unit_column.csv, a column of its own names
    # the unit.
    values = [{key: x.value for key, x in row.figures.items()} for row in imported_rows.rows]
    assert values == [pytest.approx(row) for row in figures]


@pytest.mark.parametrize(
    ("header", "role", "name"),
    [
        ("# GPUs", "devices", ""), ("GradAccum", "setting", "grad_accum_steps"),
        ("acc_steps", "setting", "grad_accum_steps"),
        ("Batch size / GPU (FP32)", "setting", "micro_batch_size"),
        ("MicroBatchSize", "setting", "micro_batch_size"), ("# Accelerators", "devices", ""),
        ("SeqLen (T)", "setting", "seq_length"),
        ("GlobalBatchSize (T)", "setting", "global_batch_tokens"),
        ("NumParams", "setting", "parameters"), ("Training precision", "precision", ""),
        ("Throughput speedup (FP32 - mixed precision)", "derived", None),
        ("Weak scaling - FP32", "derived", None),
        ("sem%", "derived", None), ("Throughput (T/s/GPU)", "figure", "token/p/s"),
        ("Throughput (S/s)", "figure", "p_whole"),
        ("tokens per second per GPU", "figure", "token/p/s"),
        ("training_samples_per_second", "figure", "p_whole"), ("imgs/sec", "figure", "p_whole"),
        ("ms/iter @ step 10", "figure", "step_time"), ("step_time_ms", "figure", "step_time"),
        ("Time to train (hrs)", "figure", "e2e_time"), ("Epoch time (s)", "figure", "Epoch time"),
        ("Peak memory [GiB]", "figure", "mem"), ("GPU memory total (GB)", "figure", "mem_total"),
        ("host memory (GB)", "figure", "host memory"),
        ("Latency 90% [ms]", "figure", "Latency 90%"),
        ("TFLOP/s/GPU", "figure", "model_flops_per_device"), ("max tokens/s", "figure", "max"),
        ("Inferences/Second", "figure", "Inferences/Second"),
        ("Throughput", "figure", "Throughput"),
        ("Top-1 accuracy (%)", "quality", "Top-1 accuracy"),
        ("BBOX mAP - FP16", "quality", "BBOX mAP"),
        ("Memory length", "setting", "Memory length"), ("Mean", "unknown", "Mean"),
    ],
)  # fmt: skip
def test_header_gives_role_and_name_of_its_column(header: str, role: str, name: str | None) -> None:
    # "sem%" is the standard error of the mean, which follows from other figures. Behind a number, T
    # are tokens and S are samples. A largest speed ("max") is not the usual figure of a run, so its
    # column keeps its own name without the unit.
    column = read_header(header)
    assert column.role == role
    if name is not None:  # the name of a column that is derived from others does not matter
        assert column.name == name


def test_throughput_without_unit_is_no_known_figure(import_text) -> None:
    # It is read with the name of its header and no unit; with a unit in its cell, it is
    # ``p_whole``, samples/s (a sample is an image here).
    (row,) = import_page(import_text, "| device | Throughput |\n|---|---|\n| A100 | 412 |\n").rows
    assert row.figures.keys() == {"Throughput"}
    assert (row.figures["Throughput"].value, row.figures["Throughput"].unit) == (412.0, "")
    # A unit in the cell says what it counts.
    (row,) = import_page(
        import_text, "| device | Throughput |\n|---|---|\n| A100 | 412 img/s |\n"
    ).rows
    assert row.figure("p_whole") == 412.0


def test_unit_that_contradicts_its_head_is_refused(import_text) -> None:
    # The column is of samples, but its cell counts tokens, so it is no figure of that column.
    text = "| device | samples/s | MFU |\n|---|---|---|\n| A100 | 412 tokens/s | 40% |\n"
    imported_rows = import_page(import_text, text)
    assert "p_whole" not in imported_rows.rows[0].figures
    assert [(entry.kind, entry.reason.code) for entry in imported_rows.unread] == [
        ("cell", "cell_is_no_number")
    ]


def test_number_or_name_under_the_same_header_is_distinguished() -> None:
    counts, names = read_headers(["GPU", "Devices"], [["8", "2 x A100"], ["16", "1 x A100"]])
    assert (counts.role, names.role) == ("devices", "device")


def test_rows_without_any_figure_are_not_read(import_text, cli, tmp_path) -> None:
    text = "| device | samples/s |\n|---|---|\n| A100 | - |\n| H100 | |\n"
    imported_rows = import_page(import_text, text)
    assert imported_rows.rows == []
    assert "table_without_figures" in [entry.reason.code for entry in imported_rows.unread]
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    assert cli("import", "page.md")[0] == 1  # nothing was read; an audit then has no input
    assert cli("audit", "page.md")[0] == 2


def test_unknown_columns_of_numbers_are_listed(import_text) -> None:
    # No figure or setting is known by the name "goodness".
    imported_rows = import_page(
        import_text, "| device | samples/s | goodness |\n|---|---|---|\n| A100 | 9 | 3 |\n"
    )
    (entry,) = imported_rows.unread
    assert (entry.reason.code, entry.reason.args) == ("columns_not_read", {"columns": "goodness"})
    # As it may be a setting, it is kept as one.
    assert imported_rows.rows[0].changes == {"goodness": "3"}


def test_two_columns_of_one_figure_keep_their_names(import_text) -> None:
    text = "| device | eager (tokens/s) | compiled (tokens/s) |\n|---|---|---|\n| A100 | 9 | 12 |\n"
    (row,) = import_page(import_text, text).rows
    # Both are tokens/s, so one name would lose one of them.
    assert {name: x.value for name, x in row.figures.items()} == {
        "eager (tokens/s)": 9.0,
        "compiled (tokens/s)": 12.0,
    }


@pytest.mark.parametrize(
    ("text", "quantity", "factor", "work", "per_device"),
    [
        ("tokens/s/GPU", "rate", 1.0, "tokens", True),
        ("T/s", "rate", 1.0, "tokens", False),
        ("S/s", "rate", 1.0, "samples", False),
        ("ktok/sec", "rate", 1000.0, "tokens", False),
        ("samples per minute", "rate", 1 / 60, "samples", False),
        ("mol/ms", "rate", 1000.0, "mol", False),
        ("s/it", "step_time", 1.0, "", False),
        ("ms/step", "step_time", 1e-3, "", False),
        ("hrs", "time", 3600.0, "", False),
        ("GiB/GPU", "memory", float(GIB), "", True),
        ("TFLOPS/GPU", "flops", 1e12, "", True),
        ("%", "percent", 1.0, "", False),
        ("TFLOPs/s/GPU", "flops", 1e12, "", True),
        ("GB/s", "other", 1.0, "", False),
        ("ips", "rate", 1.0, "samples", False),
        ("tgs", "rate", 1.0, "tokens", True),
    ],
)
def test_printed_units_are_recognized(
    text: str, quantity: str, factor: float, work: str, per_device: bool
) -> None:
    unit = parse_unit(text)
    # ``factor`` converts a value to the usual unit of its quantity: a rate to 1/s, a time to s, a
    # memory to bytes. ``work`` is what a rate counts. "tgs" are tokens of a GPU a second.
    assert unit is not None
    assert (unit.quantity, unit.work) == (quantity, work)
    assert unit.factor == pytest.approx(factor)
    if quantity in {"rate", "memory", "flops"}:  # others are never given per device
        assert unit.per_device is per_device


@pytest.mark.parametrize(
    "text", ["FP32", "FP32/FP16", "TFLOP/GPU", "T", "2/4", "epochs", "dataset", ""]
)
def test_invalid_units_are_rejected(text: str) -> None:
    assert parse_unit(text) is None


@pytest.mark.parametrize(
    ("heading", "device"),
    [
        ("Training performance: NVIDIA DGX-1 (8x V100 32G)", "V100 32G"),
        ("NVIDIA DGX A100 (8x A100 80GB)", "A100 80GB"),
        ("H100 80GB BF16", "H100 80GB"),
        ("Results of BI-V100", "BI-V100"),
        ("NVIDIA results", None),  # a vendor alone
        ("MTT S5000", None),  # not among the known products
    ],
)
def test_device_in_a_heading_applies_to_its_table(heading: str, device: str | None) -> None:
    assert find_device(heading) == device


@pytest.mark.parametrize(
    ("count", "world"), [(1, (1, 1)), (8, (1, 8)), (64, (8, 8)), (12, (1, 12))]
)
def test_sixteen_devices_and_more_are_grouped_into_machines_of_eight(
    count: int, world: tuple[int, int]
) -> None:
    # ``world`` is (machines, devices of each). With fewer than 16 devices, as with 12, it is one
    # machine.
    assert divide_into_machines(count) == world


def test_folder_without_results_is_listed_as_unread(cli, tmp_path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "notes.md").write_text("no table\n", encoding="utf-8")
    code, _, err = cli("audit", "pages")
    assert code == 2  # there is nothing to audit
    assert "record.json" not in err  # the advice for folders of runs would mislead
    assert "notes.md" in err


def test_json_without_figures_is_listed_with_its_keys_only(cli, tmp_path) -> None:
    (tmp_path / "r.jsonl").write_text('{"node": "n17", "colour": 8642}\n', encoding="utf-8")
    code, out, err = cli("import", "r.jsonl")
    assert code == 1  # nothing was read
    # The keys tell why the object was not read. Its values do not, and may be of any kind.
    assert "colour" in err
    assert not any(value in out + err for value in ("n17", "8642"))
    assert "__init__" not in err  # no names of our own code


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Per-GPU throughput (tokens/s)", "token/p/s"),
        ("Throughput per device (img/s)", "sample/p/s"),
        ("Tokens per sec. (per device)", "token/p/s"),
        ("Samples/sec (total)", "p_whole"),
        ("tok/s/gpu ↑", "token/p/s"),
        ("TPS/GPU", "token/p/s"),
        ("TPS", "TPS"),
        ("train_runtime", "train_time"),
        ("Optimizer step (ms)", "Optimizer step"),
        ("Step (ms)", "step_time"),
    ],
)
def test_variants_of_a_header_give_the_figure_name(header: str, name: str) -> None:
    assert read_header(header).name == name


def test_units_below_headers_and_in_headings_are_read(import_text) -> None:
    text = "| method | Rate | Memory |\n|---|---|---|\n| | tokens/s | GB |\n| ours | 1500 | 30 |\n"
    (row,) = import_page(import_text, text).rows
    assert (row.line, row.figure("p_train_tokens")) == (4, 1500.0)
    assert row.figure("mem") == 30 * GIB
    # The unit is in the heading, the precisions are the columns.
    text = "## Speed (it/s)\n\n| GPU | fp32 | fp16 |\n|---|---|---|\n| A100 | 2.1 | 5.0 |\n"
    rows = import_page(import_text, text).rows
    assert [(row.precision, row.figure("step/s")) for row in rows] == [("fp32", 2.1), ("fp16", 5.0)]


def test_bold_line_is_a_heading_and_devices_may_be_columns(import_text) -> None:
    # The bold line names the unit, samples/s, of the figure ``p_whole``; "vit" is a model.
    text = (
        "**Rate (samples/second)**\n\n| | 1 GPU | 8 GPUs |\n|---|---|---|\n| vit | 700 | 5,400 |\n"
    )
    rows = import_page(import_text, text).rows
    assert [(row.model, row.world_size, row.figure("p_whole")) for row in rows] == [
        ("vit", 1, 700.0),
        ("vit", 8, 5400.0),
    ]


def test_devices_in_a_heading_are_counted(import_text) -> None:
    # The heading is above the table, whose columns name no device.
    text = (
        "# Training on 8xH100 SXM\n\n| Model | tokens/s/GPU |\n|---|---|\n| llama3 8b | 8,012 |\n"
    )
    (row,) = import_page(import_text, text).rows
    assert (row.device, row.world_size) == ("H100 SXM", 8)


@pytest.mark.parametrize(
    ("device", "world"),
    [("2 x A100", (1, 2)), ("32 x DGX A100 80GB", (32, None)), ("2x A3 (h100-80gb-8)", (2, None))],
)
def test_counts_of_devices_and_machines_are_read(
    import_text, device: str, world: tuple[int, int | None]
) -> None:
    # Devices, or machines, such as ``DGX`` and ``A3``. How many devices a machine has is not read
    # from its name.
    (row,) = import_page(import_text, f"| GPU | tokens/s |\n|---|---|\n| {device} | 900 |\n").rows
    assert (row.nnodes, row.nproc) == world


@pytest.mark.parametrize(
    ("header", "count", "nproc"),
    [("GPUs per node", 8, 8), ("GPUs", 16, 8), ("Nodes", 2, None)],
)
def test_column_completes_a_label_that_counts_machines(
    import_text, header: str, count: int, nproc: int | None
) -> None:
    # The label counts two machines of unnamed size. So 16 devices in all are 8 in each; a column
    # that only repeats the number of machines leaves open how many (None).
    text = f"configuration,{header},tokens/s\n2x DGX A100,{count},900\n"
    (row,) = import_text(text, "r.csv").rows
    assert (row.nnodes, row.nproc) == (2, nproc)


def test_row_without_a_name_is_named_by_its_world(import_text) -> None:
    # The row has no column with a device or a label. A world in brackets is machines x devices of
    # each.
    (row,) = import_text("nodes,tokens/s\n2,900\n", "r.csv").rows
    assert row.configuration == "(2 nodes)"
    (row,) = import_text("nodes,GPUs per node,tokens/s\n2,8,900\n", "r.csv").rows
    assert row.configuration == "(2x8)"


def test_comments_above_csv_headers_are_skipped(import_text) -> None:
    (row,) = import_text("# results of May\nmodel;gpus;images/sec\nvit;8;12345.6\n", "r.csv").rows
    assert (row.line, row.world_size, row.figure("p_whole")) == (3, 8, 12345.6)


def test_nested_json_objects_are_read(import_text) -> None:
    # ``p_whole`` is the figure for samples/s, ``p_train_tokens`` the one for tokens/s of all
    # devices.
    text = (
        '{"config": {"model": "bert", "gpus": 8},'
        ' "results": {"throughput": {"value": 231.7, "unit": "samples/s"}, "train_runtime": 361.2}}'
    )
    (row,) = import_text(text, "r.json").rows
    assert (row.model, row.world_size) == ("bert", 8)
    assert {name: x.value for name, x in row.figures.items()} == {
        "p_whole": 231.7,
        "train_time": 361.2,
    }
    # The objects of a list in it have no texts or numbers, so they are no rows.
    for tags in ([{}], [{"ok": True}]):
        (row,) = import_text(
            json.dumps({"model": "gpt", "tokens/s": 5, "tags": tags}), "r.json"
        ).rows
        assert (row.model, row.figure("p_train_tokens")) == ("gpt", 5.0)
    # An object of several results, each under the name of its model.
    text = '{"a": {"tokens/s": 1.5, "gpus": 1}, "b": {"tokens/s": 2.5, "gpus": 2}}'
    rows = import_text(text, "r.json").rows
    assert [(row.model, row.figure("p_train_tokens")) for row in rows] == [("a", 1.5), ("b", 2.5)]


def test_cause_of_skipped_rules_is_named(cli, tmp_path) -> None:
    table = "| model | device | tokens/s/GPU |\n|---|---|---|\n| mine | A100 | 900 |\n"
    (tmp_path / "page.md").write_text(table, encoding="utf-8")
    code, _, err = cli("audit", "page.md")
    assert code == 0
    assert "mine" in err  # an unknown model, for which some rules cannot be applied
    assert "add a column `model`" not in err
    # Without a column of models.
    (tmp_path / "page.md").write_text(table.replace("model", "note"), encoding="utf-8")
    _, _, err = cli("audit", "page.md")
    assert "add a column `model`" in err
