"""Figures out of a gigabyte of log: ``trainmark analyze`` against a plain Python loop.

Both are whole processes, started one after the other in turn on the same file, which lies
in the page cache after the warm-up.

Both bars are missed since logs are read line by line: the whole command takes 1.4 to 2 times the
loop's processor time, as measured at 100 MB on a busy machine. The reader of blocks that was
faster is gone, for the sake of one reader for keywords, positions and JSON events.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave

LOG_BYTES = choose_size(10**9, 10**6)
BLOCK_LINES = choose_size(2000, 200)
FASTER, FASTER_DENSE, MEGABYTES = 3.0, 1.0, 100.0
KEYWORD = "(ms):"
PROGRAM = str(Path(sys.executable).with_name("trainmark"))
PLAIN_LOOP = """
import sys
values = []
for line in open(sys.argv[1]).readlines():
    if sys.argv[2] in line:
        words = line.split()
        values.append(float(words[words.index(sys.argv[2]) + 1]))
print(round(sum(values) / len(values) / 1000, 3))
"""


def _format_matching_line(step: int) -> str:
    return (
        f" iteration {step:8d}/  500000 | consumed samples: {step * 512:12d} | "
        f"elapsed time per iteration {KEYWORD} {900 + step % 1999 / 10:.1f} | "
        "learning rate: 1.500E-04 | global batch size:   512 | "
        f"lm loss: {2 + step % 977 / 100:.6E} | loss scale: 1.0 | grad norm: 0.731 |\n"
    )


def _format_other_line(step: int) -> str:
    return (
        f"[2026-01-01 00:{step % 60:02d}:00,{step % 1000:03d}] [INFO] [rank {step % 8}] loader "
        f"{step % 4} took shard {step}, queue depth {step % 17}\n"
    )


def write_log(path: Path, every: int) -> None:
    """Write ``LOG_BYTES`` of log in which one line of ``every`` matches."""
    lines = [
        _format_matching_line(i) if i % every == 0 else _format_other_line(i)
        for i in range(BLOCK_LINES * 10)
    ]
    block = "".join(lines).encode()
    with path.open("wb") as file:
        for _ in range(LOG_BYTES // len(block) + 1):
            file.write(block)


class Runs:
    """What repeated runs of one command took, besides the time the harness keeps."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.processor_s: list[float] = []
        self.peak_mb = 0.0
        self.results: set[float] = set()

    def run_once(self) -> float:
        """Run the command to its end; return wall seconds."""
        start = time.perf_counter()
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            out = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        assert process.returncode == 0, self.command
        printed = json.loads(out)
        self.results.add(printed["FINAL_RESULT"] if isinstance(printed, dict) else printed)
        self.processor_s.append(usage.ru_utime + usage.ru_stime)
        self.peak_mb = max(self.peak_mb, usage.ru_maxrss / 1024)
        return seconds


def _compare(path: Path, every: int, bar: float, rounds: int) -> tuple[list[Bar], str]:
    """Return the bars for a log in which one line of ``every`` matches, and a sentence."""
    print(f"  writing the log, one line of {every} matches", file=sys.stderr)
    write_log(path, every)
    ours = Runs(
        [PROGRAM, "analyze", str(path), f"keyword={KEYWORD}", "time_unit=ms", "model_mode=4"]
    )
    plain = Runs([sys.executable, "-c", PLAIN_LOOP, str(path), KEYWORD])
    times = interleave({"plain": plain.run_once, "ours": ours.run_once}, rounds=rounds)
    assert ours.results == plain.results, f"{ours.results} is not {plain.results}"
    size = f"{LOG_BYTES / 1e9:g} GB"
    lines = (
        f"{size} log, one line of {every} matches"
        if every > 1
        else f"{size} log, every line matches"
    )
    for runs in (plain, ours):
        del runs.processor_s[0]  # the warm-up run, whose wall time is not recorded either
    wall = compute_ratio(times["plain"], times["ours"])
    processor = compute_ratio(plain.processor_s, ours.processor_s)
    bars = [
        Bar(
            f"{lines}: plain loop / ours, seconds",
            str(wall),
            f"at least {bar:g}",
            wall.median >= bar,
        ),
        Bar(
            "the same, processor seconds",
            str(processor),
            f"at least {bar:g}",
            processor.median >= bar,
        ),
        Bar(
            "the same, our peak memory, MB",
            f"{ours.peak_mb:.0f}",
            f"under {MEGABYTES:g}",
            ours.peak_mb < MEGABYTES,
        ),
    ]
    said = (
        f"{lines}: plain {median(times['plain']):.2f} s, {median(plain.processor_s):.2f} processor "
        f"seconds, {plain.peak_mb:.0f} MB; ours {median(times['ours']):.2f} s, "
        f"{median(ours.processor_s):.2f} processor seconds, {ours.peak_mb:.0f} MB."
    )
    return bars, said


def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        mixed, said = _compare(path, 10, FASTER, 9)
        dense, said_dense = _compare(path, 1, FASTER_DENSE, 3)
    details = (
        "Ours is the whole command, start-up included; the plain loop reads all lines into a list. "
        f"Processor seconds are what a busy machine changes least.\n\n{said}\n\n{said_dense}"
    )
    return conclude("analyze", "Somebody else's log", [*mixed, *dense], details)


if __name__ == "__main__":
    sys.exit(not main())
