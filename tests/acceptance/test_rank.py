"""One rank: the same training gives the same digests, and one flipped bit changes them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainmark.acceptance.bits import compare_devices
from trainmark.acceptance.rank import Training, digest_steps, run_control_trainings, time_training
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.machine.ceilings_work import RankGroup
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.protocols import JobContext
from trainmark.rank.replay import find_difference

if TYPE_CHECKING:
    from trainmark.plan.plan import Plan

STEPS = 3
KINDS = ("weight", "gradient", "activation")


@pytest.fixture(scope="module")
def planned_training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, JobContext]:
    """Return the plan of the toy case on one CPU rank, and the context of its job."""
    folder = tmp_path_factory.mktemp("toy")
    plan = resolve(
        RunRequest.build(case="toy", device="cpu", nproc=1, out=folder / "run"),
        generated_root=folder,
    )
    device = CpuDevice(threads=1)
    device.set_precision("fp32")
    context = JobContext(
        recipe=plan.load_recipe(),
        data_dir=folder / plan.data.folder,
        rank=0,
        world_size=1,
        device=device,
    )
    return plan, context


def flip_random_bit(tensor: torch.Tensor, chance: random.Random) -> None:
    """Flip one random bit of a random element.

    One of the upper half of the mantissa: what rounding removes in the next operation changes no
    result, and so cannot be found. A float32 has its mantissa in the bits 0 to 22.

    Args:
        tensor: changed in place.
        chance: draws the element and the bit.
    """
    words = tensor.detach().view(-1).view(torch.int32)
    words[chance.randrange(len(words))] ^= 1 << chance.randrange(12, 23)


def train_with_flipped_bit(
    plan: Plan, context: JobContext, kind: str, seed: int
) -> tuple[int, Any]:
    """Return in which step a bit was flipped, from 1, and the digests.

    Args:
        kind: what is changed: an ``activation``, a ``weight`` or a ``gradient``. A weight changes
            after the forward pass; the digest of the step's weights is made later, before they are
            updated.
        seed: decides the step, the tensor, the element and the bit.
    """
    chance = random.Random(seed)
    training = Training(plan, context)
    step = chance.randrange(STEPS) + 1
    model = training.job.stepper.model
    parameters = list(model.parameters())
    handles = []
    calls = [0]  # how often the hook ran: once in each step; in a list, because hooks change it

    def flip_in_forward_pass(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        """Flip a bit in place in the chosen step: of the output, or of any parameter."""
        calls[0] += 1
        if calls[0] == step and kind == "activation":
            flip_random_bit(output, chance)
        elif calls[0] == step and kind == "weight":
            flip_random_bit(chance.choice(parameters).data, chance)

    if kind == "gradient":
        parameter = chance.choice(parameters)

        def flip_in_gradient(gradient: torch.Tensor) -> torch.Tensor:
            """Replace the gradient by a copy, with a flipped bit in the chosen step."""
            calls[0] += 1
            changed = gradient.clone()
            if calls[0] == step:
                flip_random_bit(changed, chance)
            return changed

        handles.append(parameter.register_hook(flip_in_gradient))
    else:
        # The last layer, so that no nonlinearity after it can hide a change.
        handles.append(model[-1].register_forward_hook(flip_in_forward_pass))
    digests = digest_steps(training, STEPS)
    for handle in handles:
        handle.remove()
    return step, digests


def test_same_seed_gives_same_digests(planned_training: tuple[Plan, JobContext]) -> None:
    """The control is a small network, trained twice from the same seed for ``STEPS``, 3, steps.

    Each training returns digests: checksums of the loss, the weights and the gradients of a step.
    """
    first, second = run_control_trainings(*planned_training, STEPS)

    assert len(first) == STEPS + 1  # one a step; the last digest has the final weights
    assert first == second
    # A step's digest has a number for each tensor: here the weights and the biases of two layers.
    assert len(first[0].gradients) == len(first[0].weights) == 4
    assert first[0] != first[1]  # two steps do not have the same digest


def test_without_a_control_run_nothing_is_trained(
    planned_training: tuple[Plan, JobContext],
) -> None:
    """The last argument is the number of steps of each training; 0: no control is wanted.

    The result is otherwise a list of digests for each of two trainings.
    """
    assert run_control_trainings(*planned_training, 0) == []


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bit_is_found_in_its_step(
    planned_training: tuple[Plan, JobContext], kind: str
) -> None:
    """A training has digests (checksums) of each of its ``STEPS``, 3, steps.

    One bit of a weight, a gradient or an activation (``kind``) is flipped in a random step; the
    digests must differ from those of the usual training from exactly this step on.
    """
    usual = digest_steps(Training(*planned_training), STEPS)  # without a flipped bit
    for seed in range(8):  # each draws a step, an element and a bit
        step, digests = train_with_flipped_bit(*planned_training, kind, seed)
        difference = find_difference(usual, digests)  # the first one
        assert difference is not None, seed
        assert difference.step == step, seed


@pytest.mark.nightly
def test_200_flipped_bits_are_found_at_the_right_device(
    planned_training: tuple[Plan, JobContext],
) -> None:
    """A training has digests (checksums) of each of its ``STEPS``, 3, steps.

    ``KINDS`` are what a flipped bit may be in: a weight, a gradient or an activation.
    """
    usual = digest_steps(Training(*planned_training), STEPS)  # without a flipped bit
    for seed in range(200):  # each draws the step, the element and the bit
        step, digests = train_with_flipped_bit(*planned_training, KINDS[seed % len(KINDS)], seed)
        guilty = f"device{seed % 4}"
        # Each of four devices trains twice; the guilty one makes the same mistake both times.
        devices = {f"device{number}": [usual, usual] for number in range(4)}
        devices[guilty] = [digests, digests]

        deviations = compare_devices(devices).deviations

        assert [(deviation.device, deviation.step) for deviation in deviations] == [
            (guilty, step)
        ], seed


@pytest.mark.nightly
def test_1000_clean_trainings_raise_no_alarm(planned_training: tuple[Plan, JobContext]) -> None:
    """Trainings from the same seed have the same digests (checksums) of their ``STEPS``, 3, steps.

    A difference would be taken for a fault of the device.
    """
    usual = digest_steps(Training(*planned_training), STEPS)
    assert all(digest_steps(Training(*planned_training), STEPS) == usual for _ in range(1000))


def test_training_continues_into_the_next_epoch(planned_training: tuple[Plan, JobContext]) -> None:
    """A ``Training`` goes on for as many steps as are asked for; the fixture plans the toy case."""
    training = Training(*planned_training)
    steps = training.job.steps_per_epoch + 2  # two steps of the second epoch

    losses = [float(training.step()) for _ in range(steps)]

    assert len(losses) == steps
    assert losses[-1] < losses[0]  # it still learns, instead of starting anew


def test_windows_are_timed_one_by_one(planned_training: tuple[Plan, JobContext]) -> None:
    """A window is a number of steps that are timed together.

    Four are measured on one rank, which are to take 0.01 s together. The result has the seconds of
    a step in each window.
    """
    plan, context = planned_training
    training = Training(plan, context)

    seconds = time_training(
        training, context.device, RankGroup(rank=0, count=1), windows=4, budget_s=0.01
    )

    assert len(seconds) == 4
    assert all(value > 0 for value in seconds)


def test_one_slow_step_before_the_windows_does_not_shorten_them(
    planned_training: tuple[Plan, JobContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window is a number of steps that are timed together; warm-up steps come before the first.

    The result has the mean seconds of a step in each window.
    """
    # The fake is a training and the clock on which its steps take 1 ms each, plus these pauses. The
    # second step is a warm-up step; the fastest of these decides how many steps a window has.
    clock = FakeClock(pauses={2: 0.1, 40: 0.1})
    monkeypatch.setattr("trainmark.acceptance.rank.perf_counter", clock.read)
    _plan, context = planned_training

    # Two windows in 100 ms: 50 ms each.
    seconds = time_training(
        clock, context.device, RankGroup(rank=0, count=1), windows=2, budget_s=0.1
    )

    # 50 steps of 1 ms each; the pause in the 40th step is in the first window.
    assert seconds == pytest.approx([(0.05 + 0.1) / 50, 0.001])


class FakeClock:
    """A training, and the clock on which its steps take 1 ms each, plus pauses."""

    def __init__(self, pauses: dict[int, float]) -> None:
        self.pauses = pauses  # additional seconds of a step, by its number from 1
        self.now_s = 0.0
        self.num_steps = 0

    def step(self) -> None:
        """Take a step: 1 ms and its pause pass."""
        self.num_steps += 1
        self.now_s += 0.001 + self.pauses.get(self.num_steps, 0.0)

    def read(self) -> float:
        """Return the time in seconds, in the place of ``perf_counter``."""
        return self.now_s
