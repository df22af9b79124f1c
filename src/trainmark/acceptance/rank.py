"""One rank of an acceptance: train from a fixed seed, compare, and time.

Started by the launcher as ``python -m trainmark.acceptance.rank TASK``. Standard output gets one
line of JSON: a ``RankResult`` or a ``RankFailure``.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trainmark.acceptance.tasks import (
    STEP,
    RankFailure,
    RankResult,
    RankTask,
    encode,
    read_task,
)
from trainmark.rank.parent import PARENT_VARIABLE, die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from trainmark.devices.rates import Work
    from trainmark.machine.ceilings_work import RankGroup
    from trainmark.plan.plan import Plan
    from trainmark.protocols import Batch, Device, Job, JobContext, StepDigest

WARMUP_STEPS = 4
NUM_CONTROL_TRAININGS = 2  # from the same seed, which are compared bit by bit
_REPEATS = 10  # of each matmul, copy and collective
_MAX_ERROR_CHARACTERS = 2000
_MATMUL_SIZE = 8192
_COPIED_BYTES = 1 << 30
_MESSAGE_BYTES = 64 << 20
_STDOUT_FD = 1  # numbers of the process's file descriptors
_STDERR_FD = 2
# A processor core is about a thousand times slower than an accelerator.
_CPU_MATMUL_SIZE = 512
_CPU_COPIED_BYTES = 64 << 20
_CPU_MESSAGE_BYTES = 1 << 20


class Training:
    """A training of the plan's case from its seed, step by step, epoch after epoch.

    Args:
        context: what the case needs to build its training: recipe, data, device.
    """

    def __init__(self, plan: Plan, context: JobContext) -> None:
        import torch

        from trainmark import cases

        torch.manual_seed(context.recipe.seed)  # each training begins with the same weights
        # The module ``job`` of a case reads its data and builds its model and optimizer.
        job_module = cases.import_part(plan.case, "job")
        # ``context`` has the recipe, the data folder and the device.
        self.job: Job = job_module.build(context, job_module.load_data(context))
        self._context = context
        self._epoch = 0
        self._batches = self._start_epoch()

    def _start_epoch(self) -> Iterator[Batch]:
        """Return the batches of the next epoch; the first call returns those of the first one."""
        from trainmark.rank.counting import MeteredBatches
        from trainmark.train.read_ahead import iterate_batches

        device = self._context.device
        depth = self._context.recipe.read_ahead_batches
        source = iterate_batches(self.job, device, self._epoch, depth=depth)
        self._epoch += 1
        # A run also reads its batches through this wrapper, so that steps do the same work here.
        # What it counts is not used.
        return MeteredBatches(source, device)

    def step(self) -> torch.Tensor:
        """Take one optimizer step and return its loss."""
        import torch

        loss = self.job.step(self._batches)
        if loss is None:  # the epoch ended
            self._batches = self._start_epoch()
            loss = self.job.step(self._batches)
        assert isinstance(loss, torch.Tensor), "planning refuses data without a training step"
        return loss


def digest_steps(training: Training, num_steps: int) -> list[StepDigest]:
    """Take ``num_steps`` steps and return the digest of each.

    A digest has the loss, and sums of the bits of each weight and each gradient, to compare steps
    bit by bit. One more digest follows, of the weights after the last step.
    """
    from trainmark.train.replay import StepDigests

    digests = StepDigests(dict(training.job.trained_parameters()))
    digests.start()  # from here on, torch's hooks digest weights and gradients
    losses = []
    for _ in range(num_steps):
        losses.append(training.step())
        digests.end_step()
    # Losses are read after all steps, because reading one waits for the device.
    return digests.finish([float(loss) for loss in losses])


def run_control_trainings(
    plan: Plan, context: JobContext, num_steps: int
) -> list[list[StepDigest]]:
    """Train twice from the same seed under deterministic algorithms.

    The digests of both are compared later. They must be equal bit by bit, and equal to those of
    other devices of this product: a device that differs computes wrongly.

    Args:
        plan: names the case that is trained.
        context: what the case needs to build its training: recipe, data, device.
        num_steps: steps of each training; 0: there is no control training, and no digests.

    Returns:
        The digests of the steps of each training.
    """
    import torch

    if num_steps == 0:
        return []
    # An operation without a deterministic algorithm only warns; the comparison shows if it matters.
    torch.use_deterministic_algorithms(True, warn_only=True)
    trainings = [
        digest_steps(Training(plan, context), num_steps) for _ in range(NUM_CONTROL_TRAININGS)
    ]
    torch.use_deterministic_algorithms(False)
    return trainings


def time_training(
    training: Training, device: Device, ranks: RankGroup, *, windows: int, budget_s: float
) -> list[float]:
    """Return the seconds of a step in each window; all ranks begin a window together.

    A window is several steps after which the device is synchronised.

    Args:
        windows: number of windows.
        budget_s: time of all windows together, about.
    """
    warmup_s = [_time_steps(training, device, num_steps=1) for _ in range(WARMUP_STEPS)]
    # The fastest warm-up step decides how many steps a window has. A slow one would make the
    # windows too short to notice a throttled node, which pauses now and then: most windows would
    # contain no pause, and their median would be as fast as that of a healthy node. The maximum
    # over ranks makes all ranks take the same number of steps.
    step_s = ranks.find_max(min(warmup_s))
    num_steps = max(1, round(budget_s / windows / step_s))
    seconds = []
    for _ in range(windows):
        ranks.find_max(0.0)  # a barrier: all ranks begin the window together
        window_s = _time_steps(training, device, num_steps=num_steps)
        seconds.append(window_s / num_steps)
    return seconds


def _time_steps(training: Training, device: Device, *, num_steps: int) -> float:
    """Return the seconds of ``num_steps`` steps until the device has finished them."""
    start_s = perf_counter()
    for _ in range(num_steps):
        training.step()
    device.synchronize()
    return perf_counter() - start_s


def time_device(device: Device, precision: Any) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of matmuls and copies, and what was wrong with their results.

    Args:
        precision: number format of the matmuls.

    Returns:
        Both by the name of the work; a work with a wrong result has no times.
    """
    from trainmark.devices import rates

    on_cpu = device.torch_type == "cpu"
    size = _CPU_MATMUL_SIZE if on_cpu else _MATMUL_SIZE
    num_bytes = _CPU_COPIED_BYTES if on_cpu else _COPIED_BYTES
    # Fewer bytes, because the link to the host is slower than the memory.
    transferred_bytes = num_bytes // 4
    works = {
        "matmul": rates.prepare_matmul(device, precision, (size, size, size)),
        "memory_copy": rates.prepare_copy(device, num_bytes),
        "host_to_device": rates.prepare_transfer(device, transferred_bytes, to_device=True),
        "device_to_host": rates.prepare_transfer(device, transferred_bytes, to_device=False),
    }
    # A device that computes in the host's memory has no copies to and from the host: their work is
    # None.
    available_works = {name: work for name, work in works.items() if work is not None}
    return measure_works(available_works, device, rates.measure_ns)


def time_collectives(
    device: Device, ranks: RankGroup
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of collectives, and what was wrong with their results.

    Args:
        ranks: all ranks of the team, which take part.

    Returns:
        Both by the name of the collective; the seconds are those of the slowest rank.
    """
    from trainmark.machine.ceilings_work import COLLECTIVES

    num_bytes = _CPU_MESSAGE_BYTES if device.torch_type == "cpu" else _MESSAGE_BYTES
    works = {name: prepare(device, ranks, num_bytes) for name, prepare in COLLECTIVES.items()}
    return measure_works(works, device, ranks.measure_ns)


def measure_works(
    works: Mapping[str, Work], device: Device, measure_ns: Callable[[Device, Any], int]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Time each piece of work several times, after a check of its result.

    Args:
        works: pieces of work by name, such as ``matmul``; each runs, and can check its result.
        measure_ns: runs a function on the device and returns how long that took.

    Returns:
        The seconds of each repeat by the name of the work; and by name what was wrong with the
        result of a work, which then has no times.
    """
    from trainmark.record.messages import render

    seconds: dict[str, list[float]] = {}
    faults: dict[str, str] = {}
    for name, work in works.items():
        measure_ns(device, work.run)  # a warm-up, whose result is checked
        fault = work.fault()
        if fault is not None:  # None: the result is right
            faults[name] = render(fault, "en")
            continue
        seconds[name] = [measure_ns(device, work.run) / 1e9 for _ in range(_REPEATS)]
    return seconds, faults


def measure(task: RankTask, rank: int, local_rank: int) -> RankResult:
    """Measure everything that the task asks of this rank.

    Args:
        task: the same for all ranks of the team on this node.
        rank: number of this rank in its team.
        local_rank: number of this rank among those of its node.
    """
    from trainmark import devices
    from trainmark.machine.ceilings_work import RankGroup
    from trainmark.plan.plan import Plan
    from trainmark.protocols import JobContext
    from trainmark.rank.agreement import agree_on_memory
    from trainmark.rank.contract import DATA_VARIABLE

    # The plan in the folder is for one node; a team may have several.
    plan = Plan.read(Path(task.plan_dir)).model_copy(update={"nnodes": task.num_nodes})
    recipe = plan.load_recipe()
    vendor = devices.choose_vendor(plan.device.vendor)
    # ``ranks_here``: ranks of this node if all its devices train, also if the team is smaller. On a
    # CPU, a rank gets its part of the processor cores by it.
    device = vendor.open(task.devices[local_rank], task.ranks_here)
    device.set_precision(recipe.precision)
    with RankGroup.join(vendor.collective_backend, device, rank, plan.world_size) as ranks:
        # The variable has the folder of the data on this node, if it is not that of the plan.
        data_dir = Path(os.environ.get(DATA_VARIABLE) or plan.data.folder)
        context = JobContext(
            recipe=recipe,
            data_dir=data_dir,
            rank=rank,
            world_size=plan.world_size,
            device=device,
            # The smallest memory of any rank. A case with large embedding tables divides them among
            # the ranks by it. All ranks must use the same number, so that all divide alike.
            memory=agree_on_memory(plan, recipe, vendor, device, data_dir),
        )
        trainings = run_control_trainings(plan, context, task.control_steps)
        seconds: dict[str, list[float]] = {}
        faults: dict[str, str] = {}
        if task.measures_device:
            seconds, faults = time_device(device, recipe.precision)
        if plan.world_size > 1:
            collective_seconds, collective_faults = time_collectives(device, ranks)
            seconds |= collective_seconds
            faults |= collective_faults
        seconds[STEP] = time_training(
            Training(plan, context), device, ranks, windows=task.windows, budget_s=task.budget_s
        )
    return RankResult(
        rank=rank,
        device=task.devices[local_rank],
        product=device.describe()["name"],
        seconds=seconds,
        trainings=trainings,
        faults=faults,
    )


def main(text: str) -> int:
    """Measure as the rank that the environment names; return its exit code.

    The result, or the error of a rank that failed, goes to standard output as one line of JSON.

    Args:
        text: the task as JSON.
    """
    # Standard output is for the result alone: what libraries print goes to standard error.
    results_fd = os.dup(_STDOUT_FD)
    os.dup2(_STDERR_FD, _STDOUT_FD)
    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    exit_code = 0
    try:
        line = encode(measure(read_task(text), rank, local_rank))
    except Exception as error:  # noqa: BLE001 - whatever it is, the node reports it
        line = encode(
            RankFailure(rank=rank, error=f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS])
        )
        exit_code = 1
        traceback.print_exc()
    os.write(results_fd, f"{line}\n".encode())  # by one call, because ranks share the file
    return exit_code


if __name__ == "__main__":
    # Skip the interpreter's slow teardown of torch: everything is written by now.
    exit_code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
