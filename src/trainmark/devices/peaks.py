"""Published dense peak rates and memory bandwidths, looked up by exact product name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.recipe import Precision


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
def table() -> dict[str, Any]:
    """Return ``peaks.toml``, with a row's figures beside what it says of them."""
    import tomllib  # with its parser 4 ms, for nothing where no accelerator is

    data = tomllib.loads(Path(__file__).with_name("peaks.toml").read_text("utf-8"))
    data["peak"] = [row | row.pop("figures") for row in data["peak"]]
    return data


def peak(product_name: str, precision: Precision | None) -> Peak | None:
    """Return the peak of exactly ``product_name`` in ``precision``; None: not published.

    Args:
        precision: None: the bandwidth of the memory.
    """
    figure = "bandwidth_tb_s" if precision is None else f"{precision}_tflops"
    data = table()
    for row in data["peak"]:
        if product_name in row["names"] and figure in row:
            known = provenance(data, row, figure)
            return Peak(precision=precision, per_second=row[figure] * 1e12, **known)
    return None


def name_of_part(product_name: str, units: int) -> str:
    """Return a device's name; of a partition that prints the name of the whole, another one.

    Args:
        units: compute units of the device, as torch counts its multiprocessors.
    """
    for row in table()["peak"]:
        if product_name in row["names"] and units < row.get("compute_units", 0):
            return f"{product_name} partition, {units} of {row['compute_units']} units"
    return product_name


def provenance(data: Mapping[str, Any], row: Mapping[str, Any], figure: str) -> dict[str, Any]:
    """Return accelerator, source, date, evidence and note of one figure of a row.

    What an exception for the figure does not say, the row says, and then the table.
    """
    entry = {"source": data["source"], "date": data["date"], "note": None, **row}
    for exception in row.get("exceptions", ()):
        if figure in exception["figures"]:
            entry |= exception
    return {name: entry[name] for name in ("accelerator", "source", "date", "evidence", "note")}
