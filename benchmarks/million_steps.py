"""Record, figures, pages and verification of a run with a million steps on eight ranks."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.harness import Bar, choose_size, conclude

RANKS, WINDOW, WARMUP, EPOCH_STEPS = 8, 10, 10, 64
STEPS, RUNS = choose_size((1_000_000, 3), (1_000, 1))
SECONDS, MEGABYTES = 20.0, 500.0


def write_run(run_dir: Path, cache: Path, ranks: int = RANKS) -> None:
    """Write plan and events of a launch of so many ranks."""
    from trainmark.events.schema import LAUNCHER_FILE, name_rank_file

    _plan(run_dir, cache, ranks)
    _write_launcher(run_dir / LAUNCHER_FILE)
    for rank in range(ranks):
        _write_rank(run_dir / name_rank_file(rank), rank, ranks)


def _plan(run_dir: Path, cache: Path, ranks: int) -> None:
    from trainmark.plan.request import RunRequest
    from trainmark.plan.resolving import resolve

    plan = resolve(
        RunRequest(
            case="toy",
            nproc=ranks,
            device="cpu",
            overrides={"steps": STEPS, "warmup_steps": WARMUP, "epochs": 100_000},
            out=run_dir,
        ),
        generated_root=cache,
    )
    run_dir.mkdir()
    plan.save(run_dir)


def _format_event(event: str, t_ns: int, **fields: object) -> str:
    return json.dumps({"event": event, "t_ns": t_ns, **fields}, separators=(",", ":")) + "\n"


def _write_rank(path: Path, rank: int, ranks: int) -> None:
    """Write what a rank of the measured loop writes, steps of 1 ms with a little variation."""
    t = 5_000_000_000
    with path.open("w") as file:
        file.write(_format_event("start", t, pid=1000 + rank))
        t += 1_000_000
        device = {"name": "AMD EPYC", "memory_total_bytes": 2**34}
        file.write(
            _format_event(
                "facts",
                t,
                device=device,
                memory_scope="process",
                precision_flags={},
                matmul_flops_per_second=1e11,
                steps_per_epoch=EPOCH_STEPS,
                collective="gloo",
                samples_per_epoch=EPOCH_STEPS * 64 * ranks,
            )
        )
        step, train_start = 0, t
        while step < STEPS:
            phase = "compile" if step == 0 else "warmup" if step < WARMUP else "train"
            end = 1 if step == 0 else min(step + WINDOW, WARMUP) if step < WARMUP else step + WINDOW
            count = min(end, STEPS, (step // EPOCH_STEPS + 1) * EPOCH_STEPS) - step
            step_ns = [1_000_000 + (step + i + rank) % 977 * 101 for i in range(count)]
            start, t = t, t + sum(step_ns)
            file.write(
                _format_event(
                    "window",
                    t,
                    phase=phase,
                    epoch=step // EPOCH_STEPS,
                    first_step=step,
                    start_ns=start,
                    end_ns=t,
                    step_ns=step_ns,
                    wait_ns=[value // 50 for value in step_ns],
                    loss=[0.7 - 1e-7 * (step + i) for i in range(count)],
                    samples=[64] * count,
                    step_samples=[64 * ranks] * count,
                    sequences=64 * count,
                    tokens=64 * count,
                    tokens_padded=64 * count,
                    micro_batches=count,
                    model_flops=1e6 * count,
                    used_bytes=2**28,
                )
            )
            step += count
        file.write(
            _format_event(
                "trained",
                t,
                start_ns=train_start,
                end_ns=t,
                steps=STEPS,
                epochs=-(-STEPS // EPOCH_STEPS),
                whole_epochs=STEPS // EPOCH_STEPS,
            )
        )
        file.write(
            _format_event(
                "parameters",
                t,
                changed={"weight": True},
                gradients={"weight": True},
                updates=STEPS,
            )
        )
        file.write(
            _format_event(
                "result",
                t,
                job={"skipped_steps": 0},
                allocator_peak_bytes=None,
                used_bytes=2**28,
            )
        )
        file.write(_format_event("end", t))


def _write_launcher(path: Path) -> None:
    # A launch follows its plan within days, or the record contradicts its run's id.
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with path.open("w") as file:
        file.write(_format_event("launch", 0, unix_ns=0, started=started, argv=[], environment={}))
        file.write(_format_event("ranks_ended", 2, failures=[]))


def measure_run(run_dir: Path) -> None:
    """Do what the launcher does after a run; print seconds and peak megabytes as JSON."""
    start = time.perf_counter()
    from trainmark.pages.page import write_pages
    from trainmark.record import record, reduce
    from trainmark.results.selection import select_results

    built = reduce.reduce(run_dir)
    record.write_record(built, run_dir)
    recorded = time.perf_counter()
    write_pages([built], run_dir)
    rendered = time.perf_counter()
    assert built.status == "target_missed"  # nothing was evaluated; all else is in order
    assert built.counts.steps == STEPS
    assert built.counts.samples == RANKS * STEPS * 64
    trust = built.trust
    del built
    (shown,) = select_results([str(run_dir)]).records
    verified = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert shown.trust == trust  # the evidence has nothing to add
    times = {
        "record_s": recorded - start,
        "pages_s": rendered - recorded,
        "verify_s": verified - rendered,
    }
    print(json.dumps(times | {"peak_mb": peak}))


def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        write_run(run_dir, Path(folder) / "cache")
        size = sum(path.stat().st_size for path in run_dir.iterdir())
        runs = []
        for _ in range(RUNS):
            (run_dir / "record.json").unlink(missing_ok=True)
            arguments = [sys.executable, "-m", "benchmarks.million_steps", str(run_dir)]
            process = subprocess.run(arguments, capture_output=True, text=True, check=True)
            runs.append(json.loads(process.stdout))
            print(f"  {runs[-1]}", file=sys.stderr)
        record_bytes = (run_dir / "record.json").stat().st_size
    total = sorted(run["record_s"] + run["pages_s"] for run in runs)
    checked = sorted(run["verify_s"] for run in runs)
    peak = max(run["peak_mb"] for run in runs)
    pages = sorted(run["pages_s"] for run in runs)[RUNS // 2]
    bars = [
        Bar(
            f"{STEPS:,} steps, {RANKS} ranks: record and pages, s",
            f"{total[RUNS // 2]:.1f} ({total[0]:.1f} to {total[-1]:.1f})",
            f"under {SECONDS:g}",
            total[RUNS // 2] < SECONDS,
        ),
        Bar(
            "the same, read again and verified, s",
            f"{checked[RUNS // 2]:.1f} ({checked[0]:.1f} to {checked[-1]:.1f})",
            f"under {SECONDS:g}",
            checked[RUNS // 2] < SECONDS,
        ),
        Bar("the same, peak memory, MB", f"{peak:.0f}", f"under {MEGABYTES:g}", peak < MEGABYTES),
    ]
    details = (
        f"{RANKS} ranks x {STEPS:,} steps, {size / 1e6:.0f} MB of events, windows of {WINDOW}; "
        f"the record has {record_bytes / 1e6:.0f} MB; {pages:.1f} s are the four pages."
    )
    return conclude("million_steps", "A million steps on eight ranks", bars, details)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure_run(Path(sys.argv[1]))
    else:
        sys.exit(not main())
