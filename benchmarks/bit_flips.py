"""Flip single bits while real ranks train, and see what repeated windows make of them.

Apart from the benchmark and the tests that use it because a spawned rank has to import it.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from trainmark import cases
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.events.schema import Replay
from trainmark.protocols import JobContext
from trainmark.rank.loop import MeasuredLoop, Schedule
from trainmark.rank.process_group import leave_ranks
from trainmark.rank.replay import WindowReplay
from trainmark.train.parameters import get_local_shard
from trainmark.train.read_ahead import iterate_batches
from trainmark.train.replay import StepDigests, StepperState
from trainmark.train.stepper import add_over_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from trainmark.protocols import Batch

CASE = "gpt_megatron"
Kind = Literal["weight", "gradient", "activation", "collective"]
KINDS: tuple[Kind, ...] = ("weight", "gradient", "activation", "collective")
WARMUP_STEPS, WINDOW_STEPS = 2, 3
# Those of torch 2.13 and of earlier versions.
FSDP_COLLECTIVES = (
    "reduce_scatter_single",
    "all_gather_single",
    "reduce_scatter_tensor",
    "all_gather_into_tensor",
)
# Mantissa, lower exponent, sign: the upper exponent gives losses that are not finite.
_BITS = (*range(28), 31)


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit that is flipped in the first pass of a window; ``seed`` chooses where."""

    window: int
    kind: Kind
    rank: int
    seed: int


@dataclass(frozen=True, slots=True)
class WindowOutcome:
    """What one rank saw of one window.

    Args:
        replay: the event that the loop emitted.
        flipped: whether the bit of this window was flipped on this rank.
        changed: whether weights, optimizer or losses of the first pass differ from those of the
            last repeat, compared value by value and without digests.
    """

    replay: Replay
    flipped: bool
    changed: bool


def plan_flips(count: int, *, world_size: int, seed: int) -> list[Flip]:
    """Return a flip for each of ``count`` windows: all kinds and ranks in turn."""
    chance = random.Random(seed)
    return [
        Flip(number, KINDS[number % 4], number // 4 % world_size, chance.randrange(2**32))
        for number in range(count)
    ]


def flip_bit(tensor: Tensor, chance: random.Random) -> None:
    """Flip a random bit of a random element, in place and unseen by autograd."""
    integers = get_local_shard(tensor).data.view(-1).view(torch.int32)
    bit = chance.choice(_BITS)
    integers[chance.randrange(len(integers))] ^= 1 << bit if bit < 31 else -(2**31)


class FaultyJob:
    """A job whose steps are those of ``job`` but for the bits that are flipped.

    Args:
        flips: of this rank, in windows of the first epoch: all of these but its last are whole.
    """

    def __init__(self, job: Any, flips: Sequence[Flip]) -> None:
        last_step = WARMUP_STEPS + WINDOW_STEPS * max(
            (flip.window + 1 for flip in flips), default=0
        )
        assert last_step <= job.steps_per_epoch, "flips lie in whole windows"
        self._job = job
        self._flips = {flip.window: flip for flip in flips}
        self._tensors: list[nn.Parameter] = list(job.stepper.model.parameters())
        self._collective_flip: Callable[[Tensor], None] | None = None
        self.flipped: set[int] = set()
        self._armed: Flip | None = None
        model = job.stepper.model
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))
        for name in FSDP_COLLECTIVES:
            if hasattr(dist, name):
                setattr(dist, name, self._wrap_collective(getattr(dist, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def step(self, batches: Iterator[Batch]) -> Any:
        """Take a step; flip this window's bit in one of its steps, in its first pass."""
        window, index = divmod(self._job.stepper.steps - WARMUP_STEPS, WINDOW_STEPS)
        flip = self._flips.get(window)
        if flip is None or window in self.flipped:
            return self._job.step(batches)
        chance = random.Random(flip.seed)
        if index != chance.randrange(WINDOW_STEPS):
            return self._job.step(batches)
        handles: list[Any] = []
        if flip.kind == "weight":
            flip_bit(chance.choice(self._tensors), chance)
            self.flipped.add(window)
        elif flip.kind == "collective":
            self._collective_flip = partial(self._flip, window, chance)
        else:
            handles.append(self._watch(flip, chance))
        try:
            return self._job.step(batches)
        finally:
            self._collective_flip = None
            for handle in handles:
                handle.remove()

    def _flip(self, window: int, chance: random.Random, tensor: Tensor) -> None:
        """Flip the bit of a window in ``tensor``, once."""
        if window not in self.flipped:
            self.flipped.add(window)
            flip_bit(tensor, chance)

    def _watch(self, flip: Flip, chance: random.Random) -> Any:
        """Have a bit flipped in the output of a random layer, or in a gradient of its weights."""
        layers = [
            module
            for module in self._job.stepper.model.modules()
            if any(item.requires_grad for item in module.parameters(recurse=False))
        ]

        def after_forward(module: nn.Module, _: Any, output: Tensor) -> None:
            if flip.kind == "activation":
                self._flip(flip.window, chance, output)
                return
            parameter = chance.choice(list(module.parameters(recurse=False)))

            def change(gradient: Tensor) -> Tensor:
                changed = gradient.clone()
                self._flip(flip.window, chance, changed)
                return changed

            parameter.register_hook(change)

        return chance.choice(layers).register_forward_hook(after_forward)

    def _reduce(self, bucket: dist.GradBucket) -> Any:
        """Average the gradients of a bucket as DDP does, and flip a bit of the result."""

        def corrupt(future: Any) -> Tensor:
            result: Tensor = future.value()
            if self._collective_flip is not None:
                self._collective_flip(result)
            return result

        return allreduce_hook(None, bucket).then(corrupt)

    def _wrap_collective(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """Return a collective of FSDP of whose result a bit may be flipped."""

        def call(*tensors: Any, **options: Any) -> Any:
            work = collective(*tensors, **options)
            if self._collective_flip is not None:
                if work is not None:
                    work.wait()
                self._collective_flip(tensors[0] if tensors else options["output"])
            return work

        return call


class WitnessedState(StepperState):
    """Also compares the state after the first pass with that after the last repeat."""

    def __init__(self, stepper: Any) -> None:
        super().__init__(stepper)
        self._first_end: list[Tensor] | None = None

    def save(self) -> None:
        super().save()
        self._first_end = None

    def restore(self) -> None:
        if self._first_end is None:
            self._first_end = [tensor.clone() for tensor in self._iterate_tensors()]
        super().restore()

    def has_changed(self) -> bool:
        """Tell whether the last pass ended in another state than the first."""
        assert self._first_end is not None, "a window was repeated"
        pairs = zip(self._first_end, self._iterate_tensors(), strict=True)
        return not all(torch.equal(before, after) for before, after in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A small GPT that is trained in repeated windows.

    Args:
        folder: has the generated data.
        fsdp: shard it; else each rank has a replica, and DDP averages gradients.
    """

    world_size: int
    folder: Path
    fsdp: bool
    num_windows: int
    flips: tuple[Flip, ...]

    def recipe(self) -> Any:
        """Return the case's tiny recipe with fewer layers and all windows."""
        return replace(
            cases.load(CASE).recipes["tiny"],
            fsdp=self.fsdp,
            dropout=0.1,
            max_steps=WARMUP_STEPS + WINDOW_STEPS * self.num_windows,
            max_epochs=10**6,
            eval_every_epochs=None,
            target_value=None,
            warmup_steps=WARMUP_STEPS,
            window_steps=WINDOW_STEPS,
            replay_every_windows=1,
            micro_batch_size=4,
            num_layers=2,
            hidden_size=32,
            num_heads=4,
        )


def run_windows(rank: int, training: Training) -> list[WindowOutcome]:
    """Train as one rank; return what it saw."""
    recipe, world_size = training.recipe(), training.world_size
    torch.manual_seed(recipe.seed)
    device: Any = CpuDevice(threads=1)
    device.set_precision(recipe.precision)
    context = JobContext(
        recipe=recipe, data_dir=training.folder, rank=rank, world_size=world_size, device=device
    )
    module = cases.import_part(CASE, "job")
    job = FaultyJob(
        module.build(context, module.load_data(context)),
        [x for x in training.flips if x.rank == rank],
    )
    state = WitnessedState(job.stepper)
    outcomes: list[WindowOutcome] = []

    def is_on_any_rank(flag: bool) -> bool:
        (count,) = add_over_ranks(int(flag), world_size=world_size, device=job.stepper.device)
        return count > 0

    def keep(event: str, **fields: Any) -> None:
        if event == "replay":
            number = len(outcomes)
            outcomes.append(
                WindowOutcome(Replay(t_ns=0, **fields), number in job.flipped, state.has_changed())
            )

    MeasuredLoop(
        job=job,
        open_batches=lambda epoch: iterate_batches(job, device, epoch, depth=0),
        schedule=Schedule.from_recipe(recipe, None),
        device=device,
        clock=lambda: 0,
        barrier=dist.barrier,
        emit=keep,
        replay=WindowReplay(
            every_windows=1,
            job=job,
            device=device,
            state=state,
            digests=StepDigests(job.trained_parameters(), job.stepper),
            is_on_any_rank=is_on_any_rank,
        ),
    ).run()
    return outcomes


def run_ranks(
    world_size: int, place: Path, *, fsdp: bool, num_windows: int, flips: Sequence[Flip] = ()
) -> list[list[WindowOutcome]]:
    """Train on ``world_size`` ranks of this machine; return what each rank saw.

    Args:
        place: an empty folder.
    """
    case = cases.load(CASE)
    folder = cases.ensure_generated_data(case, case.recipes["tiny"], place / "data")
    training = Training(
        world_size=world_size, folder=folder, fsdp=fsdp, num_windows=num_windows, flips=tuple(flips)
    )
    torch.multiprocessing.spawn(_rank_main, (place, training), nprocs=world_size)
    return [torch.load(place / f"rank{rank}.pt", weights_only=False) for rank in range(world_size)]


def _rank_main(rank: int, folder: Path, training: Training) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=training.world_size,
    )
    torch.save(run_windows(rank, training), folder / f"rank{rank}.pt")
    dist.barrier()
    leave_ranks()
    os._exit(0)  # as a worker, without the slow teardown of torch
