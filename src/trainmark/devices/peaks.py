"""Look up published dense peak rates and memory bandwidths by the name of a product."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.recipe import Precision


_MEMORY_WORD = re.compile(r"([0-9]{1,3})(?:g|gb|gib)")
_MEMORY_TOLERANCE = 0.1  # GB and GiB differ by 7%
# The form factor, as rows of the table state it, by the word of a device's name that means it. DGX
# and HGX machines have SXM modules.
_FORMS = {"sxm": "SXM", "dgx": "SXM", "hgx": "SXM", "pcie": "PCIe", "nvl": "NVL"}
_FORM_WORD = re.compile(r"(sxm|pcie|nvl|dgx|hgx)[0-9]*")
# What stands before a product without a space: `Ascend910B3`.
_VENDOR_WORDS = ("ascend", "nvidia", "tesla", "amd", "instinct", "mtt", "aws", "google", "intel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A published dense peak of a device, or the bandwidth of its memory.

    Args:
        precision: of the peak; None: the bandwidth.
        per_second: FLOP, or bytes read plus bytes written.
        evidence: ``A``, ``B``, ``C`` or ``unverified``, as ``peaks.toml`` explains.
    """

    accelerator: str
    precision: Precision | None
    per_second: float
    source: str
    date: str
    evidence: str
    note: str | None


@cache
def read_table() -> dict[str, Any]:
    """Return ``peaks.toml`` with the figures of each row as keys of the row itself."""
    # Imported only here, because it takes 4 ms and a machine without accelerators does not need it.
    from trainmark.toml_file import read_toml

    data = read_toml(Path(__file__).with_name("peaks.toml"))
    # In the file, a row has its figures in a table ``figures``. ``pop`` removes it from the row
    # before ``|`` joins both.
    data["peak"] = [row | row.pop("figures") for row in data["peak"]]
    return data


def find_peak(product_name: str, precision: Precision | None) -> Peak | None:
    """Return the peak of exactly ``product_name`` in ``precision``; None: not published.

    Args:
        precision: None: the bandwidth of the memory.
    """
    figure = "bandwidth_tb_s" if precision is None else f"{precision}_tflops"
    data = read_table()
    for row in data["peak"]:
        if product_name in row["names"] and figure in row:
            provenance = get_provenance(data, row, figure)
            # The table's units are TFLOP/s and TB/s.
            return Peak(precision=precision, per_second=row[figure] * 1e12, **provenance)
    return None


@cache
def find_products(name: str) -> tuple[dict[str, Any], ...]:
    """Return the rows of all products that a device's name in a published table can mean.

    A full product name means only its row. Otherwise all words of a row's ``product`` must follow
    each other in the name, each as a whole: ``A100`` means every A100, ``A100-SXM4-80GB`` one of
    them. ``910B``, the name of a family, means none, because it does not have the word ``910B3`` of
    a product. If the name states a form factor or a memory size, only rows with these are returned.
    """
    rows = read_table()["peak"]
    exact = [row for row in rows if name in row["names"]]
    if exact:
        return tuple(exact)
    words = _split_words(name)
    lengths = [_measure_match(words, _split_words(row["product"])) for row in rows]
    # Only the longest matches, because `BI-V100` has the words of a V100 as well.
    longest = max(lengths)
    matching = []
    for row, length in zip(rows, lengths, strict=True):
        if length > 0 and length == longest:
            matching.append(row)
    # Group 1 is the form factor without a number behind it: ``sxm`` of ``sxm4``.
    form_matches = [_FORM_WORD.fullmatch(word) for word in words]
    forms = {_FORMS[match[1]] for match in form_matches if match}
    # Only products that are sold in several form factors state theirs. If no matching row does, the
    # form factor of the name decides nothing.
    if forms and any("form" in row for row in matching):
        matching = [row for row in matching if row.get("form") in forms]
    # Group 1 is the size in GB without its unit.
    memory_matches = [_MEMORY_WORD.fullmatch(word) for word in words]
    sizes = [float(match[1]) for match in memory_matches if match]
    if sizes:  # every row states its memory
        matching = [row for row in matching if _has_memory(row, sizes)]
    return tuple(matching)


def _split_words(name: str) -> list[str]:
    """Return the words of a name in lower case.

    A form factor begins a word of its own: ``h100sxm`` is ``h100`` and ``sxm``.
    """
    text = re.sub(r"(sxm|pcie|nvl)", r" \1", name.lower())
    return re.findall(r"[a-z0-9]+", text)


def _measure_match(words: Sequence[str], product: Sequence[str]) -> int:
    """Return the length of a product's name if a device's name contains it, or else 0.

    The product's words may be joined or split differently, as in ``MI 300X`` and ``MI300X``.

    Args:
        words: words of the device's name.
        product: words of the product's name.
    """
    joined_product = "".join(product)
    for first, word in enumerate(words):
        # The vendor's name may stand before the product without a space: ``ascend910b3``.
        vendor = next((x for x in _VENDOR_WORDS if word.startswith(x)), "")
        for end in range(first + 1, len(words) + 1):
            if "".join(words[first:end]).removeprefix(vendor) == joined_product:
                return len(joined_product)
    return 0


def _has_memory(row: Mapping[str, Any], sizes: Sequence[float]) -> bool:
    """Tell whether the product of a row has one of the memory sizes, in GB or GiB."""
    return any(abs(size / row["memory_gb"] - 1) <= _MEMORY_TOLERANCE for size in sizes)


def name_partition(product_name: str, units: int) -> str:
    """Return a device's name; if it is a partition, add how many of the units it has.

    Some partitions have the name of the whole device. The published peak of that name is not
    theirs, so they need another name.

    Args:
        units: compute units of the device, as torch counts its multiprocessors.
    """
    for row in read_table()["peak"]:
        if product_name in row["names"] and units < row.get("compute_units", 0):
            return f"{product_name} partition, {units} of {row['compute_units']} units"
    return product_name


def get_provenance(data: Mapping[str, Any], row: Mapping[str, Any], figure: str) -> dict[str, Any]:
    """Return accelerator, source, date, evidence and note of one figure of a row.

    They are those of an exception for the figure, else of the row, else of the whole table.

    Args:
        data: the table, as ``read_table`` returns it.
        row: one of its rows.
        figure: a key of the row, ``bf16_tflops`` for example.
    """
    entry = {"source": data["source"], "date": data["date"], "note": None, **row}
    for exception in row.get("exceptions", ()):
        if figure in exception["figures"]:
            entry |= exception
    return {name: entry[name] for name in ("accelerator", "source", "date", "evidence", "note")}
