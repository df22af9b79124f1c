"""The table of published peaks, and how devices find their row."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from trainmark.devices import peaks

# A copy of the project's data set of peaks as of 2026-11-20.
DATA_SET = Path(__file__).parent / "peaks" / "peaks.csv"
ROWS: list[dict[str, Any]] = peaks.read_table()["peak"]
NAMES = [name for row in ROWS for name in row["names"]]
OWN_KEYS = {  # of a row's description; all others are figures
    "accelerator",
    "names",
    "compute_units",
    "also",
    "evidence",
    "note",
    "source",
    "date",
    "exceptions",
    "product",
    "form",
}


# The data set has the rates of the vector units there, which matmuls in fp32 do not use.
CORRECTED = {("MI250-GCD", "fp32_tflops"): 45.3, ("MI250X-GCD", "fp32_tflops"): 47.9}


def test_documented_table_equals_the_data_set() -> None:
    """Each row of ``peaks.toml`` has the figures of the data set, or those of ``CORRECTED``.

    ``ROWS`` are the rows of ``peaks.toml``, one for each product, in the order of the data set.
    ``OWN_KEYS`` are the columns that describe a row; all others are figures. The data set has 35
    products.
    """
    with DATA_SET.open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert len(listed) == len(ROWS) == 35
    for listed_row, row in zip(listed, ROWS, strict=True):
        words = {name: text for name, text in listed_row.items() if text}  # empty: not known
        figures = {
            name: CORRECTED.get((words["accelerator"], name), float(words[name]))
            for name in words.keys() - OWN_KEYS
        }
        assert figures == {name: row[name] for name in row.keys() - OWN_KEYS}
        assert words["accelerator"] == row["accelerator"]
        assert (words["evidence"], words.get("note")) == (row["evidence"], row.get("note"))


def test_every_figure_has_source_date_and_evidence() -> None:
    data = peaks.read_table()
    for row in ROWS:
        for figure in row.keys() - OWN_KEYS:
            provenance = peaks.get_provenance(data, row, figure)
            assert provenance["source"]
            # The data set has one date; corrected figures have that of their correction.
            corrected = (row["accelerator"], figure) in CORRECTED
            assert provenance["date"] == ("2026-11-28" if corrected else "2026-11-20")
            assert provenance["evidence"] in {"A", "B", "C", "unverified"}
        # ``also``: the sources of precisions that the product has, but whose peak is not known.
        for source in row.get("also", {}).values():
            assert re.fullmatch(r"https://\S+, (press, )?2026-\d\d-\d\d", source)
        # Figures whose evidence differs from that of their row.
        for exception in row.get("exceptions", ()):
            assert set(exception["figures"]) <= row.keys() - OWN_KEYS
            assert exception.keys() > {"figures"}  # it says what is different
            assert exception.get("evidence") != row["evidence"]


@pytest.mark.parametrize(
    # Grades from "A" (the vendor's own document) on, as ``peaks.toml`` states them for the figure.
    ("product", "precision", "evidence"),
    [
        ("Tesla V100-SXM2-16GB", "fp16", "A"),
        ("Tesla V100-SXM2-16GB", "fp32", "C"),
        ("NVIDIA H100 80GB HBM3", "bf16", "A"),
        ("NVIDIA H100 80GB HBM3", "tf32", "B"),
        ("NVIDIA B200", "bf16", "A"),
        ("NVIDIA B200", "fp32", "unverified"),
        ("NVIDIA B300 SXM6 AC", "fp32", "unverified"),
    ],
)
def test_figure_with_other_evidence_than_its_row_has_its_own_provenance(
    product: str, precision: Any, evidence: str
) -> None:
    peak = peaks.find_peak(product, precision)
    assert peak is not None
    assert (peak.evidence, peak.precision) == (evidence, precision)


@pytest.mark.parametrize(
    ("product", "units", "clock_ghz", "flop_a_clock"),
    [
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 104, 1.7, 256),
        ("AMD Instinct MI250X", 110, 1.7, 256),
        ("AMD Instinct MI300X", 304, 2.1, 256),
        ("AMD Instinct MI325X", 304, 2.1, 256),
        ("AMD Instinct MI350X", 256, 2.2, 256),
        ("AMD Instinct MI355X", 256, 2.4, 256),
    ],
)
def test_peaks_of_amd_in_fp32_are_those_of_the_matrix_units(
    product: str, units: int, clock_ghz: float, flop_a_clock: int
) -> None:
    """Matmuls use the matrix units, which are faster than the vector units.

    Args:
        units: compute units of the product.
        flop_a_clock: FLOP of the matrix units of one compute unit in a clock cycle.
    """
    peak = peaks.find_peak(product, "fp32")
    assert peak is not None
    # The vendor rounds the published figures.
    assert peak.per_second == pytest.approx(units * clock_ghz * 1e9 * flop_a_clock, rel=2e-3)


def test_no_name_belongs_to_two_rows() -> None:
    # ``NAMES`` are the 31 names under which drivers report the products of the table; a row may
    # have several, or none.
    # No two rows share a name, not even if the case and the vendor's name are ignored.
    folded = [name.lower().removeprefix("nvidia ").removeprefix("amd ") for name in NAMES]
    alike = {name for name in folded if folded.count(name) > 1}
    assert alike == {"a100-sxm4-40gb"}  # both spellings come from one row: an old and a new driver
    assert len(NAMES) == len(set(NAMES)) == 31


@pytest.mark.parametrize("name", NAMES)
def test_only_the_exact_name_of_a_row_finds_it(name: str) -> None:
    # ``NAMES`` are all names in the rows of ``peaks.toml`` (``ROWS``): those that drivers report.
    (row,) = [row for row in ROWS if name in row["names"]]
    # Any precision whose peak the row has.
    precision: Any = next(key.removesuffix("_tflops") for key in row if key.endswith("_tflops"))
    peak = peaks.find_peak(name, precision)
    assert peak is not None
    assert peak.accelerator == row["accelerator"]
    for other in (f"{name} ", f" {name}", f"{name} MIG 1g.10gb", f"{name}-MIG", name.swapcase()):
        assert peaks.find_peak(other, precision) is None
        assert peaks.find_peak(other, precision=None) is None  # None: the memory's bandwidth


def test_partition_is_not_matched_as_the_whole_device() -> None:
    # ``peaks.toml`` states 304 compute units for the whole MI300X. ``name_partition`` returns the
    # name of a device that has so many units.
    assert peaks.name_partition("AMD Instinct MI300X", 304) == "AMD Instinct MI300X"
    part = peaks.name_partition("AMD Instinct MI300X", 38)  # compute units
    assert part == "AMD Instinct MI300X partition, 38 of 304 units"
    assert peaks.find_peak(part, "bf16") is None
    # Slices of other vendors have names of their own. So a card of theirs with fewer units than
    # its chip is a whole device.
    assert peaks.name_partition("NVIDIA H100 PCIe", 1) == "NVIDIA H100 PCIe"


def test_bandwidth_has_its_source_too() -> None:
    # None: the peak of the memory's bandwidth, in bytes per second. The table has 3.35 TB/s and the
    # grade "B" of its evidence.
    peak = peaks.find_peak("NVIDIA H100 80GB HBM3", precision=None)
    assert peak is not None
    assert (peak.per_second, peak.evidence) == (3.35e12, "B")
    assert peak.source
    assert peak.date == "2026-11-20"
    # The peaks of its precisions are known, its bandwidth is not.
    assert peaks.find_peak("Ascend910B3", precision=None) is None


@pytest.mark.parametrize(
    ("name", "accelerators"),
    [
        ("A100", ["A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIe-80GB"]),
        ("a100_80gb", ["A100-SXM4-80GB", "A100-PCIe-80GB"]),
        ("H100 SXM", ["H100-SXM5-80GB"]),
        ("NVIDIA H100 PCIe", ["H100-PCIe-80GB"]),
        ("DGX A100 40GB", ["A100-SXM4-40GB"]),
        ("V100", ["V100-SXM2-16GB", "V100-SXM2-32GB", "V100-PCIe-16GB"]),
        ("BI-V100", ["BI-V100-32GB"]),
        ("MTT S4000", ["MTT-S4000"]),
        ("Ascend 910B3", ["Ascend-910B3"]),
        ("TPUv4", ["TPUv4"]),
        ("GB200", ["GB200"]),
    ],
)
def test_name_in_published_tables_lists_matching_products(
    name: str, accelerators: list[str]
) -> None:
    # A full product name means its row alone. Any other name means all products whose own name
    # ("A100") is in it, of these only the longest (a BI-V100 is no V100); a form factor or a size
    # of memory in it leaves only rows that have this one, too.
    assert [row["accelerator"] for row in peaks.find_products(name)] == accelerators


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "Ascend",
        "Instinct",
        # Families, or products that have no row although the names of some rows are alike.
        "MTT S5000",
        "910A",
        "910B",
        "910B4",
        "910C",
        "Ascend 910",
        "A100 64GB",
        "A100X",
        "MI250",
        "K200",
    ],
)
def test_vendor_family_or_unlisted_product_matches_no_row(name: str) -> None:
    assert peaks.find_products(name) == ()


def test_every_row_is_found_by_its_name() -> None:
    for row in ROWS:
        assert row in peaks.find_products(f"{row['product']} {row.get('form', '')}".strip())
