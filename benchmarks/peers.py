"""Training steps in processes of their own, each taking one step when asked.

Every variant lives as it would for its user (allocator settings included), and all see the
same load of the machine; the matmul rate is measured in the same rounds. A peer is a function of a
benchmark's module, called by name on that module's command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, interleave, ratio, sized
from benchmarks.jobs import endless_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

GEMM_SIZES = sized(
    {"fp32": (1024, 2048, 4096), "bf16": (256, 512)}, {"fp32": (128,), "bf16": (128,)}
)
GEMM_SECONDS, PROFILE_WARMUP = sized((1.0, 3), (0.01, 1))


def turns() -> Iterator[None]:
    """Yield each time the parent says so; report seconds of the turn before, peak bytes so far."""
    started = None
    while True:
        if started is not None:
            print(time.perf_counter() - started, _peak_bytes(), flush=True)
        if not sys.stdin.readline():
            return
        started = time.perf_counter()
        yield


def _peak_bytes() -> int:
    """Return the most memory that was resident; ``ru_maxrss`` would count the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def take_steps(job: Any) -> None:
    """Train one step of ``job`` a turn."""
    stream = endless_batches(job)
    print("ready", flush=True)
    for _ in turns():
        job.step(stream)


def run_trainer(
    model: Any, items: Sequence[Mapping[str, Any]], *, batch: int, planned: int, **arguments: Any
) -> None:
    """Train one step of ``transformers.Trainer`` a turn, with its fused AdamW.

    Args:
        items: the rows to train, in the model's own arguments.
        arguments: further ``TrainingArguments``.
    """
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    waiting = turns()

    class TakeTurns(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_words: Any, **_named: Any) -> None:
            print("ready", flush=True)
            next(waiting, None)

        def on_step_end(self, _args: Any, _state: Any, control: Any, **_named: Any) -> None:
            if next(waiting, "over") == "over":
                control.should_training_stop = True

    class Items(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, index: int) -> Any:
            return items[index]

    with tempfile.TemporaryDirectory() as place:
        settings = TrainingArguments(
            output_dir=place, per_device_train_batch_size=batch, max_steps=planned,
            use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True, dataloader_num_workers=0, **arguments,
        )  # fmt: skip
        Trainer(model=model, args=settings, train_dataset=Items(), callbacks=[TakeTurns()]).train()


def run_matmul(precision: str) -> None:
    """Measure square products a turn: the best size's sustained and best single rate."""
    import torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    products = [
        [torch.randn(size, size).to(dtype) for _ in range(3)] for size in GEMM_SIZES[precision]
    ]
    print("ready", flush=True)
    while sys.stdin.readline():
        rates = [_rates(*product) for product in products]
        sustained, single = (max(values) for values in zip(*rates, strict=True))
        print(sustained, single, flush=True)


def _rates(left: Any, right: Any, out: Any) -> tuple[float, float]:
    """Repeat one product for a second; return its sustained and its best single FLOP/s."""
    import torch

    flops = 2.0 * len(left) ** 3
    start, times = time.perf_counter(), [0.0]
    while times[-1] < GEMM_SECONDS:
        torch.mm(left, right, out=out)
        times.append(time.perf_counter() - start)
    shortest = min(after - before for before, after in pairwise(times))
    return flops * (len(times) - 1) / times[-1], flops / shortest


def print_profile(job: Any) -> None:
    """Print where one step of ``job`` spends its time, as Markdown rows."""
    from torch.profiler import ProfilerActivity, profile

    stream = endless_batches(job)
    for _ in range(PROFILE_WARMUP):
        job.step(stream)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        job.step(stream)
    events = sorted(found.key_averages(), key=lambda item: -item.self_cpu_time_total)
    total = sum(item.self_cpu_time_total for item in events)
    products = ("aten::mm", "aten::addmm", "aten::bmm")
    share = sum(item.self_cpu_time_total for item in events if item.key in products) / total
    print(f"| all matrix products | {100 * share:.1f}% |")
    for item in events[:14]:
        print(f"| `{item.key}` | {100 * item.self_cpu_time_total / total:.1f}% |")


class Peer:
    """A variant in its own process, taking one turn when asked.

    Args:
        module: the benchmark's module, ``benchmarks.gpt_step``.
        words: the part's name and its arguments.
    """

    def __init__(self, module: str, *words: str) -> None:
        self.more: list[list[float]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", f"{words}: {line!r}"

    def turn(self) -> float:
        """Ask for one turn; return its first number and keep the others in ``more``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        first, *rest = map(float, self.process.stdout.readline().split())
        self.more.append(rest)
        return first

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def profile_table(module: str, *words: str) -> str:
    """Return the profile that a part of ``module`` prints, with its head."""
    command = [sys.executable, "-m", module, *words]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return f"Where one of our fp32 steps goes:\n\n| operation | share |\n|---|---|\n{rows}"


def fp32_bars(
    module: str,
    parts: Mapping[str, Sequence[str]],
    labels: Mapping[str, str],
    bars: Mapping[str, float],
    *,
    flops: float,
    rounds: int,
    warmup: int,
) -> tuple[list[Bar], str]:
    """Interleave ``ours`` with its peers and with matrix products.

    Args:
        parts: the command-line arguments of each variant, ``ours`` among them.
        labels: how each peer is called in the table.
        bars: least speed against each peer; under ``matmul`` least share of its rate; under
            ``memory``, where it is asked for, the largest part of each peer's peak.
        flops: model FLOPs of one step.
    """
    with ExitStack() as stack:
        matmul = stack.enter_context(Peer("benchmarks.peers", "matmul", "fp32"))
        peers = {name: stack.enter_context(Peer(module, *words)) for name, words in parts.items()}
        variants = {name: peer.turn for name, peer in peers.items()}
        found = interleave({**variants, "matmul": matmul.turn}, rounds=rounds, warmup=warmup)
        peaks = {name: peer.more[-1][0] for name, peer in peers.items()}
        single = [rates[0] for rates in matmul.more[warmup:]]
    rows = []
    for name, label in labels.items():
        speed = ratio(found[name], found["ours"])
        least = bars[name]
        rows.append(
            Bar(f"ours / {label}, speed", str(speed), f"at least {least:g}", speed.median >= least)
        )
        if "memory" in bars:
            rows.append(_memory_bar(label, peaks["ours"], peaks[name], bars["memory"]))
    reached = [flops / seconds for seconds in found["ours"]]
    share = ratio(reached, found["matmul"])
    rows.append(
        Bar("model FLOP/s / matmul FLOP/s", str(share), f"at least {bars['matmul']:g}",
            share.median >= bars["matmul"])
    )  # fmt: skip
    middle = {name: sorted(values)[len(values) // 2] for name, values in found.items()}
    each = ", ".join(f"{name} {middle[name]:.2f} s" for name in parts)
    details = (
        f"Medians of {rounds} rounds: {each} a step of {flops / 1e9:.0f} GFLOP; matmul "
        f"{middle['matmul'] / 1e9:.0f} GFLOP/s, in each round the best of "
        f"{', '.join(map(str, GEMM_SIZES['fp32']))} squared, each sustained for a second, since "
        "a step lasts seconds too. Against the best single product of each round the share is "
        f"{ratio(reached, single)}. Trainer with its fused AdamW, without logging or saving; "
        "all with the same batches and learning rate schedule."
    )
    return rows, details


def _memory_bar(label: str, ours: float, theirs: float, most: float) -> Bar:
    measured = f"{ours / theirs:.3f} ({ours / 2**20:.0f} MiB of {theirs / 2**20:.0f} MiB)"
    return Bar(
        f"ours / {label}, peak memory of the process", measured, f"at most {most:g}",
        ours <= most * theirs,
    )  # fmt: skip


def bf16_bar(
    module: str, parts_for: Callable[[bool], Mapping[str, Sequence[str]]], least: float, small: str
) -> tuple[Bar, str]:
    """Compare our bf16 step with our fp32 step, at a size that ends where bf16 is slow.

    Args:
        parts_for: called with whether bf16 products are fast here; returns the words of
            ``fp32`` and ``bf16``.
        small: what the small size is, in words.
    """
    with (
        Peer("benchmarks.peers", "matmul", "fp32") as one,
        Peer("benchmarks.peers", "matmul", "bf16") as two,
    ):
        rates = interleave({"fp32": one.turn, "bf16": two.turn}, rounds=3)
    products = ratio(rates["bf16"], rates["fp32"])
    fast = products.median > 1
    parts = parts_for(fast)
    with Peer(module, *parts["fp32"]) as one, Peer(module, *parts["bf16"]) as two:
        found = interleave({"fp32": one.turn, "bf16": two.turn}, rounds=9 if fast else 3)
    speed = ratio(found["fp32"], found["bf16"])
    bar = Bar("our bf16 / our fp32, speed", str(speed), f"at least {least:g}",
              speed.median >= least)  # fmt: skip
    size = "at full size" if fast else f"at {small}, because full size would take hours"
    return bar, (
        f"bf16 {size}. The matmul rate of this device in bf16 is {products} of that in fp32: "
        + ("it has bf16 units." if fast else "it has no bf16 units, which bounds any bf16 step.")
    )


def serve(parts: Mapping[str, Callable[..., None]]) -> None:
    """Run the part that the command line names, with its further words."""
    name, *words = sys.argv[1:]
    parts[name](*words)


if __name__ == "__main__":
    serve({"matmul": run_matmul})
