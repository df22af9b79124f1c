"""The record of a run on many machines: time, memory, and that what went wrong is named.

Events of a simulated launch: the clocks of nodes differ by seconds, one rank is slow, one node is
lost midway, and files are torn or malformed.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import Bar, choose_size, conclude

if TYPE_CHECKING:
    from trainmark.record.record import Record

NODES = choose_size((1, 8, 64, 128), (1, 3))
STEPS, RUNS = choose_size((100_000, 3), (1_000, 1))
NPROC, WINDOW, EPOCH_STEPS, BATCH, CORES = 8, 10, 500, 64, 2
SECONDS, MEGABYTES = 90.0, 1000.0
STEP_NS, SLOW_STEP_NS, WINDOW_NS = 1_000_000, 1_080_000, 10_950_000
SLOW, MALFORMED, TORN = 5, 3, 6  # ranks of the first node
PATTERNS = 61
BYTES_A_STEP = 70  # of events, rounded up
S = 1_000_000_000
UNIX_NS = 1_800_000_000 * S


class Clocks(NamedTuple):
    """What a node's clocks show beyond the true time."""

    own_ns: int
    wall_ns: int

    @classmethod
    def from_node(cls, node: int) -> Clocks:
        """Return those of ``node``: up to days apart, and up to three seconds."""
        random = Random(node)
        return cls(random.randrange(10**15), random.randrange(-3 * S, 3 * S))


def _format_event(event: str, t_ns: int, **fields: object) -> str:
    return json.dumps({"event": event, "t_ns": t_ns, **fields}, separators=(",", ":")) + "\n"


def _format_rest_of_window(steps: int, own_ns: int, world: int, number: int) -> str:
    """Return the part of a window's line that does not depend on the time."""
    steps_of_window = range(number, number + steps)
    counts = dict.fromkeys(("sequences", "tokens", "tokens_padded"), BATCH * steps)
    fields = {
        "step_ns": [own_ns + place % 17 * 101 for place in steps_of_window],
        "wait_ns": [20_000 + place % 13 * 97 for place in steps_of_window],
        "loss": [0.69 - place % 23 / 997 for place in steps_of_window],
        "samples": [BATCH] * steps,
        "step_samples": [BATCH * world] * steps,
        **counts,
        "micro_batches": steps,
        "model_flops": 1e6 * steps,
        "used_bytes": 2**28,
    }
    return json.dumps(fields, separators=(",", ":"))[1:] + "\n"


def _write_rank(path: Path, rank: int, world: int, last: int) -> None:
    """Write what a rank of the measured loop writes; a lost one stops after ``last`` steps."""
    clock = Clocks.from_node(rank // NPROC)
    own_ns = SLOW_STEP_NS if rank == SLOW else STEP_NS
    rests = [_format_rest_of_window(WINDOW, own_ns, world, number) for number in range(PATTERNS)]
    t = clock.own_ns + S
    with path.open("w") as file:
        file.write(_format_event("start", t, rank=rank, pid=1000 + rank, unix_ns=0))
        file.write(_format_event("span", t + S, name="init", start_ns=t, end_ns=t + S))
        unix_ns = UNIX_NS + 2 * S + clock.wall_ns
        # Some microseconds late, as ranks leave a barrier.
        file.write(
            _format_event("synced", t + S + rank % 7 * 1_000, unix_ns=unix_ns + rank % 7 * 1_000)
        )
        t += 2 * S
        file.write(
            _format_event(
                "facts",
                t,
                device={"name": "AMD EPYC", "memory_total_bytes": 2**34},
                memory_scope="process",
                precision_flags={},
                matmul_flops_per_second=1e11,
                steps_per_epoch=EPOCH_STEPS,
                collective="gloo",
                samples_per_epoch=EPOCH_STEPS * BATCH * world,
            )
        )
        train_start = t
        for phase, steps, first in (("compile", 1, 0), ("warmup", 9, 1)):
            start, t = t, t + steps * (WINDOW_NS // WINDOW)
            rest = _format_rest_of_window(steps, own_ns, world, rank)
            file.write(
                f'{{"event":"window","t_ns":{t},"phase":"{phase}","epoch":0,'
                f'"first_step":{first},"start_ns":{start},"end_ns":{t},{rest}'
            )
        for step in range(WINDOW, last, WINDOW):
            start, t = t, t + WINDOW_NS
            file.write(
                f'{{"event":"window","t_ns":{t},"phase":"train","epoch":{step // EPOCH_STEPS},'
                f'"first_step":{step},"start_ns":{start},"end_ns":{t},'
                f"{rests[(step + rank) % PATTERNS]}"
            )
            if rank == MALFORMED and step == last // 2:
                file.write('{"event":"window","t_ns":\n')
        if last < STEPS or rank == TORN:
            file.write('{"event":"window","t_ns":12')
            return
        epochs = STEPS // EPOCH_STEPS
        file.write(
            _format_event(
                "trained",
                t,
                start_ns=train_start,
                end_ns=t,
                steps=STEPS,
                epochs=epochs,
                samples=STEPS * BATCH,
                evaluations=0,
                target_reached=True,
                whole_epochs=epochs,
            )
            + _format_event(
                "parameters",
                t,
                changed={"weight": True},
                gradients={"weight": True},
                updates=STEPS,
            )
            + _format_event(
                "result",
                t,
                job={"skipped_steps": 0},
                allocator_peak_bytes=None,
                used_bytes=2**28,
                total_bytes=2**34,
                memory_scope="process",
            )
            + _format_event("end", t)
        )


def _end_ns() -> int:
    """Return the true time at which ranks end."""
    return 3 * S + STEPS // WINDOW * WINDOW_NS


def _choose_lost_node(nodes: int) -> int | None:
    """Return the node that is lost; none of a single one."""
    return nodes // 2 if nodes > 1 else None


def write_run(run_dir: Path, cache: Path, nodes: int) -> None:
    """Write plan and events of a launch of ``nodes`` nodes."""
    from trainmark.events.schema import (
        JOB_EVENTS_FILE,
        LAUNCHER_FILE,
        name_node_file,
        name_rank_file,
    )
    from trainmark.plan.choosing import RemoteTarget
    from trainmark.plan.request import RunRequest
    from trainmark.plan.resolving import resolve

    plan = resolve(
        RunRequest(
            case="toy",
            nnodes=nodes,
            nproc=NPROC,
            device="cpu",
            sample_every=0,
            out=run_dir,
            overrides={"steps": STEPS, "warmup_steps": WINDOW, "epochs": 100_000},
        ),
        remote=RemoteTarget(launcher="slurm"),
        generated_root=cache,
    )
    run_dir.mkdir()
    plan.save(run_dir)
    started = {"started": "2027-01-15T08:00:00+00:00", "argv": [], "environment": {}}
    (run_dir / LAUNCHER_FILE).write_text(_format_event("launch", 7, unix_ns=UNIX_NS, **started))
    lost = _choose_lost_node(nodes)
    how = ("completed", "COMPLETED") if lost is None else ("node_lost", "NODE_FAIL")
    (run_dir / JOB_EVENTS_FILE).write_text(
        _format_event("job", 9, phase="ended", ending=how[0], said=how[1], lost=[])
    )
    for node in range(nodes):
        clock = Clocks.from_node(node)
        text = _format_event(
            "launch", clock.own_ns, unix_ns=UNIX_NS + clock.wall_ns, node=node, **started
        )
        if node != lost:
            ended = clock.own_ns + _end_ns() + S
            text += _format_event("ranks_ended", ended, failures=[], others_cpu_share=0.0)
            text += _format_event("finished", ended)
        (run_dir / name_node_file(node)).write_text(text)
        last = STEPS // 2 if node == lost else STEPS
        for rank in range(node * NPROC, (node + 1) * NPROC):
            _write_rank(run_dir / name_rank_file(rank), rank, nodes * NPROC, last)


def measure_run(run_dir: Path, nodes: int) -> None:
    """Do what is done after a run, on two cores; print seconds and megabytes as JSON."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    start = time.perf_counter()
    from trainmark.record import reduce

    built = reduce.reduce(run_dir)
    recorded = time.perf_counter()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, children = (usage.ru_maxrss / 1024 for usage in usages)
    _check(built, nodes)
    from trainmark.pages.page import write_pages
    from trainmark.record import record

    written = time.perf_counter()
    record.write_record(built, run_dir)
    write_pages([built], run_dir)
    paged = time.perf_counter()
    times = {
        "record_s": recorded - start,
        "processor_s": sum(usage.ru_utime + usage.ru_stime for usage in usages),
        "pages_s": paged - written,
    }
    # At most: not all processes have their peak at the same time.
    print(json.dumps(times | {"peak_mb": own + CORES * children}))


def _check(built: Record, nodes: int) -> None:
    """Check that the record names what went wrong, on one clock."""
    lost, world = _choose_lost_node(nodes), nodes * NPROC
    assert len(built.ranks) == world
    whole = [entry for entry in built.ranks if entry.finished]
    assert {entry.rank for entry in built.ranks if not entry.finished} == {
        TORN,
        *(range(lost * NPROC, (lost + 1) * NPROC) if lost else ()),
    }
    assert all(abs((entry.wall_ns or 0) - _end_ns()) < 100_000 for entry in whole)
    steps = STEPS * world - (STEPS // 2 * NPROC if lost else 0)
    assert sum(entry.steps for entry in built.ranks) == steps
    assert built.counts.samples == steps * BATCH
    assert built.cause is not None
    if lost:
        assert built.cause.kind == "node_lost"
        assert built.cause.message.args["nodes"] == str(lost)
    else:
        assert (built.cause.rank, built.cause.message.args["lines"]) == (MALFORMED, 1)
    (slow,) = (found for found in built.findings if found.code == "slow_rank")
    assert (slow.args["rank"], slow.args["node"]) == (SLOW, 0)


def _measure(nodes: int) -> dict[str, float]:
    """Return the medians over the runs of one size."""
    world = nodes * NPROC
    with tempfile.TemporaryDirectory() as place:
        needed = world * STEPS * BYTES_A_STEP
        if shutil.disk_usage(place).free < 1.2 * needed:
            raise SystemExit(f"{place}: {needed / 1e9:.0f} GB of events do not fit")
        run_dir = Path(place) / "run"
        write_run(run_dir, Path(place) / "cache", nodes)
        size = sum(path.stat().st_size for path in run_dir.iterdir())
        runs = []
        for _ in range(RUNS):
            for path in run_dir.glob("record.json"):
                path.unlink()
            arguments = [sys.executable, "-m", "benchmarks.many_ranks", str(run_dir), str(nodes)]
            process = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
            runs.append(json.loads(process.stdout))
            print(f"  {world} ranks: {runs[-1]}", file=sys.stderr, flush=True)
        found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        times = sorted(run["record_s"] for run in runs)
        record_bytes = (run_dir / "record.json").stat().st_size
    return found | {
        "low_s": times[0],
        "high_s": times[-1],
        "bytes": size,
        "record_bytes": record_bytes,
    }


def main() -> bool:
    bars, details = [], []
    for nodes in NODES:
        found, world = _measure(nodes), nodes * NPROC
        judged = nodes == NODES[-1]
        spent = f"{found['record_s']:.1f} ({found['low_s']:.1f} to {found['high_s']:.1f})"
        bars += [
            Bar(
                f"{world:,} ranks on {nodes} nodes, {STEPS:,} steps: record, s",
                spent,
                f"under {SECONDS:g}" if judged else "",
                found["record_s"] < SECONDS if judged else None,
            ),
            Bar(
                "the same, peak memory of all processes, MB",
                f"{found['peak_mb']:.0f}",
                f"under {MEGABYTES:g}" if judged else "",
                found["peak_mb"] < MEGABYTES if judged else None,
            ),
        ]
        details.append(
            f"{world:,} ranks: {found['bytes'] / 1e6:,.0f} MB of events, "
            f"{world * STEPS / found['record_s'] / 1e6:.2f} million steps of ranks a second, "
            f"{found['processor_s']:.0f} s of processor time. The record has "
            f"{found['record_bytes'] / 1e6:.0f} MB; {found['pages_s']:.1f} s to write it with four "
            "pages."
        )
    details.append(
        f"On {CORES} cores. The clocks of nodes differ by up to three seconds and what they count "
        "from; rank 5 is 8% slower; the middle node is lost after half of its steps, with torn "
        "files; one more file is torn and one has a malformed line. The record names the lost "
        "node and the slow rank, or the benchmark fails."
    )
    return conclude("many_ranks", "The record of many ranks", bars, "\n\n".join(details))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure_run(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        sys.exit(not main())
