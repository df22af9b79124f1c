"""Processor time of an answer: ``--help`` and ``list`` against an empty Python."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.harness import Bar, compute_ratio, conclude, interleave

PROGRAM = str(Path(sys.executable).with_name("trainmark"))
COMMANDS = {
    "pass": [sys.executable, "-c", "pass"],
    "help": [PROGRAM, "--help"],
    "list": [PROGRAM, "list"],
}
BARS = {"help": 12.0, "list": 12.0}
# Byte code is kept, as that of an installed program is; the rounds that do not count write it.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
FORBIDDEN = ("torch", "transformers", "numpy", "pydantic")


def _measure_processor_s(command: list[str]) -> float:
    """Return the processor time of a command, in which others on the machine have little part."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _list_heavy_imports(arguments: list[str]) -> list[str]:
    """Return which heavy packages a verb imports."""
    script = (
        "import sys\n"
        "from trainmark.cli.app import app\n"
        f"sys.argv = {['trainmark', *arguments]!r}\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {FORBIDDEN!r} if name in sys.modules], file=sys.stderr)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    names = process.stderr.strip().splitlines()[-1]
    return [name for name in FORBIDDEN if f"'{name}'" in names]


def main() -> bool:
    times = interleave(
        {name: partial(_measure_processor_s, command) for name, command in COMMANDS.items()},
        rounds=21,
        warmup=2,
    )
    bars = []
    for name, bar in BARS.items():
        ratio = compute_ratio(times[name], times["pass"])
        what = f"`trainmark {' '.join(COMMANDS[name][1:])}` / `python -c pass`"
        bars.append(Bar(what, str(ratio), f"at most {bar:g}", ratio.median <= bar))
        heavy = _list_heavy_imports(COMMANDS[name][1:])
        what = f"heavy imports of `{' '.join(COMMANDS[name][1:])}`"
        bars.append(Bar(what, ", ".join(heavy) or "none", "no torch", "torch" not in heavy))
    return conclude("startup", "Start-up", bars)


if __name__ == "__main__":
    sys.exit(not main())
