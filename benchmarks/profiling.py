"""Where the time of a training step goes: kernels, the device's idle share, or operations."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import choose_size
from benchmarks.jobs import iterate_batches_endlessly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch.profiler import profile

    from trainmark.protocols import Device

WARMUP, STEPS = choose_size((3, 5), (1, 2))
ROWS, NAME_LENGTH = 14, 100  # C++ templates make names of kernels very long
MATMULS = ("aten::mm", "aten::addmm", "aten::bmm")


def compute_idle_share(intervals: Iterable[tuple[float, float]]) -> float | None:
    """Return the share of the time from the first start to the last end that none covers.

    Args:
        intervals: start and end of everything that ran, in any order; they may overlap.

    Returns:
        None if nothing ran for any time.
    """
    ordered = sorted(intervals)
    if not ordered:
        return None
    first = reached = ordered[0][0]
    busy = 0.0
    for start, end in ordered:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return 1 - busy / (reached - first) if reached > first else None


@dataclass(frozen=True, slots=True)
class Profile:
    """What ran in a number of steps.

    Args:
        spent_us: microseconds by name: of kernels and copies on the device, where the profiler
            saw any; else of operations on the host, each without those that it calls.
        on_device: whether the names are of what ran on the device.
        idle: share of the device's time, see ``idle_share``; None if unknown.
    """

    steps: int
    spent_us: Mapping[str, float]
    on_device: bool
    idle: float | None

    def markdown(self) -> str:
        """Return the longest as a table with their shares of all, and the idle share."""
        total = sum(self.spent_us.values())
        longest = sorted(self.spent_us.items(), key=lambda item: -item[1])[:ROWS]
        if not self.on_device:
            matmuls = sum(self.spent_us.get(name, 0.0) for name in MATMULS)
            longest.insert(0, ("all matrix products", matmuls))
        lines = [f"| {'kernel' if self.on_device else 'operation'} | share |", "|---|---|"]
        lines += [f"| `{_shorten(name)}` | {100 * us / total:.1f}% |" for name, us in longest]
        if self.idle is not None:
            lines += [
                "",
                f"From the first kernel of {self.steps} steps to the last, the device was idle for "
                f"{100 * self.idle:.1f}% of the time. The profiler slows "
                "the host down, which can add to it.",
            ]
        return "\n".join(lines)


def _shorten(name: str) -> str:
    """Return a name that fits into a cell of a table."""
    cut = name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
    return cut.replace("|", "/").replace("`", "'")


def _choose_activities(torch_type: str) -> list[Any]:
    """Return what the profiler can record of a kind of device: always the host as well."""
    import torch
    from torch.profiler import ProfilerActivity, supported_activities

    name = torch_type.upper()
    if torch_type == torch._C._get_privateuse1_backend_name():
        name = "PrivateUse1"
    activity = getattr(ProfilerActivity, name, ProfilerActivity.CPU)
    extra = activity != ProfilerActivity.CPU and activity in supported_activities()
    return [ProfilerActivity.CPU, *([activity] if extra else [])]


def _make_profiler(device: Device) -> profile:
    from torch.profiler import profile

    # acc_events: there is one cycle only, and torch 2.11 warns where it is not said.
    return profile(activities=_choose_activities(device.torch_type), acc_events=True)


def profile_steps(step: Callable[[], object], device: Device) -> Profile:
    """Profile a few steps after a few others."""
    from torch.autograd import DeviceType

    on_host = device.torch_type == "cpu"
    steps = 1 if on_host else STEPS  # a host has no gaps between steps to look at
    for _ in range(WARMUP):
        step()
    if not on_host:
        # The first use of a device's profiler sets it up, while the steps go on.
        with _make_profiler(device):
            step()
            device.synchronize()
    with _make_profiler(device) as recording:
        for _ in range(steps):
            step()
        device.synchronize()
    # Annotations are mirrored onto the device and cover its idle time too.
    kernels = [
        event
        for event in recording.events()
        if event.device_type != DeviceType.CPU and not event.is_user_annotation
    ]
    spent_us: Counter[str] = Counter()
    for event in kernels:
        spent_us[event.name] += event.time_range.elapsed_us()
    if not kernels:
        for item in recording.key_averages():
            spent_us[item.key] += item.self_cpu_time_total
    intervals = ((event.time_range.start, event.time_range.end) for event in kernels)
    return Profile(steps, spent_us, bool(kernels), compute_idle_share(intervals))


def print_profile(job: Any) -> None:
    """Print where the steps of ``job`` spend their time, as Markdown."""
    stream = iterate_batches_endlessly(job)
    profile = profile_steps(lambda: job.step(stream), job.context.device)
    print(profile.markdown())


def format_profile(head: str, module: str, *arguments: str, limit_s: float | None = None) -> str:
    """Return the profile that a part of ``module`` prints in a process of its own.

    A failing profile, or one that takes longer than ``limit_s``, says so in its place: the figures
    that it explains stay.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"{head}: the profile took more than {limit_s:g} s\n"
    if process.returncode:
        last = " ".join(process.stderr.strip().splitlines()[-1:])
        return f"{head}: the profile failed with {process.returncode}: `{_shorten(last)}`\n"
    return f"{head}:\n\n{process.stdout}"
