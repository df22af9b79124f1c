"""Packing and verification of a bundle with a million step rows, and of eight times as many."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Bar, choose_size, conclude
from benchmarks.million_steps import write_run

STEPS, RUNS = choose_size((1_000_000, 3), (1_000, 1))
RANKS = (1, 8)
SECONDS = 10.0


def pack_run(run_dir: Path, path: Path) -> None:
    """Record and pack a run; print seconds as JSON."""
    from trainmark.record import record, reduce
    from trainmark.results import bundle

    record.write_record(reduce.reduce(run_dir), run_dir)
    start = time.perf_counter()
    bundle.pack([[run_dir]], path)
    print(json.dumps({"pack_s": time.perf_counter() - start}))


def verify_bundle(path: Path) -> None:
    """Verify a bundle as ``trainmark verify`` does; print seconds and megabytes as JSON."""
    start = time.perf_counter()
    from trainmark.results import bundle

    verification = bundle.verify(path)
    spent = time.perf_counter() - start
    assert verification.exit_code == 0
    states = {check.name: check.state for check in verification.checks}
    assert states["archive"] == states["record"] == "held"
    (check,) = [check for check in verification.checks if check.name == "record"]
    assert check.sentences[0].args["steps"] == STEPS
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        json.dumps(
            {
                "verify_s": spent,
                "processor_s": sum(usage.ru_utime + usage.ru_stime for usage in usages),
                "peak_mb": usages[0].ru_maxrss / 1024,
            }
        )
    )


def _call(*arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.verify_bundle", *map(str, arguments)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(f"  {process.stdout.strip()}", file=sys.stderr, flush=True)
    times: dict[str, float] = json.loads(process.stdout)
    return times


def main() -> bool:
    bars, details = [], []
    for ranks in RANKS:
        judged = ranks == 1
        with tempfile.TemporaryDirectory() as folder:
            run_dir, path = Path(folder) / "run", Path(folder) / "run.trainmark.zip"
            write_run(run_dir, Path(folder) / "cache", ranks)
            size = sum(file.stat().st_size for file in run_dir.iterdir())
            pack_s = _call("pack", run_dir, path)["pack_s"]
            runs = [_call("verify", path) for _ in range(RUNS)]
            times = sorted(run["verify_s"] for run in runs)
            processor_s = statistics.median(run["processor_s"] for run in runs)
            peak = max(run["peak_mb"] for run in runs)
            packed_bytes = path.stat().st_size
        median = statistics.median(times)
        what = f"{STEPS:,} steps of {ranks} rank{'s' if ranks > 1 else ''}"
        bars += [
            Bar(
                f"{what}: verify, s",
                f"{median:.1f} ({times[0]:.1f} to {times[-1]:.1f})",
                f"under {SECONDS:g}" if judged else "",
                median < SECONDS if judged else None,
            ),
            Bar("the same, peak memory, MB", f"{peak:.0f}", "", None),
        ]
        details.append(
            f"{what}: {size / 1e6:.0f} MB of events in a bundle of {packed_bytes / 1e6:.1f} MB; "
            f"verified in {processor_s:.1f} s of processor time; packed, which verifies the run "
            f"first and the archive at the end, in {pack_s:.1f} s."
        )
    details.append(
        "A step row is one step of one rank, in its events; the record has a row a step. "
        "Verified are the archive, the record, recomputed from the events, and the pages."
    )
    title = "A bundle with a million step rows"
    return conclude("verify_bundle", title, bars, "\n\n".join(details))


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"]:
        pack_run(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["verify"]:
        verify_bundle(Path(sys.argv[2]))
    else:
        sys.exit(not main())
