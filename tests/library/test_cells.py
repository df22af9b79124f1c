"""Cells: what each form of a figure is read as, and that nothing else is read as a figure."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.library.importers import cells
from trainmark.library.importers.cells import CellError, columns

GIB = 1024**3


def column(header):
    return columns([header], unknown="quality")[0]


def values(header, cell):
    return {name: found.value for name, found in cells.read(cell, column(header)).items()}


@pytest.mark.parametrize(
    ("header", "cell", "expected"),
    [
        ("e2e_time", "361", {"e2e_time": 361.0}),
        ("e2e_time", " 1,234.5 ", {"e2e_time": 1234.5}),
        ("e2e_time", "1e3", {"e2e_time": 1000.0}),
        ("e2e_time", "２.5 h", {"e2e_time": 9000.0}),
        ("运行时长（s）", "1315.42", {"e2e_time": 1315.42}),
        ("p_whole", "7292588", {"p_whole": 7292588.0}),
        ("性能（samples/s)", "12 samples/s", {"p_whole": 12.0}),
        ("token/p/s", "4017", {"token/p/s": 4017.0}),
        ("throughput", "17.23 * 2048 / 8 = 4410 tokens/s", {"token/p/s": 4410.0}),
        ("mem", "13.9/40.0", {"mem": 13.9 * GIB, "mem_total": 40.0 * GIB}),
        ("mem", "21.6 / 32.0", {"mem": 21.6 * GIB, "mem_total": 32.0 * GIB}),
        ("mem", "13.9／40.0", {"mem": 13.9 * GIB, "mem_total": 40.0 * GIB}),
        ("mem", "512 MiB", {"mem": GIB / 2}),
        ("mem", "512/1024 MB", {"mem": GIB / 2, "mem_total": GIB}),
        ("mem", "1024 M + 2 G", {"mem": 2 * GIB}),
        ("e2e_time (h)", "2", {"e2e_time": 7200.0}),
        ("mem（MB）", "512/1024", {"mem": GIB / 2, "mem_total": GIB}),
        ("MFU(%)", "0.5", {"MFU": 0.5}),
        ("MFU(%)", "/", {"MFU": None}),
        ("e2e_time", "**361**", {"e2e_time": 361.0}),
        ("e2e_time", "`361`", {"e2e_time": 361.0}),
        ("p_core", "待测", {"p_core": None}),
        ("memory", "59.238G", {"mem": 59.238 * GIB}),
        ("memory", "59.23*8G", {"mem": 59.23 * GIB}),
        ("memory", "66.27 * 8 GB", {"mem": 66.27 * GIB}),
        (r"memory", r"46.77\*2 + 36.59\*2 GB", {"mem": 46.77 * GIB}),
        ("mem", "OOM", {"mem": None}),
        ("mem", "/", {"mem": None}),
        ("p_core", "", {"p_core": None}),
        ("p_core", "--", {"p_core": None}),
        ("p_core", "N/A", {"p_core": None}),
        ("p_core", "nan", {"p_core": None}),
        ("MFU", "36.1%", {"MFU": 36.1}),
        ("MFU", "0.035", {"MFU": 100 * 0.035}),
        ("MFU", "41.3％", {"MFU": 41.3}),
        ("acc", "0.915", {"acc": 0.915}),
        ("acc", "68.58%", {"acc": 68.58 * 0.01}),
        ("acc", "82.72", {"acc": 82.72}),
        ("auc", "0.8026/0.802", {"auc": 0.8026, "auc_target": 0.802}),
        ("map_bbox && map_segm", "0.376 &&  0.336", {"map_bbox": 0.376, "map_segm": 0.336}),
        ("map_bbox && map_segm", "/", {"map_bbox": None, "map_segm": None}),
        ("mAP", "0.382 && 0.343", {"mAP": 0.382, "mAP.2": 0.343}),
        ("目标精度", "0.67", {"quality_target": 0.67}),
        ("val_loss", "-5.72", {"val_loss": -5.72}),
        ("lm loss value", "8.53", {"loss": 8.53}),
    ],
)  # fmt: skip
def test_each_form_of_a_cell(header, cell, expected):
    assert values(header, cell) == expected


def test_the_target_of_a_table_has_the_name_of_its_only_quality():
    target, _ = columns(
        ["目标mAP精度(bbox && segm)", "收敛mAP精度(bbox && segm)"], unknown="quality"
    )
    values = {name: found.value for name, found in cells.read("0.38 && 0.34", target).items()}
    assert values == {"map_bbox_target": 0.38, "map_segm_target": 0.34}


@pytest.mark.parametrize(
    ("header", "cell", "code"),
    [
        ("MFU", "25.4%-50.6%", "cell_is_no_number"),
        ("运行时长(s)", "3-4天", "cell_is_no_number"),
        ("e2e_time", "1.2.3", "cell_is_no_number"),
        ("e2e_time", "1,23", "cell_is_no_number"),
        ("e2e_time", "0x10", "cell_is_no_number"),
        ("e2e_time", "1_000", "cell_is_no_number"),
        ("e2e_time", "12 GB", "cell_is_no_number"),
        ("e2e_time", "1e400", "cell_beyond_numbers"),
        ("e2e_time", "Infinity", "cell_is_no_number"),
        ("p_whole (samples/min)", "361", "cell_is_no_number"),
        ("e2e_time (h)", "2 h", "cell_is_no_number"),
        ("e2e_time (1)", "36", "cell_is_no_number"),
        ("e2e_time", "361²", "cell_is_no_number"),
        ("e2e_time", "361①", "cell_is_no_number"),
        ("acc", "68.5/70%", "cell_is_no_number"),
        ("mem", "1/2/3", "cell_is_no_number"),
        ("mem", "2*3*4G", "cell_is_no_number"),
        ("throughput", "17.23 * 2048 / 8 = 9999 tokens/s", "cell_formula_differs"),
        ("throughput", "1 / 0 = 5", "cell_formula_differs"),
        ("map_bbox && map_segm", "0.3", "cell_has_other_count"),
        ("p_whole", "=1+1", "cell_is_no_number"),
        ("mem", "8*59G", "cell_is_no_number"),  # the devices first
        ("mem", "24000", "cell_is_no_number"),  # not GiB
        ("mem", "24000/40000", "cell_is_no_number"),
    ],
)
def test_what_is_no_figure_is_refused_with_a_reason(header, cell, code):
    with pytest.raises(CellError) as fault:
        cells.read(cell, column(header))
    assert fault.value.reason.code == code


@pytest.mark.parametrize(
    ("header", "cell", "how"),
    [
        ("e2e_time", "361", "number"),
        ("e2e_time", "", "empty"),
        ("e2e_time", "/", "not given"),
        ("mem", "OOM", "out of memory"),
        ("MFU", "36.1%", "percent"),
        ("MFU", "0.035", "fraction"),
        ("auc", "0.8026/0.802", "number / target"),
        ("memory", "59.23*8G", "product 59.23*8G"),
        ("throughput", "17.23 * 2048 / 8 = 4410 tokens/s", "result of 17.23 * 2048 / 8"),
    ],
)
def test_a_reading_says_how_it_was_read_and_keeps_its_text(header, cell, how):
    for found in cells.read(cell, column(header)).values():
        assert found.how == how
        assert found.raw == cell


HEADERS = (
    "e2e_time",
    "p_whole",
    "mem",
    "MFU",
    "acc",
    "a && b",
    "throughput",
    "目标精度",
    "Steps数",
)


def read_or_refused(cell, header):
    try:
        return cells.read(cell, column(header))
    except CellError as error:
        return error


@given(header=st.sampled_from(HEADERS), cell=st.text(max_size=40))
def test_any_text_is_read_or_refused(header, cell):
    found = read_or_refused(cell, header)
    if isinstance(found, CellError):
        assert found.reason.code.startswith("cell_")
        return
    assert found
    for reading in found.values():
        assert reading.raw == cell
        assert reading.value is None or math.isfinite(reading.value)
