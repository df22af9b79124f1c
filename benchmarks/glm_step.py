"""The GLM training step on a CPU: ours against the original's arithmetic written out.

Four layers of the standard width, the whole vocabulary, one sample of four candidates of
256 tokens, nearly all of them real. Both with dropout, clipping and fused AdamW.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave
from benchmarks.peers import Peer, compare_in_bf16, iterate_turns, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.protocols import Device

MODULE = "benchmarks.glm_step"
LAYERS, SEQUENCE, CHOICES = choose_size((4, 256, 4), (1, 32, 2))
ANSWER, PADDING = 4, 6  # tokens of an answer block, and behind it
SMALL_SIZES = (1, 32)  # layers and tokens at which bf16 ends without bf16 units
ROUNDS, WARMUP = 9, 1
BARS = {"fp32": 1.5, "bf16": 3.0, "memory": 0.6}
RATE, MAX_NORM = 1e-5, 1.0


def make_shape(layers: int) -> Any:
    from trainmark.cases.glm_superglue.case import GlmShape

    return GlmShape(num_layers=layers)


def draw_sequences(length: int) -> tuple[Any, ...]:
    """Return ids, positions, block positions (CHOICES, length) and separators (CHOICES,).

    One passage, and behind it each candidate's own answer block.
    """
    import torch

    torch.manual_seed(1)
    context = length - ANSWER - PADDING
    ids = torch.randint(1, make_shape(1).vocab_size, (1, length)).repeat(CHOICES, 1)
    ids[:, context:] = torch.randint(1, 1000, (CHOICES, length - context))
    positions, blocks = torch.arange(length).repeat(CHOICES, 1), torch.zeros_like(ids)
    positions[:, context:] = context // 2  # where the gap is
    blocks[:, context : context + ANSWER] = torch.arange(1, ANSWER + 1)
    return ids, positions, blocks, torch.full((CHOICES,), context)


def build_sums(variant: str, layers: int, length: int) -> tuple[Any, Callable[[], Any]]:
    """Return a model and a function for its sums of log-probabilities, (CHOICES,)."""
    import torch

    inputs, context = draw_sequences(length), length - ANSWER - PADDING
    shape = make_shape(layers)
    answers = torch.randint(1, shape.vocab_size, (CHOICES, ANSWER))
    asked = slice(context, context + ANSWER)
    if variant == "plain":
        from benchmarks.glm_plain import PlainGlm

        plain = PlainGlm(shape).train()
        targets, counted = torch.zeros_like(inputs[0]), torch.zeros(CHOICES, length)
        targets[:, asked], counted[:, asked] = answers, 1.0
        return plain, lambda: plain(*inputs, targets, counted)
    from trainmark.cases.glm_superglue.model import build_model

    ours = build_model(shape, seed=1)
    rows = torch.arange(CHOICES * length).view(CHOICES, length)[:, asked].flatten()
    return ours, lambda: ours(*inputs, rows, answers.flatten()).view(CHOICES, ANSWER).sum(1)


def step_of(
    variant: str, precision: str, layers: int, length: int
) -> tuple[Device, Callable[[], None]]:
    """Return the device and a function that takes one training step on one sample."""
    import torch

    from trainmark import devices
    from trainmark.train.stepper import AUTOCAST_DTYPES

    device = devices.choose_vendor("cpu").open(0, 1)
    model, sums = build_sums(variant, layers, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    right = torch.zeros(1, dtype=torch.int64)

    def step() -> None:
        with torch.autocast("cpu", AUTOCAST_DTYPES.get(precision), enabled=precision != "fp32"):
            loss = torch.nn.functional.cross_entropy(sums()[None].float(), right)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return device, step


def run_steps(variant: str, precision: str, layers: str, length: str) -> None:
    """Take a step a turn."""
    device, step = step_of(variant, precision, int(layers), int(length))
    for _ in iterate_turns(device):
        step()


def run_peak(variant: str) -> None:
    """Print what tensors took at most in a step, and the process, in bytes.

    The tensors of a second step: weights and the optimizer's two states stand before it.
    """
    from torch.profiler import ProfilerActivity, profile

    device, step = step_of(variant, "fp32", LAYERS, SEQUENCE)
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        step()
    kineto: Any = recording.profiler
    events = [item for item in kineto.kineto_results.events() if item.name() == "[memory]"]
    changes = (item.nbytes() for item in sorted(events, key=lambda item: item.start_ns()))
    weight_bytes = 3 * 4 * make_shape(LAYERS).parameters
    peak = max(accumulate(changes, initial=weight_bytes))
    print(peak, device.memory().used_bytes)


def compare_peaks() -> tuple[Bar, str]:
    """Compare the peaks of one process each."""
    gib = {}
    for variant in ("ours", "plain"):
        arguments = [sys.executable, "-m", MODULE, "peak", variant]
        printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        gib[variant] = [int(word) / 2**30 for word in printed.splitlines()[-1].split()]
    tensors, resident = (gib["ours"][kind] / gib["plain"][kind] for kind in range(2))
    bar = Bar(
        "peak memory of all tensors, ours / plain",
        f"{tensors:.3f}",
        f"at most {BARS['memory']:g}",
        tensors <= BARS["memory"],
    )
    return bar, (
        f"Tensors are weights, gradients, AdamW's two states and activations: ours "
        f"{gib['ours'][0]:.2f} GiB, plain {gib['plain'][0]:.2f} GiB at their peaks. Of the whole "
        f"process, interpreter, profiler and gaps in its heap included: {gib['ours'][1]:.2f} and "
        f"{gib['plain'][1]:.2f} GiB resident, {resident:.3f}."
    )


def main() -> bool:
    sizes = (str(LAYERS), str(SEQUENCE))
    with (
        Peer(MODULE, "steps", "ours", "fp32", *sizes) as ours,
        Peer(MODULE, "steps", "plain", "fp32", *sizes) as plain,
    ):
        seconds_by_name = interleave(
            {"ours": ours.turn, "plain": plain.turn}, rounds=ROUNDS, warmup=WARMUP
        )
    speed = compute_ratio(seconds_by_name["plain"], seconds_by_name["ours"])
    fast = Bar(
        "ours / plain, speed in fp32",
        str(speed),
        f"at least {BARS['fp32']:g}",
        speed.median >= BARS["fp32"],
    )
    memory, memory_details = compare_peaks()

    def list_parts(units: bool) -> dict[str, tuple[str, ...]]:
        arguments = sizes if units else tuple(map(str, SMALL_SIZES))
        return {
            "fp32": ("steps", "plain", "fp32", *arguments),
            "bf16": ("steps", "ours", "bf16", *arguments),
        }

    small = f"{SMALL_SIZES[0]} layer, {SMALL_SIZES[1]} tokens a candidate"
    bar, details_of_bf16 = compare_in_bf16(MODULE, list_parts, BARS["bf16"], small)
    bar = replace(bar, what="ours in bf16 / plain in fp32, speed")
    middle = {name: sorted(values)[len(values) // 2] for name, values in seconds_by_name.items()}
    each = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in middle.items())
    return conclude(
        "glm_step",
        f"The GLM step, {LAYERS} layers, {CHOICES} candidates of {SEQUENCE} tokens, CPU",
        [fast, bar, memory],
        f"Medians of {ROUNDS} rounds: {each} a step.\n\n{memory_details}\n\n{details_of_bf16}",
    )


if __name__ == "__main__":
    serve({"steps": run_steps, "peak": run_peak})
