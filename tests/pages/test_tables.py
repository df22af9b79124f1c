"""The performance table, and the tables of the four founding pages cell by cell."""

from pathlib import Path

import pytest

from support.comparison_records import read_golden_record
from support.document_texts import translate_headers, translate_rows
from trainmark import cases
from trainmark.errors import RecordError
from trainmark.pages.cells import escape_markdown, format_memory
from trainmark.pages.sections.performance_table import (
    PERFORMANCE,
    QUALITY,
    build_performance_table,
    format_precision,
    list_columns,
)
from trainmark.pages.sections.published_rows import build_reference_table
from trainmark.pages.texts import describe_configuration, translate
from trainmark.plan import reference
from trainmark.plan.plan import PlannedCase

GOLDEN = Path(__file__).parents[1] / "golden"
GIB = 1024**3
SPEED = ["precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core"]
# The cells of the founding pages' tables: configuration, device, world, then the columns.
PAGES_OF_FOUNDING_DOCUMENTS = {
    "distilbert_sst2": (
        [*SPEED, "acc", "mem"],
        [
            (
                "A100单机8卡（1x8）",
                "1x8",
                "fp32",
                "/",
                "361",
                "1764.0",
                "1861.9",
                "1942.6",
                "0.915",
                "13.9/40.0",
            ),
            (
                "A100单机8卡（1x8）",
                "1x8",
                "fp32",
                "bs=96",
                "334.7",
                "2019.1",
                "2135.8",
                "2181.0",
                "0.908",
                "33.4/40.0",
            ),
            (
                "A100单机单卡（1x1）",
                "1x1",
                "fp32",
                "bs=96,lr=0.00015",
                "720.8",
                "283.7",
                "286.1",
                "287.9",
                "0.912",
                "32.7/40.0",
            ),
            (
                "A100两机8卡（2x8）",
                "2x8",
                "fp32",
                "bs=96",
                "58.9",
                "3531.1",
                "3892.3",
                "4058.3",
                "0.911",
                "32.9/40.0",
            ),
        ],
    ),
    "glm_superglue": (
        [*SPEED, "acc", "mem"],
        [
            (
                "BI-V100单机8卡（1x8）",
                "1x8",
                "fp32",
                "bs=8, lr=1e-05",
                "",
                "",
                "",
                "",
                "0.806",
                "29.7/32.0",
            ),
            (
                "BI-V100单机单卡（1x1）",
                "1x1",
                "fp32",
                "bs=8, lr=1e-05",
                "",
                "",
                "",
                "",
                "",
                "28.8/32.0",
            ),
            (
                "BI-V100两机8卡（2x8）",
                "2x8",
                "fp32",
                "bs=8, lr=1e-05",
                "",
                "",
                "",
                "",
                "",
                "28.3/32.0",
            ),
        ],
    ),
    "llama2_7b_lora": (
        ["fix_hp", "token/p/s", "loss", "mem", "acc(MMLU)", "MFU"],
        [
            ("A100单机单卡（1x1）", "1x1", "/", "2788", "1.64", "37.3/40", "0.38", "/"),
            (
                "A100单机单卡（1x1）",
                "1x1",
                "数据精度=fp16, local_batchsize=4",
                "4017",
                "1.77",
                "32.0/40",
                "0.43",
                "36.1%",
            ),
        ],
    ),
    "dlrm_criteo": (
        [*SPEED, "auc", "mem"],
        [
            (
                "A100单机单卡(1x1)",
                "1x1",
                "amp",
                "/",
                "1152",
                "7292588",
                "7466400",
                "8493416",
                "0.8026/0.802",
                "20.5/40.0",
            ),
            (
                "A100单机8卡(1x8)",
                "1x8",
                "amp",
                "/",
                "3485",
                "19331640",
                "19744146",
                "23773543",
                "0.8024/0.802",
                "9.8/40.0",
            ),
            (
                "A100两机8卡(2x8)",
                "2x8",
                "amp",
                "/",
                "4779",
                "28173936",
                "29432923",
                "34934809",
                "0.8025/0.802",
                "7.1/40.0",
            ),
            (
                "A100单机8卡(1x8)",
                "1x8",
                "amp",
                "bs=2097152",
                "/",
                "106141201",
                "110380548",
                "145088266",
                "/",
                "33.4/40.0",
            ),
            (
                "A100单机单卡(1x1)",
                "1x1",
                "amp",
                "bs=262144",
                "/",
                "7502493",
                "7655769",
                "9036591",
                "/",
                "29.3/40.0",
            ),
            (
                "A100两机8卡(2x8)",
                "2x8",
                "amp",
                "bs=2752512",
                "/",
                "71511910",
                "72766954",
                "80541553",
                "/",
                "23.9/40.0",
            ),
        ],
    ),
}


@pytest.mark.parametrize("case", PAGES_OF_FOUNDING_DOCUMENTS)
def test_a_founding_page_equals_our_table_cell_by_cell(case):
    # The page of results from which the reference rows of the case were copied. It is once more in
    # ``PAGES_OF_FOUNDING_DOCUMENTS``: columns, then the rows, each of configuration, world, cells.
    columns, printed = PAGES_OF_FOUNDING_DOCUMENTS[case]
    table = build_reference_table(reference.read_references(case))
    assert translate_headers(table, "zh") == ["配置", *columns]
    # Without the world (row[1]), which the page prints in the configuration.
    assert translate_rows(table, "zh") == [(row[0], *row[2:]) for row in printed]
    # None of the published cells needs escaping: what Markdown shows is what was printed.
    assert all(escape_markdown(cell) == cell for row in translate_rows(table, "zh") for cell in row)


def test_a_record_with_a_published_rows_values_prints_that_row():
    # The golden record gets the values of the second published row of its case: A100, 1x8, fp32, a
    # batch size of 96, and its figures with more digits than the page prints. Without the devices
    # that its ranks reported, the planned name of the device is shown, "A100".
    record = read_golden_record()
    plan = record.plan.model_copy(
        update={
            "nproc": 8,
            "device": record.plan.device.model_copy(update={"product_names": ["A100"]}),
            "recipe": record.plan.recipe | {"precision": "fp32"},
            "fix_hp": {"micro_batch_size": 96},
        }
    )
    record = read_golden_record(
        plan=plan,
        environment=record.environment | {"devices": []},
        figures=record.figures
        | {
            name: record.figures[name].model_copy(update={"value": value})
            for name, value in (
                ("e2e_time", 334.72),
                ("p_whole", 2019.08),
                ("p_train", 2135.81),
                ("p_core", 2180.96),
                ("mem", 33.4 * GIB),
                ("mem_total", 40.0 * GIB),
            )
        },
        quality=record.quality.model_copy(update={"value": 0.908, "target": None}),
    )
    (row,) = translate_rows(build_performance_table([record]), "zh")
    # Each page is a tuple of its columns and its printed rows; this is the second row.
    printed = PAGES_OF_FOUNDING_DOCUMENTS["distilbert_sst2"][1][1]
    # Without the world, which the page prints in the configuration.
    assert row == (printed[0], *printed[2:])
    (row,) = translate_rows(build_performance_table([record]))
    assert row[0] == "A100 1 node x 8 (1x8)"


def read_about(case):
    """Return what a plan holds of a case for its pages, such as titles and names of precisions."""
    return PlannedCase.from_case(cases.load(case))


def test_only_a_published_name_replaces_a_precision():
    # ``read_about(case)`` has what the pages say of a case, with its names of precisions.
    record = read_golden_record()

    def format_label(case, precision):
        """Return the cell of a run of ``case`` in ``precision``."""
        recipe = record.plan.recipe | {"precision": precision}
        plan = record.plan.model_copy(
            update={"case": case, "about": read_about(case), "recipe": recipe}
        )
        return format_precision(read_golden_record(plan=plan))

    # The pages of these cases print amp for fp16, but bf16 as it is; gpt_megatron has no such name.
    assert format_label("dlrm_criteo", "fp16") == format_label("glm_superglue", "fp16") == "amp"
    assert format_label("dlrm_criteo", "bf16") == "bf16"
    assert format_label("gpt_megatron", "fp16") == "fp16"


FINE_TUNING = ("fix_hp", "token/p/s", "loss", "mem", QUALITY, "MFU")


def test_fine_tuning_page_has_other_columns():
    record = read_golden_record()
    # The golden record of DistilBERT, but with the columns of the page of another case, one of
    # fine-tuning. A founding page is one that our tables follow; its first part is its columns.
    other_references = record.plan.about.references.model_copy(
        update={"columns": PAGES_OF_FOUNDING_DOCUMENTS["llama2_7b_lora"][0]}
    )
    new_about = record.plan.about.model_copy(update={"references": other_references})
    record = read_golden_record(plan=record.plan.model_copy(update={"about": new_about}))
    table = build_performance_table([record])
    assert translate_headers(table) == [
        "configuration",
        "fix_hp",
        "token/p/s",
        "loss",
        "mem",
        "acc(MMLU)",
        "MFU",
    ]
    # The figures of the golden record in these columns, behind configuration and fix_hp.
    assert translate_rows(table)[0][2:] == ("5714.5", "0.333", "33.4/40.0", "0.9117/0.91", "31.6%")


def test_the_references_choose_the_column_set():
    """``FINE_TUNING`` are the columns of the published page of llama2_7b_lora.

    ``PERFORMANCE`` are those of dlrm_criteo, and of a case without published rows.
    """

    def make_references(*columns):
        return reference.References(columns=columns)

    assert list_columns(make_references()) == PERFORMANCE
    # The first part of a founding page is its columns.
    assert (
        list_columns(make_references(*PAGES_OF_FOUNDING_DOCUMENTS["llama2_7b_lora"][0]))
        == FINE_TUNING
    )
    assert (
        list_columns(make_references(*PAGES_OF_FOUNDING_DOCUMENTS["dlrm_criteo"][0])) == PERFORMANCE
    )
    # One header may be none of our columns, that of the quality, such as "acc". Here "p_hole" is a
    # second one.
    with pytest.raises(RecordError, match="acc, p_hole"):
        list_columns(make_references("acc", "p_hole"))


def test_configuration_label_has_ranks_and_nodes():
    # X is the name of the device. The founding pages write 单 for one and 两 for two in Chinese.
    for nnodes, nproc, en, zh in (
        (1, 1, "X 1 node x 1 (1x1)", "X单机单卡（1x1）"),
        (1, 8, "X 1 node x 8 (1x8)", "X单机8卡（1x8）"),
        (2, 8, "X 2 nodes x 8 (2x8)", "X两机8卡（2x8）"),
        (4, 8, "X 4 nodes x 8 (4x8)", "X4机8卡（4x8）"),
    ):
        name = describe_configuration("X", nnodes=nnodes, nproc=nproc)
        assert (translate(name, "en"), translate(name, "zh")) == (en, zh)


def test_only_the_published_form_shows_slashes_for_missing_values():
    record = read_golden_record()
    figures = record.figures | {
        name: record.figures[name].model_copy(update={"value": None}) for name in ("p_core", "mem")
    }
    record = read_golden_record(figures=figures, plan=record.plan.model_copy(update={"fix_hp": {}}))
    table = build_performance_table([record])
    # This table has the form of the published pages. ``fix_hp``: no changed hyperparameters; the
    # figures ``p_core`` and ``mem`` were set to None.
    row_by_header = dict(zip(translate_headers(table), translate_rows(table)[0], strict=True))
    assert (row_by_header["fix_hp"], row_by_header["p_core"], row_by_header["mem"]) == (
        "/",
        "/",
        "/",
    )
    # Everywhere else, a dash.
    assert (translate(None, "en"), format_memory(used_bytes=None, total_bytes=None)) == ("–", "–")
