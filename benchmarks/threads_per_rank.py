"""Compare one thread per rank with one thread per core: tiny cases, one rank and two.

Each rank is a process that trains blocks of steps, alternating between the two numbers of threads.
One rank is also measured beside busy loops, one per core. The result states what share of the
cores other programs used meanwhile. On a machine that other programs use, Linux gives nearly all
cores to a session with this priority:

    setsid sh -c 'echo -20 > /proc/self/autogroup; exec python -m benchmarks threads_per_rank'
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude
from benchmarks.jobs import iterate_batches_endlessly
from trainmark.devices.cores import count_usable_cores
from trainmark.rank.process_group import leave_ranks
from trainmark.record.findings import BUSY_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = choose_size(
    ("toy", "distilbert_sst2", "gpt_megatron", "dlrm_criteo", "glm_superglue"), ("toy",)
)
ROUNDS = choose_size(5, 1)
BLOCK_S = choose_size(0.5, 0.05)  # of a block of steps with one thread
MIN_RATIO = 0.9  # more threads must not make a rank on quiet cores slower than that
SPIN_COUNT = "10000"  # GOMP_SPINCOUNT, as the launcher sets it


class Setup(NamedTuple):
    """Ranks that train together, and the busy loops that run beside them."""

    ranks: int
    busy_loops: int

    def __str__(self) -> str:
        ranks = "one rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{ranks}, {self.busy_loops} busy loops" if self.busy_loops else ranks


class Block(NamedTuple):
    """A block of steps: its seconds, and the share of the cores that other programs used."""

    seconds: float
    other_share: float


def _read_busy_seconds() -> float:
    """Return the processor time that all programs have used."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def run_rank(case: str, rank: int, ranks: int, data: Path, threads: tuple[int, int]) -> None:
    """Train blocks as one rank of ``ranks``; the first prints their times as JSON."""
    import torch

    from trainmark import cases
    from trainmark.devices.vendors.cpu import CpuDevice
    from trainmark.protocols import JobContext

    recipe = cases.load(case).recipes["tiny"]
    device = CpuDevice(threads=threads[0])
    torch.manual_seed(recipe.seed)
    if ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    context = JobContext(recipe=recipe, data_dir=data, rank=rank, world_size=ranks, device=device)
    module = cases.import_part(case, "job")
    job = module.build(context, module.load_data(context))
    batches = iterate_batches_endlessly(job)

    def add_over_ranks(value: float) -> float:
        total = torch.tensor([value], dtype=torch.float64)
        if ranks > 1:
            torch.distributed.all_reduce(total)
        return float(total)

    def measure_block(count: int, steps: int) -> Block:
        torch.set_num_threads(count)
        job.step(batches)  # threads are started, and ranks wait for each other
        busy_before = _read_busy_seconds()
        ranks_before = time.process_time()
        start = time.perf_counter()
        for _ in range(steps):
            if job.step(batches) is None:  # an epoch is over
                job.step(batches)
        seconds = time.perf_counter() - start
        ranks_used = add_over_ranks(time.process_time() - ranks_before)
        others_used = max(0.0, _read_busy_seconds() - busy_before - ranks_used)
        return Block(seconds, others_used / seconds / count_usable_cores())

    trial_steps = 10
    step_s = measure_block(1, trial_steps).seconds / trial_steps
    steps = max(2, round(BLOCK_S / (add_over_ranks(step_s) / ranks)))
    blocks: dict[int, list[Block]] = {count: [] for count in threads}
    for number in range(ROUNDS + 1):
        for count in threads if number % 2 == 0 else reversed(threads):
            measured = measure_block(count, steps)
            if number > 0:
                blocks[count].append(measured)
    if rank == 0:
        print(json.dumps([blocks[count] for count in threads]))
    batches.close()  # ends the thread that reads ahead
    if ranks > 1:
        torch.distributed.barrier()
        leave_ranks()
    sys.stdout.flush()
    os._exit(0)  # as `leave_ranks` asks for


def _measure(case: str, ranks: int, folder: Path, threads: tuple[int, int]) -> list[list[Block]]:
    """Start the ranks and return the blocks with each number of threads."""
    from trainmark.launch.local import hold_port
    from trainmark.plan.request import RunRequest
    from trainmark.plan.resolving import resolve

    plan = resolve(RunRequest(case=case, device="cpu"), generated_root=folder)
    with hold_port() as port:
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GOMP_SPINCOUNT": SPIN_COUNT,
            "OMP_NUM_THREADS": str(max(threads)),
        }
    arguments = [case, str(ranks), str(plan.data.folder), *map(str, threads)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.threads_per_rank", str(rank), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a rank of {case} failed")
    return [[Block(*block) for block in blocks] for blocks in json.loads(outputs[0])]


@contextmanager
def _run_busy_loops(count: int) -> Iterator[None]:
    """Run ``count`` processes that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> bool:
    cores = count_usable_cores()
    threads = (1, max(2, cores))
    bars: list[Bar] = []
    other_shares: tuple[list[float], list[float]] = ([], [])  # by the number of threads
    setups = (Setup(1, 0), Setup(2, 0), Setup(1, cores))
    with tempfile.TemporaryDirectory() as folder:
        for case, setup in product(CASES, setups):
            print(f"  {case}, {setup}", file=sys.stderr, flush=True)
            with _run_busy_loops(setup.busy_loops):
                with_one, with_more = _measure(case, setup.ranks, Path(folder), threads)
            speeds = compute_ratio([x.seconds for x in with_one], [x.seconds for x in with_more])
            if not setup.busy_loops:
                for shares, blocks in zip(other_shares, (with_one, with_more), strict=True):
                    shares += [block.other_share for block in blocks]
            is_within_cores = setup.ranks * threads[1] <= cores
            is_quiet = statistics.median(block.other_share for block in with_more) <= BUSY_SHARE
            is_judged = is_within_cores and is_quiet
            bars.append(
                Bar(
                    f"{case}, {setup}: speed with {threads[1]} threads each / with 1",
                    str(speeds),
                    f"at least {MIN_RATIO} on quiet cores" if is_within_cores else "none",
                    speeds.median >= MIN_RATIO if is_judged else None,
                )
            )
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    details = (
        f"{ROUNDS} rounds of blocks of {BLOCK_S:g} s. Without busy loops other programs used "
        f"{statistics.median(other_shares[0]):.0%} of the cores in the median block with one "
        f"thread per rank, {statistics.median(other_shares[1]):.0%} with {threads[1]}; load "
        f"average at the end {load}. GOMP_SPINCOUNT={SPIN_COUNT}, as the launcher sets it."
    )
    return conclude("threads_per_rank", "Threads of a rank on the processor", bars, details)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_text, case_name, ranks_text, data_folder, fewer, more = sys.argv[1:]
        threads_to_try = (int(fewer), int(more))
        run_rank(case_name, int(rank_text), int(ranks_text), Path(data_folder), threads_to_try)
    else:
        sys.exit(not main())
