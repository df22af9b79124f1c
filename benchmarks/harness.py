"""Interleave, compare, print, keep: what every benchmark shares."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SIZE_VARIABLE, RESULTS_VARIABLE = "BENCHMARK_SIZE", "BENCHMARK_RESULTS"
DEVICE_VARIABLE = "BENCHMARK_DEVICE"  # of a benchmark that runs on any
RESULTS = Path(__file__).parent / "results"
_Size = TypeVar("_Size")
_Found = TypeVar("_Found")


def choose_size(full: _Size, tiny: _Size) -> _Size:
    """Return ``tiny`` in a run with ``--size tiny``, which proves that the benchmark works.

    Processes that a benchmark starts inherit the size. Its figures mean nothing then.
    """
    return tiny if os.environ.get(SIZE_VARIABLE) == "tiny" else full


@dataclass(frozen=True, slots=True)
class Ratio:
    """Pair by pair over an interleaved run: median and the middle half."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f}, {self.pairs} pairs)"


def compute_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return ``above / below`` pair by pair; low and high bound the middle half."""
    values = sorted(a / b for a, b in zip(above, below, strict=True))
    quarter = len(values) // 4
    return Ratio(statistics.median(values), values[quarter], values[-1 - quarter], len(values))


def interleave(
    variants: Mapping[str, Callable[[], _Found]],
    *,
    rounds: int,
    warmup: int = 1,
    can_go_on: Callable[[], bool] = lambda: True,
) -> dict[str, list[_Found]]:
    """Run every variant once a round, the order reversed every other round.

    Each callable returns its own measure of one run. Warm-up rounds are not recorded.

    Args:
        can_go_on: asked after each round that counts; no further round follows if it is false.
    """
    rounds = choose_size(rounds, 1)
    results: dict[str, list[_Found]] = {name: [] for name in variants}
    for number in range(warmup + rounds):
        names = list(variants) if number % 2 == 0 else list(reversed(variants))
        for name in names:
            value = variants[name]()
            if number >= warmup:
                results[name].append(value)
        if (number + 1) % max(1, rounds // 30) == 0:
            print(f"  round {number + 1}/{warmup + rounds}", file=sys.stderr, flush=True)
        if number >= warmup and not can_go_on():
            break
    return results


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing asked for: what was measured, the bar, and whether it is met; None: not judged."""

    what: str
    measured: str
    bar: str
    met: bool | None

    def row(self) -> str:
        """Return a Markdown row."""
        verdict = "not judged" if self.met is None else "met" if self.met else "missed"
        return f"| {self.what} | {self.measured} | {self.bar} | {verdict} |"


def describe_machine(device_name: str = "cpu") -> str:
    """Return device, versions and date in one line; opens a device that is not the CPU."""
    import torch

    from trainmark import devices
    from trainmark.devices.cores import count_usable_cores
    from trainmark.devices.vendors.cpu import read_model_name

    instructions = torch.backends.cpu.get_cpu_capability()
    device = f"{read_model_name()}, {count_usable_cores()} cores, {instructions}"
    vendor = devices.choose_vendor(device_name)
    if vendor.torch_type != "cpu":
        product = vendor.open(0, 1).describe()["name"]
        device = f"{product}, driver {vendor.driver_version()}; host {device}"
    date = datetime.now(timezone.utc).date().isoformat()
    return f"{device}; Python {platform.python_version()}, torch {torch.__version__}; {date}"


def describe_commit() -> str:
    """Return the commit measured, marked when files differ from it."""
    arguments = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    process = subprocess.run(
        arguments, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return process.stdout.strip() or "no checkout"


def conclude(name: str, title: str, bars: Sequence[Bar], details: str = "") -> bool:
    """Print the table, keep it in the folder of results, tell whether all bars are met."""
    where = describe_machine(os.environ.get(DEVICE_VARIABLE, "cpu"))
    lines = [
        f"# {title}",
        "",
        f"{where}; commit {describe_commit()}. Written by `python -m benchmarks {name}`.",
        "",
        "| what | measured | bar | |",
        "|---|---|---|---|",
        *(bar.row() for bar in bars),
    ]
    text = "\n".join(lines) + "\n" + (f"\n{details.strip()}\n" if details else "")
    print(text)
    folder = Path(os.environ.get(RESULTS_VARIABLE, RESULTS))
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return all(bar.met is not False for bar in bars)
