"""Training steps in processes of their own, each taking its turn when asked.

Every variant lives as it would for its user (allocator settings included), and all see the
same load of the machine; the matmul rate is measured in the same rounds. A peer is a function of a
benchmark's module, called by name on that module's command line. Works on every device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, compute_ratio, interleave
from benchmarks.jobs import iterate_batches_endlessly
from benchmarks.matmul import SIZES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainmark.protocols import Device


def iterate_turns(device: Device) -> Iterator[None]:
    """Yield for each step of a turn, whenever the parent asks for one.

    A turn ends with a synchronisation. After it, report its seconds a step, and the peak bytes of
    memory so far: the allocator's where the device has one that counts, else the process's.

    Where the device has such an allocator, its free memory is given back after a turn, so that
    peers that share a card fit on it one at a time. A step that is not timed then comes first.
    """
    allocates = device.memory().allocator_peak_bytes is not None
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        steps = int(line)
        if allocates:
            yield
        device.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            yield
        device.synchronize()
        seconds = time.perf_counter() - started
        if allocates:
            give_back(device)
        print(seconds / steps, _read_peak_bytes(device), flush=True)


def give_back(device: Device) -> None:
    """Give the allocator's free memory back to the device, if torch's module for it can."""
    import torch

    empty = getattr(torch.get_device_module(device.torch_type), "empty_cache", None)
    if empty is not None:
        empty()


def _read_peak_bytes(device: Device) -> int:
    """Return the most bytes allocated on the device, or resident where nothing counts them.

    Not ``ru_maxrss``, which counts the parent's too.
    """
    allocated = device.memory().allocator_peak_bytes
    if allocated is not None:
        return allocated
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def take_steps(job: Any) -> None:
    """Train ``job`` on its device, step by step in the parent's turns."""
    stream = iterate_batches_endlessly(job)
    for _ in iterate_turns(job.context.device):
        job.step(stream)


class PeerFailedError(RuntimeError):
    """A peer's process ended before it was told to: its last words say why."""


class Peer:
    """A variant in its own process, taking one turn when asked.

    Args:
        module: the benchmark's module, ``benchmarks.gpt_step``.
        words: the part's name and its arguments.

    Raises:
        PeerFailedError: the process ended before it was ready.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self.words = (module, *arguments)
        self.more: list[list[float]] = []
        self.steps = 1  # of a turn
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - at exit
        self.process = subprocess.Popen(
            [sys.executable, "-m", *self.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        )
        try:
            line = self._answer()
        except PeerFailedError:
            self.__exit__()
            raise
        assert line == "ready\n", f"{arguments}: {line!r}"

    def turn(self) -> float:
        """Ask for one turn of ``steps`` steps.

        Returns:
            The first number that the process reports, seconds a step; the others are added to
            ``more``.

        Raises:
            PeerFailedError: the process ended instead.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it ended since: the answer says how
            self.process.stdin.write(f"{self.steps}\n")
            self.process.stdin.flush()
        first, *rest = map(float, self._answer().split())
        self.more.append(rest)
        return first

    def settle(self, turn_s: float) -> None:
        """Warm up, then set how many steps make a turn of about ``turn_s`` seconds."""
        self.turn()
        self.steps = max(1, round(turn_s / self.turn()))
        self.more.clear()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self._errors.seek(0)
            last_lines = self._errors.read().strip().splitlines()[-3:]
            raise PeerFailedError(
                f"{' '.join(self.words)} ended with {code}: {' '.join(last_lines)}"
            )
        return line

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._errors.close()


def compare_in_fp32(
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
        bars: least speed against each peer; where they are asked for, under ``matmul`` least share
            of its rate, under ``memory`` the largest part of each peer's peak.
        flops: model FLOPs of one step.
    """
    with ExitStack() as stack:
        matmul = stack.enter_context(Peer("benchmarks.matmul", "cpu", "fp32"))
        peers = {
            name: stack.enter_context(Peer(module, *arguments)) for name, arguments in parts.items()
        }
        variants = {name: peer.turn for name, peer in peers.items()}
        seconds_by_name = interleave(
            {**variants, "matmul": matmul.turn}, rounds=rounds, warmup=warmup
        )
        peaks = {name: peer.more[-1][0] for name, peer in peers.items()}
        single = [rates[0] for rates in matmul.more[warmup:]]
    rows = []
    for name, label in labels.items():
        speed = compute_ratio(seconds_by_name[name], seconds_by_name["ours"])
        minimum = bars[name]
        rows.append(
            Bar(
                f"ours / {label}, speed",
                str(speed),
                f"at least {minimum:g}",
                speed.median >= minimum,
            )
        )
        if "memory" in bars:
            rows.append(_make_memory_bar(label, peaks["ours"], peaks[name], bars["memory"]))
    reached = [flops / seconds for seconds in seconds_by_name["ours"]]
    share = compute_ratio(reached, seconds_by_name["matmul"])
    if "matmul" in bars:
        rows.append(
            Bar(
                "model FLOP/s / matmul FLOP/s",
                str(share),
                f"at least {bars['matmul']:g}",
                share.median >= bars["matmul"],
            )
        )
    middle = {name: sorted(values)[len(values) // 2] for name, values in seconds_by_name.items()}
    each = ", ".join(f"{name} {middle[name]:.2f} s" for name in parts)
    details = (
        f"Medians of {rounds} rounds: {each} a step of {flops / 1e9:.0f} GFLOP; matmul "
        f"{middle['matmul'] / 1e9:.0f} GFLOP/s, in each round the best of "
        f"{', '.join(map(str, SIZES['cpu', 'fp32']))} squared, each sustained for a second, since "
        "a step lasts seconds too. Against the best single product of each round the share is "
        f"{compute_ratio(reached, single)}. Trainer with its fused AdamW, without logging or "
        "saving; all with the same batches and learning rate schedule."
    )
    return rows, details


def _make_memory_bar(label: str, ours: float, theirs: float, maximum: float) -> Bar:
    measured = f"{ours / theirs:.3f} ({ours / 2**20:.0f} MiB of {theirs / 2**20:.0f} MiB)"
    return Bar(
        f"ours / {label}, peak memory of the process",
        measured,
        f"at most {maximum:g}",
        ours <= maximum * theirs,
    )


def compare_in_bf16(
    module: str,
    parts_for: Callable[[bool], Mapping[str, Sequence[str]]],
    minimum: float,
    small: str,
) -> tuple[Bar, str]:
    """Compare our bf16 step with our fp32 step, at a size that ends where bf16 is slow.

    Args:
        parts_for: called with whether bf16 products are fast here; returns the words of
            ``fp32`` and ``bf16``.
        small: what the small size is, in words.
    """
    with (
        Peer("benchmarks.matmul", "cpu", "fp32") as fp32,
        Peer("benchmarks.matmul", "cpu", "bf16") as two,
    ):
        rates = interleave({"fp32": fp32.turn, "bf16": two.turn}, rounds=3)
    products = compute_ratio(rates["bf16"], rates["fp32"])
    fast = products.median > 1
    parts = parts_for(fast)
    with Peer(module, *parts["fp32"]) as fp32, Peer(module, *parts["bf16"]) as two:
        seconds_by_precision = interleave(
            {"fp32": fp32.turn, "bf16": two.turn}, rounds=9 if fast else 3
        )
    speed = compute_ratio(seconds_by_precision["fp32"], seconds_by_precision["bf16"])
    bar = Bar(
        "our bf16 / our fp32, speed", str(speed), f"at least {minimum:g}", speed.median >= minimum
    )
    size = "at full size" if fast else f"at {small}, because full size would take hours"
    return bar, (
        f"bf16 {size}. The matmul rate of this device in bf16 is {products} of that in fp32: "
        + ("it has bf16 units." if fast else "it has no bf16 units, which bounds any bf16 step.")
    )


def serve(parts: Mapping[str, Callable[..., None]]) -> None:
    """Run the part that the command line names, with its further words."""
    name, *arguments = sys.argv[1:]
    parts[name](*arguments)
