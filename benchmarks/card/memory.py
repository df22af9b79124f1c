"""Memory of published recipes on the card, beside what their cases predict.

Each recipe takes four steps of its full shapes on random weights, in a process of its own. On one
rank; recipes of more ranks are in the same estimates. The simulated card has the same rows.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.card.section import Findings
from benchmarks.harness import Bar, choose_size
from benchmarks.jobs import iterate_batches_endlessly, on_data
from benchmarks.peers import serve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.card.section import Card

MODULE = "benchmarks.card.memory"
TITLE = "Memory of recipes, measured and predicted"
STEPS = 4  # from the second on, moments exist and buckets are final
OFF_BY = 0.1  # at most


@dataclass(frozen=True, slots=True)
class Row:
    """A recipe, and what differs from it."""

    case: str
    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The recipe as a table shows it."""
        arguments = [f"{name}={value}" for name, value in self.changes.items()]
        return " ".join([self.case, self.recipe, *arguments])


LIBRARY, OWN = {"kernels": "library"}, {"kernels": "own"}
ROWS = choose_size(
    (
        Row("gpt_megatron", "sp-bs16-bf16", LIBRARY),
        Row("llama2_7b_lora", "throughput-1x1", LIBRARY),
        Row("gpt_megatron", "sp-bs16-bf16", OWN),
        Row("llama2_7b_lora", "throughput-1x1", LIBRARY | {"micro_batch_size": 16}),
        Row("gpt_megatron", "sp-bs8-fp32", LIBRARY),
        Row("llama31_8b", "throughput-1x1-8-layers", OWN | {"grad_accum_steps": 1}),
        Row("llama2_7b_lora", "standard-1x1", LIBRARY),
    ),
    (
        Row("gpt_megatron", "tiny", LIBRARY),
        Row("llama2_7b_lora", "tiny", LIBRARY),
        Row("llama31_8b", "tiny", OWN),
    ),
)


def predict_row(row: Row, recipe: Any) -> Any:
    """Return the prediction of a row's case."""
    from trainmark import cases

    if row.case == "llama2_7b_lora":
        from trainmark.cases.llama2_7b_lora.estimates import predict_peak_bytes
        from trainmark.cases.llama2_7b_lora.model_files import PRESETS

        return predict_peak_bytes(PRESETS[recipe.model_size], recipe, 1)
    return cases.import_part(row.case, "data").predict(recipe, 1)


def run_row(device_name: str, number: str, folder: str) -> None:
    """Take steps of a row and print its bytes; null where the device has no such count."""
    import torch

    from trainmark import cases

    row, place = ROWS[int(number)], Path(folder)
    chosen = replace(cases.load(row.case).recipes[row.recipe], **row.changes)
    if row.case == "llama2_7b_lora":
        chosen = replace(chosen, init="random", data="generated", mmlu_mode="off")
    place.mkdir(parents=True, exist_ok=True)
    cases.import_part(row.case, "data").generate(place, chosen)
    job = on_data(row.case, chosen, place, device_name=device_name)
    batches = iterate_batches_endlessly(job)
    for _ in range(STEPS):
        job.step(batches)
    device = job.context.device
    device.synchronize()
    prediction = predict_row(row, chosen)
    count_reserved = getattr(
        torch.get_device_module(device.torch_type), "max_memory_reserved", None
    )
    print(
        json.dumps(
            {
                "predicted": prediction.total,
                "predicted_reserved": prediction.reserved,
                "allocated": device.memory().allocator_peak_bytes,
                "reserved": None if count_reserved is None else count_reserved(),
            }
        )
    )


class RowFailedError(RuntimeError):
    """A row's process ended without a result."""


def measure_row(card: Card, number: int) -> dict[str, Any] | None:
    """Return a row's bytes by name; None: the time did not suffice.

    Raises:
        RowFailedError: with its last words.
    """
    command = [sys.executable, "-m", MODULE, "row", card.device, str(number)]
    try:
        ended = subprocess.run(
            [*command, str(card.scratch / "memory" / str(number))],
            capture_output=True,
            text=True,
            check=False,
            timeout=None if card.seconds_left() == math.inf else card.seconds_left(),
        )
    except subprocess.TimeoutExpired:
        return None
    if ended.returncode:
        last = "".join(ended.stderr.strip().splitlines()[-1:])
        raise RowFailedError(f"ended with {ended.returncode}: {last}")
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


def run(card: Card) -> Findings:
    findings = Findings(bars=[])
    lines = [
        "| recipe | predicted | allocated | predicted, reserved | reserved | off |",
        "|---|---|---|---|---|---|",
    ]
    failed: list[str] = []
    left_out: list[str] = []
    differences: list[float] = []
    longest_s = 0.0
    for number, row in enumerate(ROWS):
        if longest_s > card.seconds_left():
            left_out.append(row.label)
            continue
        started_s = time.monotonic()
        try:
            reading = measure_row(card, number)
        except RowFailedError as failure:
            failed.append(f"- {row.label}: {failure}.")
            continue
        longest_s = max(longest_s, time.monotonic() - started_s)
        if reading is None:
            left_out.append(row.label)
            continue
        reserved = reading["reserved"]
        off = None if reserved is None else reading["predicted_reserved"] / reserved - 1
        if off is not None:
            differences.append(abs(off))
        cells = [
            reading[name] for name in ("predicted", "allocated", "predicted_reserved", "reserved")
        ]
        shown = "unknown" if off is None else f"{100 * off:+.1f}%"
        lines.append(f"| {row.label} | {' | '.join(map(_format_gib, cells))} | {shown} |")
        for name, value in reading.items():
            findings.figures[f"{row.label}: {name}_bytes"] = value
    maximum = max(differences, default=None)
    findings.bars.append(
        Bar(
            "prediction / reserved memory",
            "unknown: the device does not count what it reserves"
            if maximum is None
            else f"off by {100 * maximum:.1f}% at most, of {len(differences)} recipes",
            f"off by at most {100 * OFF_BY:g}%",
            None if maximum is None else maximum <= OFF_BY,
        )
    )
    findings.bars.append(Bar("recipes that failed", f"{len(failed)}", "none", not failed))
    lines += ["", *failed]
    if left_out:
        lines.append(f"- There was no time for {', '.join(left_out)}.")
    findings.text = "\n".join(lines)
    return findings


def _format_gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.2f} GiB"


if __name__ == "__main__":
    serve({"row": run_row})
