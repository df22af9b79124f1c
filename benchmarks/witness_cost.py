"""What the probe of ``run --witness`` adds to a step of an unmodified program.

Two processes of the same program train blocks of steps in turns: one under the probe, one without
it. Compared is the processor time of a block, which other programs on the machine hardly change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave

STEPS, ROUNDS, WARMUP_STEPS = choose_size((25, 20, 30), (2, 1, 6))
ROWS, LENGTH, WIDTH, LAYERS = choose_size((8, 64, 192, 2), (2, 8, 16, 1))
BAR = 1.01
WORK = f"""
name = "blocks"
precision = "fp32"
warmup_steps = 5
window_steps = 50
[step]
samples = {ROWS}
tokens = {ROWS * LENGTH}
"""


def train_blocks() -> None:
    """Train a block of steps for each line on standard input; print its processor seconds."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, LENGTH, WIDTH))
    loader = DataLoader(data, batch_size=ROWS, shuffle=True, drop_last=True)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True) for _ in range(LAYERS)
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def batches() -> object:
        while True:
            yield from loader

    source = batches()
    for line in sys.stdin:
        began = time.process_time()
        for _ in range(int(line)):
            (inputs,) = next(source)  # type: ignore[call-overload]
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(time.process_time() - began, flush=True)


def start_program(variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start the program; it waits for blocks."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.witness_cost"],
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def measure_block(program: subprocess.Popen[str], steps: int = STEPS) -> float:
    """Let a program train a block; return its processor seconds."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{steps}\n")
    program.stdin.flush()
    return float(program.stdout.readline())


def plan_witness(folder: Path) -> dict[str, str]:
    """Write the plan that the probe reads; return the variables that load the probe."""
    from trainmark.plan.request import RunRequest
    from trainmark.plan.resolving import resolve
    from trainmark.witness import make_probe_variables

    file = folder / "work.toml"
    file.write_text(WORK)
    command = [sys.executable, "-m", "benchmarks.witness_cost"]
    request = RunRequest.build(
        case="witnessed", witness=file, command=command, device="cpu", out=folder / "run"
    )
    plan = resolve(request)
    run_dir = Path(plan.run_dir)
    run_dir.mkdir()
    plan.save(run_dir)
    return make_probe_variables(run_dir, os.environ)


def main() -> bool:
    """Interleave both programs and compare their blocks."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        variables = {"watched": plan_witness(Path(folder)), "unwatched": {}}
        programs = {
            name: stack.enter_context(start_program(of_name)) for name, of_name in variables.items()
        }
        for program in programs.values():
            measure_block(program, WARMUP_STEPS)
        blocks = {name: partial(measure_block, program) for name, program in programs.items()}
        seconds = interleave(blocks, rounds=ROUNDS)
        for program in programs.values():
            assert program.stdin is not None
            program.stdin.close()
            program.wait()
        num_events = len((Path(folder) / "run" / "events.rank0.jsonl").read_text().splitlines())
    cost = compute_ratio(seconds["watched"], seconds["unwatched"])
    step_ms = 1e3 * sorted(seconds["unwatched"])[len(seconds["unwatched"]) // 2] / STEPS
    bar = Bar(
        "processor time of a step under the probe / without it",
        str(cost),
        f"at most {BAR}",
        cost.median <= BAR,
    )
    details = (
        f"A transformer of {LAYERS} layers of width {WIDTH} on one thread, {ROWS} sequences of "
        f"{LENGTH} in a step, {step_ms:.1f} ms of processor time a step; {STEPS} steps a block, "
        f"windows of 50 steps, the two programs in turns. The probe wrote {num_events} events."
    )
    return conclude("witness_cost", "What the probe of a witnessed program costs", [bar], details)


if __name__ == "__main__":
    train_blocks()
