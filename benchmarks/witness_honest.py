"""Honest programs under ``run --witness``: their step times beside their own stopwatch."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, choose_size, conclude
from benchmarks.programs.stopwatch import RESULT_VARIABLE

if TYPE_CHECKING:
    from trainmark.record.record import Record

STEPS, LENGTH = choose_size((200, 64), (16, 16))
WARMUP_STEPS = choose_size(20, 4)
MAX_DIFFERENCE = 0.01
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Program:
    """An honest program.

    Args:
        module: of ``benchmarks.programs``.
        package: that it needs, and how its version begins.
        samples: that it trains in a step.
        precision: in which it multiplies.
        speed_line: the pattern of its own speed; empty: it prints none.
    """

    title: str
    module: str
    package: str
    samples: int
    version: str = ""
    precision: str = "fp32"
    speed_line: str = ""


PROGRAMS = (
    Program("plain loop with accumulation", "plain_accumulation", "transformers", 8),
    Program(
        "loop in the manner of nanoGPT",
        "nano_gpt",
        "torch",
        8,
        speed_line=r"time (?P<step_ms>[0-9.]+)ms",
    ),
    Program("Hugging Face Trainer", "hf_trainer", "transformers", 8),
    Program("accelerate", "accelerate_loop", "accelerate", 8),
    Program("Lightning", "lightning_fit", "lightning", 8),
    Program(
        "torchtitan 0.2, debug model",
        "torchtitan_cpu",
        "torchtitan",
        4,
        version="0.2.",
        precision="bf16",
        speed_line=r"tps: (?P<tokens_per_second_per_device>[0-9,]+)",
    ),
)


def is_installed(program: Program) -> bool:
    """Tell whether the package that a program needs is installed."""
    try:
        return version(program.package).startswith(program.version)
    except PackageNotFoundError:
        return False


def measure(program: Program, folder: Path) -> tuple[Record, dict[str, list[Any]]]:
    """Run a program under the witness; return its record, and what its stopwatch has."""
    work = folder / "work.toml"
    lines = [
        f'name = "{program.module}"',
        f'precision = "{program.precision}"',
        f"warmup_steps = {WARMUP_STEPS}",
        f"speed_line = '{program.speed_line}'" if program.speed_line else "",
        "[step]",
        f"samples = {program.samples}",
        f"tokens = {program.samples * LENGTH}",
    ]
    work.write_text("\n".join(lines), encoding="utf-8")
    arguments = ["run", "--witness", str(work), "--device", "cpu", "--out", str(folder / "run")]
    command = [sys.executable, "-m", f"benchmarks.programs.{program.module}"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "trainmark", *arguments, "--", *command, str(STEPS), str(LENGTH)],
        env=os.environ
        | {RESULT_VARIABLE: str(folder / "stopwatch.json"), "PYTHONPATH": paths.strip(os.pathsep)},
        cwd=folder,
        stdout=sys.stderr,
        check=True,
    )
    from trainmark.record.record import read_record

    stopwatch = json.loads((folder / "stopwatch.json").read_text())
    return read_record(folder / "run" / "record.json"), stopwatch


def compare_times(record: Record, stopwatch: dict[str, list[Any]]) -> tuple[float, float, int]:
    """Return witness divided by stopwatch, of all steady steps and of the median, and their number.

    A step whose interval has an evaluation or a checkpoint is left out: the stopwatch has no other
    time of it.
    """
    ends, interrupted = stopwatch["ends_s"], set(stopwatch["interrupted"])
    pairs = [
        (measured_ns / 1e9, ends[step] - ends[step - 1])
        for step, measured_ns in enumerate(record.steps.time_ns)
        if step >= WARMUP_STEPS and step not in interrupted
    ]
    measured, timed = zip(*pairs, strict=True)
    of_all = sum(measured) / sum(timed)
    return of_all, statistics.median(measured) / statistics.median(timed), len(pairs)


def list_suspicions(record: Record) -> list[str]:
    """Return what would make a reader doubt a program."""
    from trainmark.record.witnessed import FINDING_KINDS

    suspicious_codes = {code for code, kind in FINDING_KINDS.items() if kind.grade != "usable"}
    suspicious_codes.add("printed_differs")
    codes = [finding.code for finding in record.findings if finding.code in suspicious_codes]
    if record.trust.grade == "do_not_quote":
        codes += [reason.code for reason in record.trust.reasons]
    if record.status != "passed":
        codes.append(record.status)
    return codes


def main() -> bool:
    """Measure every program that is installed."""
    bars, missing, printed = [], [], []
    flagged: dict[str, list[str]] = {}
    for program in PROGRAMS:
        if not is_installed(program):
            missing.append(program.title)
            continue
        with tempfile.TemporaryDirectory() as folder:
            record, stopwatch = measure(program, Path(folder))
        of_all, of_median, steps = compare_times(record, stopwatch)
        measured = f"{of_all:.4f} over {steps} steps (median step {of_median:.4f})"
        met = abs(of_all - 1) <= MAX_DIFFERENCE
        bars.append(Bar(f"{program.title}: witness / stopwatch", measured, "0.99 to 1.01", met))
        flagged[program.title] = list_suspicions(record)
        printed += [
            f"{program.title}: {finding.code}"
            for finding in record.findings
            if finding.code.startswith("printed_")
        ]
    suspicions = "; ".join(f"{title}: {', '.join(x)}" for title, x in flagged.items() if x)
    number = sum(bool(codes) for codes in flagged.values())
    bars.append(
        Bar(
            f"programs of {len(flagged)} that are flagged",
            f"{number}" + (f" ({suspicions})" if suspicions else ""),
            "0",
            number == 0,
        )
    )
    details = (
        f"Each program trains {STEPS} steps on one thread, the first {WARMUP_STEPS} of which are "
        "the warm-up, and reads a clock at the end of each step. Steps with an evaluation or a "
        "checkpoint between their ends are left out, because the clock cannot tell them apart."
    )
    if printed:
        details += f" What programs print of their speed: {'; '.join(printed)}."
    if missing:
        details += f" Not installed: {', '.join(missing)}."
    return conclude("witness_honest", "Honest programs under the witness", bars, details)
