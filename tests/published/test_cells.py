"""Cells of tables: every form of a figure is read, and nothing else is read as a figure."""

from __future__ import annotations

import pytest

from trainmark.published.importers import cells
from trainmark.published.importers.cells import CellError
from trainmark.published.importers.headers import read_header, read_headers

GIB = 1024**3


def make_column(header):
    """Return what a column is, as its header says: a figure and its unit, a setting and so on."""
    return read_header(header)


def read_values(header, cell):
    """Return the values of a cell's figures by name; ``header`` is that of its column."""
    return {
        name: figure.value for name, figure in cells.read_cell(cell, make_column(header)).items()
    }


@pytest.mark.parametrize(
    ("header", "cell", "expected"),
    [
        ("e2e_time", "361", {"e2e_time": 361.0}),
        ("e2e_time", " 1,234.5 ", {"e2e_time": 1234.5}),
        ("e2e_time", "２.5 h", {"e2e_time": 9000.0}),  # a wide digit
        ("运行时长（s）", "1315.42", {"e2e_time": 1315.42}),
        ("性能（samples/s)", "12 samples/s", {"p_whole": 12.0}),
        ("throughput", "17.23 * 2048 / 8 = 4410 tokens/s", {"token/p/s": 4410.0}),
        ("mem", "13.9/40.0", {"mem": 13.9 * GIB, "mem_total": 40.0 * GIB}),
        ("mem", "13.9／40.0", {"mem": 13.9 * GIB, "mem_total": 40.0 * GIB}),
        ("mem", "512 MiB", {"mem": GIB / 2}),
        ("mem", "1024 M + 2 G", {"mem": 2 * GIB}),
        ("e2e_time (h)", "2", {"e2e_time": 7200.0}),
        ("mem（MB）", "512/1024", {"mem": GIB / 2, "mem_total": GIB}),
        ("MFU(%)", "0.5", {"MFU": 0.5}),
        # The cell repeats the unit of the header, or has another one, which then counts.
        ("MFU(%)", "45%", {"MFU": 45.0}),
        ("mem (GB)", "59 GB", {"mem": 59 * GIB}),
        ("mem (MB)", "13.9/40.0 G", {"mem": 13.9 * GIB, "mem_total": 40.0 * GIB}),
        ("acc (%)", "75%", {"acc": 0.75}),
        ("acc (%)", "75/50", {"acc": 0.75, "acc_target": 0.5}),
        ("acc (%)", "75%/50%", {"acc": 0.75, "acc_target": 0.5}),
        ("e2e_time", "**361**", {"e2e_time": 361.0}),
        ("memory", "59.23*8G", {"mem": 59.23 * GIB}),  # of each of 8 devices
        ("memory", "66.27 * 8 GB", {"mem": 66.27 * GIB}),
        (r"memory", r"46.77\*2 + 36.59\*2 GB", {"mem": 46.77 * GIB}),  # the largest
        ("mem", "OOM", {"mem": None}),
        ("p_core", "", {"p_core": None}),
        ("MFU", "36.1%", {"MFU": 36.1}),
        ("MFU", "0.035", {"MFU": 100 * 0.035}),  # a share
        ("MFU", "41.3％", {"MFU": 41.3}),
        ("acc", "0.915", {"acc": 0.915}),
        ("acc", "68.58%", {"acc": 68.58 * 0.01}),
        ("auc", "0.8026/0.802", {"auc": 0.8026, "auc_target": 0.802}),
        ("目标精度", "0.67", {"quality_target": 0.67}),
    ],
)
def test_every_form_of_a_cell_is_read(header, cell, expected):
    # Values are in the usual unit of a figure: times in s, memory in bytes (a "G" is a GiB), an MFU
    # in percent, an accuracy as a fraction. What follows a slash is the total or the target.
    assert read_values(header, cell) == expected


def test_target_of_a_table_has_the_name_of_its_only_quality():
    target, _ = read_headers(["目标精度", "auc"])
    assert cells.read_cell("0.38", target)["auc_target"].value == 0.38


@pytest.mark.parametrize(
    ("header", "cell", "code"),
    [
        ("MFU", "25.4%-50.6%", "cell_is_no_number"),  # a range
        ("e2e_time", "12 GB", "cell_is_no_number"),  # a unit of memory in a column of times
        ("e2e_time", "361²", "cell_is_no_number"),  # a power, or a mark of a footnote
        ("mem", "2*3*4G", "cell_is_no_number"),  # a product of three numbers, not of two
        ("mAP", "0.382 && 0.343", "cell_is_no_number"),  # of two metrics
        ("mem", "24000", "cell_is_no_number"),  # without a unit it is GiB: more than a device has
    ],
)
def test_invalid_figure_is_refused_with_reason(header, cell, code):
    with pytest.raises(CellError) as fault:
        cells.read_cell(cell, make_column(header))
    assert fault.value.reason.code == code


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["0,125", "12,5", "1,234"], [0.125, 12.5, 1.234]),  # "12,5" groups no thousands
        (["1,234", "12,500"], [1234.0, 12500.0]),  # all may group thousands
        (["1,234", "0.5"], [1234.0, 0.5]),  # the point is the decimal one
    ],
)
def test_commas_are_decimal_if_other_texts_of_the_column_show_it(texts, numbers):
    # 12,5 can only be decimal, 12,500 and 0.5 show that a comma groups thousands.
    (marked_column,) = cells.mark_decimal_commas(
        [make_column("p_core")], [[cell] for cell in texts]
    )
    assert [cells.read_cell(cell, marked_column)["p_core"].value for cell in texts] == numbers


@pytest.mark.parametrize("others", [["0,250"], ["12.5"], []])
def test_comma_that_may_be_either_is_refused(others):
    # "0," groups no thousands, but no other number of the column shows that its commas are decimal:
    # "0,250" is as unclear, and "12.5" has a decimal point.
    (marked_column,) = cells.mark_decimal_commas(
        [make_column("p_core")], [[cell] for cell in ["0,125", *others]]
    )
    with pytest.raises(CellError):
        cells.read_cell("0,125", marked_column)


@pytest.mark.parametrize(
    ("header", "name", "unit"),
    [
        ("延迟（ms）", "延迟", "ms"),
        ("Power (W)", "Power", "W"),
        ("scan (rows/s)", "scan", "rows/s"),
    ],
)
def test_unknown_column_with_a_unit_is_a_figure_of_it(header, name, unit):
    unknown_column = make_column(header)
    assert (unknown_column.role, unknown_column.name, unknown_column.unit) == ("figure", name, unit)
    assert cells.read_cell(f"12.5 {unit}", unknown_column)[name].value == 12.5
    # A known quality stays one, whether a benchmark or a unit is in the brackets.
    assert make_column("acc(MMLU)").role == make_column("acc (%)").role == "quality"
