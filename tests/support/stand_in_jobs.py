"""Train jobs on the stand-in in a process of its own: torch takes a device's name once for all.

Apart from the tests because that process has to import it. With a clock that passes when told,
the host needs no time and every operation its exact device time.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from support.fakes import FakeClock
from trainmark import cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.protocols import Device, Job

SITE = Path(__file__).parents[1] / "stand_in"
OPERATION_NS = 1_000  # device time of each operation
STEPS = 4


def register() -> None:
    """Tell torch of the stand-in, the simulated device, whose package is in the folder ``SITE``.

    Call it before autograd is used for the first time: it then starts a thread for each device that
    is registered, and would have none for a later one.
    """
    sys.path.insert(0, str(SITE))
    open_stand_in()


def open_stand_in(fault: str = "none", *, operation_ns: int = OPERATION_NS) -> Any:
    """Return the process's stand-in, a simulated device that torch knows, in its first state.

    It has a new fake clock, nothing queued, and its memory peak reset.

    Args:
        fault: name of a planted fault of its timeline, which knows when queued operations end; see
            ``trainmark_stand_in.faults``.
        operation_ns: device time of each operation.
    """
    from trainmark_stand_in.faults import TIMELINES
    from trainmark_stand_in.vendor import StandIn

    device = StandIn().open(local_rank=0, ranks_here=1)
    clock = FakeClock()
    timeline = TIMELINES[fault](operation_ns=operation_ns, clock=clock, sleep=clock.advance)
    device.timeline = device.operations.timeline = timeline
    device.device_memory.reset_peak()
    return device


def new_job(case_name: str, device: Device, cache: Path, **changes: Any) -> Job:
    """Return the job of the tiny recipe, without dropout: devices draw differently.

    Args:
        cache: folder of generated data.
        changes: of fields of the recipe.
    """
    import torch

    from trainmark.protocols import JobContext

    case = cases.load(case_name)
    # A thread that reads ahead would place batches on the device at any time, and so add operations
    # to any step. MMLU, questions by which a language model is scored, takes minutes.
    fields = {"read_ahead_batches": 0, "mmlu_mode": "off", **changes}
    # Not every recipe has each of these fields.
    fields_of_recipe = {
        name: value for name, value in fields.items() if hasattr(case.recipe_type, name)
    }
    recipe = replace(case.recipes["tiny"], **fields_of_recipe)
    device.set_precision(recipe.precision)
    torch.manual_seed(recipe.seed)
    module = cases.import_part(case_name, "job")
    context = JobContext(
        recipe=recipe,
        data_dir=cases.ensure_generated_data(case, recipe, cache),
        rank=0,
        world_size=1,
        device=device,
    )
    job = module.build(context, module.load_data(context))
    for part in job.model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return job


def train(
    case_name: str,
    cache: Path,
    *,
    device: Any = None,
    change_loop: tuple[str, str] | None = None,
    change_job: Callable[[Any], None] = lambda job: None,
    **changes: Any,
) -> dict[str, Any]:
    """Take steps in the measured loop; return its events and what the device was asked to do.

    Args:
        device: None: the CPU.
        change_loop: a piece of the loop's source and what to write instead of it.
        change_job: plants a mistake in the job before it trains.
        changes: of fields of the recipe.

    Returns:
        ``losses`` of the steps; ``quality``: all figures of the evaluation that are finite;
        ``windows`` and ``trained``: events; ``queued_before_ns``: when all work that was queued
        before the loop is done; ``operations`` and ``synchronizations`` of each step; ``waits`` by
        cause. Without a stand-in the last four are empty or 0.
    """
    from trainmark.devices.vendors.cpu import CpuDevice
    from trainmark.train.read_ahead import iterate_batches

    on_cpu = device is None
    from trainmark_stand_in.timeline import Timeline

    device = device or CpuDevice(threads=1)
    job = new_job(case_name, device, cache, **changes)
    change_job(job)
    timeline = None if on_cpu else device.timeline  # only the stand-in counts operations
    counts_of_steps: list[tuple[int, int]] = []  # operations and waits
    original_step = job.step

    def step(batches: Any) -> Any:
        """Take a step and count its operations and waits."""
        if timeline is None:
            return original_step(batches)
        before = timeline.operations, timeline.waits.total()
        loss = original_step(batches)
        after = timeline.operations, timeline.waits.total()
        counts_of_steps.append((after[0] - before[0], after[1] - before[1]))
        return loss

    job.step = step
    loop = load_changed_loop(change_loop)
    events: list[dict[str, Any]] = []
    # Not ``timeline.mark()``, which a planted fault may have replaced.
    queued_ns = 0 if timeline is None else Timeline.mark(timeline).reached_ns
    # ``STEPS``, 4, end the training: a window of 2 steps of warm-up, and one that is measured.
    schedule = loop.Schedule(max_epochs=100, warmup_steps=2, window_steps=2, max_steps=STEPS)
    loop.MeasuredLoop(
        job=job,
        open_batches=lambda epoch: iterate_batches(job, device, epoch, depth=0),
        schedule=schedule,
        device=device,
        clock=FakeClock() if on_cpu else timeline.clock,
        barrier=lambda: None,  # there are no other ranks to wait for
        emit=lambda event, **fields: events.append({"event": event} | fields),
    ).run()
    windows = [item for item in events if item["event"] == "window"]
    waits = {} if timeline is None else dict(timeline.waits)
    quality = job.evaluate()
    return {
        "losses": [loss for window in windows for loss in window["loss"]],
        "quality": [x for x in (quality.value, *quality.detail.values()) if math.isfinite(x)],
        "windows": windows,
        "trained": events[-1],
        "queued_before_ns": queued_ns,
        "operations": [count for count, _ in counts_of_steps],
        "synchronizations": [count for _, count in counts_of_steps],
        "waits": waits,
    }


def load_changed_loop(change: tuple[str, str] | None) -> Any:
    """Return the module of the measured loop, with a piece of its source changed.

    Args:
        change: the piece, which the source has exactly once, and what replaces it; None: none.
    """
    from trainmark.rank import loop

    if change is None:
        return loop
    source = Path(loop.__file__).read_text()
    piece, _replacement = change
    assert source.count(piece) == 1, f"the loop has {source.count(piece)} of {piece!r}"
    changed = ModuleType("changed_loop")
    sys.modules[changed.__name__] = changed  # dataclasses look up the module that defines them
    exec(compile(source.replace(*change), loop.__file__, "exec"), changed.__dict__)
    return changed


def train_on_stand_in(
    case_name: str, cache: Path, *, fault: str = "none", **more: Any
) -> dict[str, Any]:
    """Train on the stand-in, the simulated device; return what ``train`` returns and the memory.

    Args:
        case_name: the case whose tiny recipe is trained.
        cache: folder of generated data.
        fault: a mistake that is planted into the device's clock, such as a mark that waits; by its
            name in ``trainmark_stand_in.faults``, "none" for a right clock.
        more: arguments of ``train``: changes of the loop, of the job or of fields of the recipe.

    Returns:
        losses, events and waits, as ``train`` names them; ``peak_bytes``: the most memory of the
        device that tensors had at a time.
    """
    device = open_stand_in(fault)
    training = train(case_name, cache, device=device, **more)
    return training | {"peak_bytes": device.memory().allocator_peak_bytes}


def list_wrong_figures(training: dict[str, Any]) -> list[str]:
    """Return the names of times and waits that differ from what the simulated device knows.

    Its clock is moved by operations alone, and it counts these and what makes the host wait.

    Args:
        training: result of ``train_on_stand_in``: what the loop reported, and these counts.
    """
    windows = training["windows"]
    step_ns = [ns for window in windows for ns in window["step_ns"]]
    right = {
        # The loop begins when the device has done the work that was queued before it.
        "start_ns": training["trained"]["start_ns"] == training["queued_before_ns"],
        # The clock advances by nothing but operations, each of which takes ``OPERATION_NS``.
        "step_ns": step_ns == [count * OPERATION_NS for count in training["operations"]],
        "step_waits": not any(training["synchronizations"]),  # no step waits for the device
        # At both ends of training and at the end of each window.
        "loop_waits": training["waits"].get("synchronize()") == len(windows) + 2,
        # A mark, by which the device's time is read later, must not make the host wait.
        "mark_waits": "mark()" not in training["waits"],
        "window_ns": all(w["end_ns"] - w["start_ns"] == sum(w["step_ns"]) for w in windows),
    }
    return [name for name, is_right in right.items() if not is_right]


def read_each_loss(job: Any) -> None:
    """Make a job read its loss within each step."""
    original_step = job.step

    def step(batches: Any) -> Any:
        """Take a step as before, but read its loss, which a right job leaves on the device."""
        loss = original_step(batches)
        loss.item()  # waits for the device
        return loss

    job.step = step


def measure_preflight_rate(fault: str) -> float | str:
    """Return the FLOP/s that preflight measures if each operation takes 30 ms.

    If it refuses the device, return what its error names as the place of the fault. From 20 ms on,
    preflight compares the device's times with the host's.

    Args:
        fault: a mistake in the device's clock, by its name in ``trainmark_stand_in.faults``.
    """
    from trainmark.errors import EnvironmentFault

    device = open_stand_in(fault, operation_ns=30_000_000)
    try:
        return device.matmul_rate("fp32").flops_per_second
    except EnvironmentFault as refused:
        return str(refused.where)


def list_faults() -> tuple[list[str], list[str]]:
    """Return what the conformance checks find wrong with the vendor, and with its device.

    The vendor is that of the stand-in, the simulated device; nothing wrong: two empty lists.
    """
    from trainmark.conformance.vendor_check import device_faults, vendor_faults
    from trainmark_stand_in.timeline import Timeline
    from trainmark_stand_in.vendor import StandIn

    # A process has a single stand-in device: every ``StandIn`` below opens this one.
    device = open_stand_in()
    # A timeline with a real clock, in place of the fake one of ``open_stand_in``.
    device.timeline = device.operations.timeline = Timeline(operation_ns=OPERATION_NS)
    return vendor_faults(StandIn()), device_faults(StandIn())


def list_waiting_operations() -> dict[str, bool]:
    """Return, by the name of an operation, whether it makes the host wait for the stand-in.

    The host must wait for what needs a value from the device, such as the size of a result.
    """
    import torch

    device = open_stand_in()
    host = torch.arange(6.0).view(2, 3)
    x = device.place(host).requires_grad_()
    mask, numbers = device.place(host > 2), device.place(torch.tensor([1, 0]))
    y = x @ x.T

    def is_waiting(work: Callable[[], object]) -> bool:
        """Do the work; return whether the host waited for the device meanwhile."""
        before = device.timeline.waits.total()
        work()
        return device.timeline.waits.total() > before

    return {
        "item": is_waiting(x[0, 0].item),
        "tolist": is_waiting(x.tolist),
        "to the host": is_waiting(x.cpu),
        "from the host": is_waiting(lambda: host.to(device.name)),
        "from the host, queued": is_waiting(lambda: host.to(device.name, non_blocking=True)),
        "nonzero": is_waiting(x.nonzero),
        "a mask as index": is_waiting(lambda: x[mask]),
        "a tensor of indices": is_waiting(lambda: x[numbers]),
        "matmul": is_waiting(lambda: x @ x.T),
        "backward": is_waiting(y.sum().backward),
        "equal": is_waiting(lambda: torch.equal(x, x)),
    }
