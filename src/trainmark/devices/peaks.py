"""Published dense peak rates and memory bandwidths, looked up by exact product name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from trainmark.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

_BANDWIDTH = "bandwidth_tb_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a figure of ``accelerator`` was published, and how far that can be trusted.

    Args:
        evidence: ``A``, ``B``, ``C`` or ``unverified``, as ``peaks.toml`` explains.
    """

    accelerator: str
    source: str
    date: str
    evidence: str
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak(Published):
    """A published dense peak."""

    precision: Precision
    flops_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak(Published):
    """The published bandwidth of a device's memory, bytes read plus bytes written."""

    bytes_per_second: float


@cache
def table() -> dict[str, Any]:
    """Return ``peaks.toml``, with a row's figures beside what it says of them."""
    import tomllib  # with its parser 4 ms, for nothing where no accelerator is

    data = tomllib.loads(Path(__file__).with_name("peaks.toml").read_text("utf-8"))
    data["peak"] = [row | row.pop("figures") for row in data["peak"]]
    return data


def dense_peak(product_name: str, precision: Precision) -> Peak | None:
    """Return the peak of exactly ``product_name`` in ``precision``, in FLOP/s, or None."""
    found = _figure(product_name, f"{precision}_tflops")
    if found is None:
        return None
    tflops, about = found
    return Peak(precision=precision, flops_per_second=tflops * 1e12, **about)


def dense_peaks(product_name: str) -> list[Peak]:
    """Return the peaks of exactly ``product_name`` in all precisions of recipes."""
    found = [dense_peak(product_name, precision) for precision in get_args(Precision)]
    return [peak for peak in found if peak is not None]


def memory_peak(product_name: str) -> MemoryPeak | None:
    """Return the memory bandwidth of exactly ``product_name``, or None."""
    found = _figure(product_name, _BANDWIDTH)
    if found is None:
        return None
    terabytes, about = found
    return MemoryPeak(bytes_per_second=terabytes * 1e12, **about)


def name_of_part(product_name: str, units: int) -> str:
    """Return a device's name; of a partition that prints the name of the whole, another one.

    Args:
        units: compute units of the device, as torch counts its multiprocessors.
    """
    for row in table()["peak"]:
        if product_name in row["names"] and units < row.get("compute_units", 0):
            return f"{product_name} partition, {units} of {row['compute_units']} units"
    return product_name


def _figure(product_name: str, figure: str) -> tuple[float, dict[str, Any]] | None:
    """Return a figure with its provenance; None where the table does not have it."""
    data = table()
    for row in data["peak"]:
        if product_name in row["names"] and figure in row:
            return row[figure], provenance(data, row, figure)
    return None


def provenance(data: Mapping[str, Any], row: Mapping[str, Any], figure: str) -> dict[str, Any]:
    """Return accelerator, source, date, evidence and note of one figure of a row.

    What an exception for the figure does not say, the row says, and then the table.
    """
    entry = {"source": data["source"], "date": data["date"], "note": None, **row}
    for exception in row.get("exceptions", ()):
        if figure in exception["figures"]:
            entry |= exception
    return {name: entry[name] for name in Published.__dataclass_fields__}
