"""The DistilBERT-base training step on a CPU: ours, ``transformers.Trainer``, a plain loop.

Sequence 128, batch 16. Every variant lives in a process of its own, as it would for its
user (allocator settings included), and takes one step when it is its turn, so that all
see the same weather. The matmul rate is measured in the same rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, conclude, interleave, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH, SEQUENCE, LEARNING_RATE, PLANNED = 16, 128, 5e-5, 10_000
ROUNDS, WARMUP = 15, 3
BARS = {"trainer": 1.0, "plain": 1.15, "matmul": 0.85, "bf16": 2.3}
GEMM_SIZES = {"fp32": (1024, 2048, 4096), "bf16": (256, 512)}
GEMM_SECONDS = 1.0


def make_data(folder: Path, *, layers: int = 6) -> None:
    """Write the case's generated data with the base model's sizes beside it."""
    from trainmark import cases

    case = cases.load("distilbert_sst2")
    folder.mkdir()
    case.generate(folder, case.recipes["tiny"])
    config = folder / "model" / "config.json"
    sizes = {
        "dim": 768, "hidden_dim": 3072, "n_heads": 12, "n_layers": layers, "vocab_size": 30522,
        "max_position_embeddings": 512, "dropout": 0.1, "attention_dropout": 0.1,
        "seq_classif_dropout": 0.2,
    }  # fmt: skip
    config.write_text(json.dumps(json.loads(config.read_text()) | sizes))


def our_job(folder: Path, *, precision: str, batch: int) -> Any:
    """Return the case's own job on that data."""
    import torch

    from trainmark import cases, devices
    from trainmark.protocols import JobContext

    case = cases.load("distilbert_sst2")
    recipe = case.recipe_type(
        init="random", seq_length=SEQUENCE, micro_batch_size=batch, precision=precision,
        learning_rate=LEARNING_RATE, max_epochs=1000,
    )  # fmt: skip
    device = devices.choose("cpu").open(0, 1)
    device.set_precision(recipe.precision)
    torch.manual_seed(recipe.seed)
    module = cases.job_module("distilbert_sst2")
    context = JobContext(recipe=recipe, data_dir=folder, rank=0, world_size=1, device=device)
    return module.build(context, module.load_data(context))


def library_model(folder: Path) -> Any:
    """Return the library's model as the library gives it."""
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(1)
    config = DistilBertConfig.from_json_file(folder / "model" / "config.json")
    return DistilBertForSequenceClassification(config).train()


def batches(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the library's arguments from the very batches that our job trains."""
    import torch

    job = our_job(folder, precision="fp32", batch=BATCH)
    kept = []
    for batch in job.batches(0):
        ids, mask, labels = batch.tensors
        if len(labels) == BATCH:
            kept.append({"input_ids": ids, "attention_mask": mask.long(), "labels": labels})
        if len(kept) == 32:
            break
    del job
    torch.manual_seed(1)
    while True:
        yield from kept


def turns() -> Iterator[None]:
    """Yield each time the parent says so; report the seconds of the turn before."""
    started = None
    while True:
        if started is not None:
            print(time.perf_counter() - started, flush=True)
        if not sys.stdin.readline():
            return
        started = time.perf_counter()
        yield


def run_ours(folder: Path, precision: str, batch: int) -> None:
    job = our_job(folder, precision=precision, batch=batch)
    stream = (item for epoch in range(10**6) for item in job.batches(epoch))
    print("ready", flush=True)
    for _ in turns():
        job.step(stream)


def run_plain(folder: Path) -> None:
    import torch

    model = library_model(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / PLANNED)
    source = batches(folder)
    next(source)
    print("ready", flush=True)
    for _ in turns():
        loss = model(**next(source)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()


def run_trainer(folder: Path) -> None:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    source = batches(folder)
    rows = [next(source) for _ in range(32)]
    items = [
        {name: value[row] for name, value in batch.items()}
        for batch in rows
        for row in range(BATCH)
    ]
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
        arguments = TrainingArguments(
            output_dir=place, per_device_train_batch_size=BATCH, learning_rate=LEARNING_RATE,
            max_steps=PLANNED, lr_scheduler_type="linear", weight_decay=0.0, max_grad_norm=0.0,
            use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True, dataloader_num_workers=0,
        )  # fmt: skip
        Trainer(
            model=library_model(folder), args=arguments, train_dataset=Items(),
            callbacks=[TakeTurns()],
        ).train()  # fmt: skip


def run_matmul(precision: str) -> None:
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


class Peer:
    """A variant in its own process, taking one turn when asked."""

    def __init__(self, *words: str) -> None:
        self.more: list[list[float]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.distilbert_step", *words],
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


def run_profile(folder: Path) -> None:
    """Print where one of our steps spends its time, as Markdown rows."""
    from torch.profiler import ProfilerActivity, profile

    job = our_job(folder, precision="fp32", batch=BATCH)
    stream = job.batches(0)
    for _ in range(WARMUP):
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


def _profile(folder: Path) -> str:
    words = [sys.executable, "-m", "benchmarks.distilbert_step", "profile", str(folder)]
    rows = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return f"Where one of our fp32 steps goes:\n\n| operation | share |\n|---|---|\n{rows}"


def _flops(folder: Path) -> float:
    from trainmark.protocols import Counts

    job = our_job(folder, precision="fp32", batch=BATCH)
    return float(job.model_flops(Counts(BATCH, BATCH, BATCH * SEQUENCE, BATCH * SEQUENCE)))


def _fp32_bars(folder: Path) -> tuple[list[Bar], str]:
    flops = _flops(folder)
    with ExitStack() as stack:
        start = lambda *words: stack.enter_context(Peer(*words))  # noqa: E731
        matmul = start("matmul", "fp32")
        variants = {
            "ours": start("ours", str(folder), "fp32", str(BATCH)).turn,
            "trainer": start("trainer", str(folder)).turn,
            "plain": start("plain", str(folder)).turn,
            "matmul": matmul.turn,
        }
        found = interleave(variants, rounds=ROUNDS, warmup=WARMUP)
        single = [rates[0] for rates in matmul.more[WARMUP:]]
    bars = []
    for name in ("trainer", "plain"):
        speed = ratio(found[name], found["ours"])
        label = "`transformers.Trainer`" if name == "trainer" else "a plain loop"
        what = f"ours / {label}, speed"
        bars.append(Bar(what, str(speed), f"at least {BARS[name]:g}", speed.median >= BARS[name]))
    reached = [flops / seconds for seconds in found["ours"]]
    share = ratio(reached, found["matmul"])
    bars.append(
        Bar("model FLOP/s / matmul FLOP/s", str(share), f"at least {BARS['matmul']:g}",
            share.median >= BARS["matmul"])
    )  # fmt: skip
    middle = {name: sorted(values)[len(values) // 2] for name, values in found.items()}
    details = (
        f"Medians of {ROUNDS} rounds: ours {middle['ours']:.2f} s, Trainer "
        f"{middle['trainer']:.2f} s, plain loop {middle['plain']:.2f} s a step of "
        f"{flops / 1e9:.0f} GFLOP; matmul {middle['matmul'] / 1e9:.0f} GFLOP/s, in each round "
        "the best of 1024, 2048 and 4096 squared, each sustained for a second, since a step "
        "lasts seconds too. Against the best single product of each round the share is "
        f"{ratio(reached, single)}. Trainer with its fused AdamW, without "
        "gradient clipping, logging or saving; plain loop with default AdamW and the loss read "
        "every step; all with the same batches and learning rate schedule."
    )
    return bars, details


def _bf16_bar(place: Path) -> tuple[Bar, str]:
    """Compare at full size where bf16 products are fast, else at a size that ends."""
    with Peer("matmul", "fp32") as fp32, Peer("matmul", "bf16") as bf16:
        rates = interleave({"fp32": fp32.turn, "bf16": bf16.turn}, rounds=3)
    products = ratio(rates["bf16"], rates["fp32"])
    fast = products.median > 1
    folder = place / "bf16"
    make_data(folder, layers=6 if fast else 1)
    batch = str(BATCH if fast else 1)
    with (
        Peer("ours", str(folder), "fp32", batch) as one,
        Peer("ours", str(folder), "bf16", batch) as two,
    ):
        found = interleave({"fp32": one.turn, "bf16": two.turn}, rounds=9 if fast else 3)
    speed = ratio(found["fp32"], found["bf16"])
    bar = Bar("our bf16 / our fp32, speed", str(speed), f"at least {BARS['bf16']:g}",
              speed.median >= BARS["bf16"])  # fmt: skip
    size = "at full size" if fast else "at 1 layer, batch 1, because full size would take hours"
    return bar, (
        f"bf16 {size}. The matmul rate of this device in bf16 is {products} of that in fp32: "
        + ("it has bf16 units." if fast else "it has no bf16 units, which bounds any bf16 step.")
    )


def main() -> bool:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder = place / "data"
        make_data(folder)
        bars, details = _fp32_bars(folder)
        bar, more = _bf16_bar(place)
        where = _profile(folder)
    return conclude(
        "distilbert_step", f"The DistilBERT-base step, batch {BATCH}, sequence {SEQUENCE}, CPU",
        [*bars, bar], f"{details}\n\n{more}\n\n{where}",
    )  # fmt: skip


if __name__ == "__main__":
    parts: dict[str, Callable[..., None]] = {
        "ours": lambda folder, precision, batch: run_ours(Path(folder), precision, int(batch)),
        "plain": lambda folder: run_plain(Path(folder)),
        "trainer": lambda folder: run_trainer(Path(folder)),
        "matmul": run_matmul,
        "profile": lambda folder: run_profile(Path(folder)),
    }
    if len(sys.argv) > 1:
        partial(parts[sys.argv[1]], *sys.argv[2:])()
    else:
        sys.exit(not main())
