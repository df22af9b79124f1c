"""Figures out of a gigabyte of log: ``trainmark analyze`` against a plain Python loop.

Both are whole processes, started one after the other in turn on the same file, which lies
in the page cache after the warm-up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import Bar, Ratio, conclude, interleave, ratio

LOG_BYTES = 10**9
BLOCK_LINES = 2000
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


def _matching(step: int) -> str:
    return (
        f" iteration {step:8d}/  500000 | consumed samples: {step * 512:12d} | "
        f"elapsed time per iteration {KEYWORD} {900 + step % 1999 / 10:.1f} | "
        "learning rate: 1.500E-04 | global batch size:   512 | "
        f"lm loss: {2 + step % 977 / 100:.6E} | loss scale: 1.0 | grad norm: 0.731 |\n"
    )


def _other(step: int) -> str:
    return (
        f"[2026-01-01 00:{step % 60:02d}:00,{step % 1000:03d}] [INFO] [rank {step % 8}] loader "
        f"{step % 4} took shard {step}, queue depth {step % 17}\n"
    )


def write_log(path: Path, every: int) -> None:
    """Write ``LOG_BYTES`` of log in which one line of ``every`` matches."""
    lines = [_matching(i) if i % every == 0 else _other(i) for i in range(BLOCK_LINES * 10)]
    block = "".join(lines).encode()
    with path.open("wb") as file:
        for _ in range(LOG_BYTES // len(block) + 1):
            file.write(block)


def _run(command: list[str], peaks: list[float], results: set[float]) -> float:
    """Return seconds; keep peak megabytes and the result."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    assert process.returncode == 0, command
    printed = json.loads(out)
    results.add(printed["FINAL_RESULT"] if isinstance(printed, dict) else printed)
    peaks.append(usage.ru_maxrss / 1024)
    return seconds


def _compare(path: Path, every: int, rounds: int) -> tuple[Ratio, list[float], str]:
    """Return plain seconds over ours, our peaks in megabytes, and a sentence about both."""
    print(f"  writing the log, one line of {every} matches", file=sys.stderr)
    write_log(path, every)
    ours = [
        PROGRAM, "analyze", str(path), "--quiet", "--keyword", KEYWORD,
        "--time_unit", "ms", "--model_mode", "4",
    ]  # fmt: skip
    plain = [sys.executable, "-c", PLAIN_LOOP, str(path), KEYWORD]
    our_peaks: list[float] = []
    plain_peaks: list[float] = []
    results: set[float] = set()
    times = interleave(
        {
            "plain": partial(_run, plain, plain_peaks, results),
            "ours": partial(_run, ours, our_peaks, results),
        },
        rounds=rounds,
    )
    assert len(results) == 1, f"the two disagree: {results}"
    said = (
        f"One line of {every} matches: plain {sorted(times['plain'])[rounds // 2]:.2f} s and "
        f"{max(plain_peaks):.0f} MB, ours {sorted(times['ours'])[rounds // 2]:.2f} s and "
        f"{max(our_peaks):.0f} MB (medians and peaks)."
    )
    return ratio(times["plain"], times["ours"]), our_peaks, said


def main() -> bool:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "train.log"
        mixed, peaks, said = _compare(path, 10, 7)
        dense, dense_peaks, said_dense = _compare(path, 1, 3)
    peak = max(peaks + dense_peaks)
    bars = [
        Bar("1 GB log, one line of 10 matches: plain loop / ours, seconds", str(mixed),
            f"at least {FASTER:g}", mixed.median >= FASTER),
        Bar("1 GB log, every line matches: plain loop / ours, seconds", str(dense),
            f"at least {FASTER_DENSE:g}", dense.median >= FASTER_DENSE),
        Bar("peak memory of both, MB", f"{peak:.0f}", f"under {MEGABYTES:g}", peak < MEGABYTES),
    ]  # fmt: skip
    details = (
        "Ours is the whole command, start-up included; the plain loop reads all lines into a list, "
        f"as the public tool does.\n{said}\n{said_dense}"
    )
    return conclude("analyze", "Somebody else's log", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
