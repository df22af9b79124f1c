"""Look up the published dense peak rate of a device by its product name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmark.spec import Precision


@dataclass(frozen=True, slots=True)
class Peak:
    """A published dense peak with its source."""

    accelerator: str
    precision: Precision
    flops_per_second: float
    source: str
    date: str
    evidence: str


def table() -> dict[str, Any]:
    """Return ``peaks.toml`` as parsed."""
    return tomllib.loads(files("trainmark.devices").joinpath("peaks.toml").read_text("utf-8"))


def dense_peak(product_name: str, precision: Precision) -> Peak | None:
    """Return the peak of exactly ``product_name`` in ``precision``, in FLOP/s, or None."""
    data = table()
    for row in data["peak"]:
        tflops = row.get(f"{precision}_tflops")
        if product_name in row["names"] and tflops is not None:
            return Peak(
                accelerator=row["accelerator"],
                precision=precision,
                flops_per_second=tflops * 1e12,
                source=data["source"],
                date=data["date"],
                evidence=row["evidence"],
            )
    return None
