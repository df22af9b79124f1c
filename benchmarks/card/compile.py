"""``torch.compile``: what its first steps cost cold and warm, and when that is paid back.

Each variant is the case's own job in a process of its own. Cold: the compiler's caches on disk are
empty. Warm: another process has filled them. Steady steps of all variants are interleaved.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.card.section import Findings
from benchmarks.harness import Bar, choose_size, compute_ratio, interleave
from benchmarks.jobs import build, iterate_batches_endlessly
from benchmarks.peers import Peer, PeerFailedError, serve, take_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.card.section import Card
    from trainmark.protocols import Batch
    from trainmark.recipe import Recipe

TITLE = "Compiled steps: cold and warm"
MODULE = "benchmarks.card.compile"
FIRST_STEPS = 3
ROUNDS, WARMUP, TURN_S, BUDGET_S = choose_size((11, 2, 0.5, 200.0), (1, 1, 0.0, 200.0))
Sizes = dict[str, dict[str, object]]
# Changes of the tiny recipe. Smaller on a processor, whose steps are never short of work.
ACCELERATOR: Sizes = {
    "gpt_megatron": {
        "num_layers": 12, "hidden_size": 768, "num_heads": 12, "seq_length": 1024, "bs": 16,
        "vocab_size": 50257, "precision": "bf16",
    },
    "distilbert_sst2": {"bs": 64, "precision": "bf16"},
    "glm_superglue": {
        "num_layers": 6, "hidden_size": 1024, "num_heads": 16, "precision": "bf16",
    },
    "llama2_7b_lora": {
        "model_size": "7b-2layers", "init": "random", "seq": 512, "bs": 4, "precision": "bf16",
        "weights_dtype": "bf16", "target": "none", "eval_every_epochs": "none", "mmlu_mode": "off",
    },
}  # fmt: skip
PROCESSOR: Sizes = {
    "distilbert_sst2": {},
    "gpt_megatron": {"hidden_size": 256, "num_heads": 4, "seq_length": 128, "bs": 8},
    "llama2_7b_lora": {},
    "glm_superglue": {},
}
VARIANTS = {"cold": "true", "eager": "false", "warm": "true"}


class Repeated:
    """A job whose step is several of another job's whole ones, until the device has done them."""

    def __init__(self, job: Any) -> None:
        self.job, self.context, self.batches = job, job.context, job.batches
        size = self.context.recipe.micro_batch_size
        # A short last batch is another shape, which would be compiled among the steady steps.
        self.whole: Iterator[Batch] = (
            batch for batch in iterate_batches_endlessly(job) if batch.step_samples == size
        )
        self.steps = 1

    def step(self, _batches: Iterator[Batch]) -> None:
        for batch in islice(self.whole, self.steps):
            self.job.step(iter([batch]))
        self.context.device.synchronize()


def _time_step(job: Repeated) -> float:
    job.context.device.synchronize()
    start = time.perf_counter()
    job.step(iter(()))
    return time.perf_counter() - start


def _read_compiler_facts(recipe: Recipe) -> dict[str, Any] | None:
    """Return the compiler's counts of this process; None where nothing is compiled or counted."""
    from torch._dynamo.utils import counters

    from trainmark.train.parallel import count_compiled_graphs

    graphs = count_compiled_graphs() if recipe.compile else None
    if graphs is None:
        return None
    inductor = counters["inductor"]
    return {
        "graphs": graphs,
        "graph_breaks": sum(counters["graph_break"].values()),
        "cache_hits": inductor.get("fxgraph_cache_hit", 0),
        "cache_misses": inductor.get("fxgraph_cache_miss", 0),
    }


def run_variant(case: str, device_name: str, changes: str, file: str, stay: str) -> None:
    """Take the first steps, write their times to ``file``; with ``stay`` take further ones."""
    start = time.perf_counter()
    built, _ = build(case, device_name=device_name, **json.loads(changes))
    job = Repeated(built)
    ready = time.perf_counter()
    first = [_time_step(job) for _ in range(FIRST_STEPS)]
    job.steps = max(1, round(TURN_S / first[-1]))
    told = {
        "build_s": ready - start,
        "first": first,
        "steps": job.steps,
        "compiler": _read_compiler_facts(built.context.recipe),
    }
    Path(file).write_text(json.dumps(told), encoding="ascii")
    if stay == "stay":
        take_steps(job)


def _find_missing_compiler(counts_cores: bool) -> str | None:
    """Return what the compiler's generated code needs and is not here."""
    needed = [os.environ.get("CXX", "g++")] if counts_cores else [os.environ.get("CC"), "gcc", "cc"]
    if any(name and shutil.which(name) for name in needed):
        return None
    return " or ".join(name for name in needed if name)


def _measure(case: str, device: str, changes: dict[str, object], folder: Path) -> dict[str, Any]:
    """Return each variant's first steps, its compiler's counts and its steady times, by name.

    Raises:
        PeerFailedError: a variant could not be measured.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ[name] = str(folder / name.lower())
    arguments: dict[str, list[str]] = {}
    for name, compiled in VARIANTS.items():
        asked = json.dumps(changes | {"compile": compiled})
        arguments[name] = ["variant", case, device, asked, str(folder / f"{name}.json")]
    # Its errors go to the section's log.
    cold = subprocess.run([sys.executable, "-m", MODULE, *arguments["cold"], "end"], check=False)
    if cold.returncode:
        raise PeerFailedError(f"the first compiled steps of {case} ended with {cold.returncode}")
    with ExitStack() as stack:
        peers = {
            name: stack.enter_context(Peer(MODULE, *arguments[name], "stay"))
            for name in ("eager", "warm")
        }
        turns = {name: peer.turn for name, peer in peers.items()}
        times = interleave(turns, rounds=ROUNDS, warmup=WARMUP)
    documents = {
        name: json.loads((folder / f"{name}.json").read_text()) for name in ("cold", *peers)
    }
    for name, values in times.items():
        documents[name]["steady"] = [value / documents[name]["steps"] for value in values]
    return documents


def _compute_steps_to_pay(documents: Mapping[str, Any], start: str) -> float | None:
    """Return after how many steps compiled ones have taken less time.

    None: compiled steps are not faster, or not by more than the noise.
    """
    speed = compute_ratio(documents["eager"]["steady"], documents["warm"]["steady"])
    if speed.low <= 1:
        return None
    saved_s = statistics.median(documents["eager"]["steady"]) * (1 - 1 / speed.median)
    lost_s = sum(documents[start]["first"]) - sum(documents["eager"]["first"])
    return FIRST_STEPS + max(0.0, lost_s) / saved_s


def _format_row(case: str, name: str, documents: Mapping[str, Any]) -> str:
    document, counts = documents[name], documents[name]["compiler"] or {}
    hits, misses = counts.get("cache_hits", "-"), counts.get("cache_misses", "-")
    steady = gain = pays = "-"
    if "steady" in document:
        steady = f"{1e3 * statistics.median(document['steady']):.2f}"
        gain = str(compute_ratio(documents["eager"]["steady"], document["steady"]))
    if name != "eager":
        steps = _compute_steps_to_pay(documents, name)
        pays = "not seen" if steps is None else f"{steps:,.0f}"
    first = " + ".join(f"{seconds:.2f}" for seconds in document["first"])
    return f"| {case} | {name} | {first} | {hits} / {misses} | {steady} | {gain} | {pays} |"


def run(card: Card) -> Findings:
    from trainmark import devices

    counts_cores = devices.choose_vendor(card.device).counts_cores
    sizes = choose_size(PROCESSOR if counts_cores else ACCELERATOR, {"toy": {}})
    missing = _find_missing_compiler(counts_cores)
    if missing is not None:
        names = dict.fromkeys(f"{case}_cold_first_step_s" for case in sizes)
        return Findings([], dict(names), f"Nothing was compiled: it needs {missing}.")
    start = time.perf_counter()
    figures: dict[str, float | None] = {}
    bars: list[Bar] = []
    rows: list[str] = []
    left_out: list[str] = []
    for case, changes in sizes.items():
        if time.perf_counter() - start > BUDGET_S:
            left_out.append(case)
            figures[f"{case}_cold_first_step_s"] = None
            continue
        try:
            documents = _measure(case, card.device, changes, card.scratch / "compile" / case)
        except PeerFailedError as error:
            # A variant that fails must not take the other cases' figures with it.
            bars.append(Bar(f"{case}: compiled steps", str(error), "no variant fails", False))
            figures[f"{case}_cold_first_step_s"] = None
            continue
        rows += [_format_row(case, name, documents) for name in documents]
        for name, document in documents.items():
            figures[f"{case}_{name}_first_step_s"] = document["first"][0]
            if "steady" in document:
                figures[f"{case}_{name}_step_s"] = statistics.median(document["steady"])
        for name in ("cold", "warm"):
            figures[f"{case}_{name}_steps_to_pay"] = _compute_steps_to_pay(documents, name)
    changed = "; ".join(
        f"{case}: {', '.join(f'{key}={value}' for key, value in changes.items()) or 'as it is'}"
        for case, changes in sizes.items()
    )
    head = (
        "| case | variant | first steps, s | cache hits / misses | steady step, ms "
        "| eager / it, speed | pays after steps |\n|---|---|---|---|---|---|---|"
    )
    text = "\n".join([head, *rows]) + (
        f"\n\nThe tiny recipes, changed: {changed}. {ROUNDS} interleaved rounds of about "
        f"{TURN_S:g} s. The steps after which it pays count the first ones of either, not the "
        "import of the compiler; not seen: compiled steps were not faster beyond the noise."
    )
    if left_out:
        text += f" No time was left for {', '.join(left_out)}."
    return Findings(bars, figures, text)


main = partial(serve, {"variant": run_variant})

if __name__ == "__main__":
    main()
