"""Parameters that jobs report as trained, and steps they count as updates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from support.fakes import FakeClock
from support.tiny_training import make_context
from trainmark.errors import NotTrainedError
from trainmark.protocols import Batch, Counts
from trainmark.rank.parameters import ParameterCheck
from trainmark.train.parameters import GradientWatch, TensorDigest
from trainmark.train.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.recipe import Precision


@pytest.mark.parametrize(("precision", "skipped"), [("fp32", 0), ("fp16", 2)])
def test_steps_without_a_rate_or_dropped_by_the_scaler_are_no_updates(
    precision: Precision, skipped: int
) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Of each of the four steps: the factor of the learning rate, and, in fp16, the factor of the
    # loss, which overflows in the third step.
    factors, scales = [0.0, 1.0, 1.0, 0.5], [1.0, 1.0, torch.inf, 1.0]

    def loss_sum(batch: Batch) -> torch.Tensor:
        # The first step overflows as well: the scaler's initial scale is more than fp16 holds.
        return model(batch.tensors).sum() * (scales[stepper.steps] if skipped else 1.0)

    def yield_batch() -> Iterator[Batch]:
        yield Batch(torch.ones(1, 1), Counts(samples=1), step_samples=1, closes_step=True)

    stepper = Stepper(
        make_context(precision),
        model,
        optimizer,
        loss_sum,
        schedule_lr=lambda steps: factors[steps],
    )
    updates = []
    for _ in factors:
        stepper.step(yield_batch())
        updates.append(stepper.updates())
    # Updates so far after each step. The first step is none, as its rate is 0. In fp16 the scaler
    # drops the first and the third step.
    assert updates == ([0, 1, 1, 2] if skipped else [0, 1, 2, 3])
    assert stepper.skipped_steps() == skipped


def make_tensors() -> dict[str, torch.Tensor]:
    """Return tensors that are wide, transposed, of other types, at an offset, scalar or empty.

    Their sizes are any, and their numbers are random, but the same in each call.
    """
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    return {
        "wide": draw(300, 7),
        "transposed": draw(5, 4).t(),
        "bfloat16": draw(9).bfloat16(),
        "at_offset": draw(33)[1:8],
        "scalar": draw(()),
        "empty": draw(0),
        "double": draw(3).double(),
    }


@pytest.mark.parametrize("name", [name for name in make_tensors() if name != "empty"])
def test_smallest_change_of_any_element_changes_the_checksum_of_its_tensor_alone(name: str) -> None:
    # ``TensorDigest`` computes a checksum of each tensor (``compute_sums``, by name), all of which
    # notice the smallest change. ``make_tensors`` gives tensors by name, one of which is empty.
    checked_tensors = make_tensors()
    digest = TensorDigest(checked_tensors)
    before = digest.compute_sums()
    assert set(before) == set(checked_tensors) - {"empty"}
    assert digest.compute_sums() == before
    tensor = checked_tensors[name]
    for index in product(*map(range, tensor.shape)):  # () for a scalar
        old = tensor[index].clone()
        tensor[index] = torch.nextafter(old, old.new_tensor(torch.inf))  # the next number
        after = digest.compute_sums()
        assert {key for key in before if after[key] != before[key]} == {name}
        tensor[index] = old
    assert digest.compute_sums() == before


@dataclass
class FakeDigest:
    """A digest that a test sets: ``sampled`` for the sampled elements, ``sum_of_all`` for all."""

    clock: FakeClock
    sampled: int = 0
    sum_of_all: int = 0
    sums_taken: int = 0

    def sample(self) -> bytes:
        self.clock.advance(5)  # nanoseconds that the sampled elements take
        return bytes([self.sampled])

    def compute_sums(self) -> dict[str, int]:
        self.clock.advance(100)  # nanoseconds that the sums of all elements take
        self.sums_taken += 1
        return {"weight": self.sum_of_all, "bias": 7}  # the bias never changes


def make_check() -> tuple[ParameterCheck, FakeDigest, list[int]]:
    """Return a check that has begun, its digest, and the number of updates, as a list of one."""
    # ``GradientWatch`` with no parameters and no steps: gradients are not watched here.
    clock = FakeClock()
    digest, updates = FakeDigest(clock), [0]
    check = ParameterCheck(
        digest=digest,
        gradients=GradientWatch({}, num_steps=0),
        updates=lambda: updates[0],
        clock=clock,
    )
    check.start()
    return check, digest, updates


def test_change_outside_the_sampled_elements_is_found_by_checksums() -> None:
    # ``make_check`` gives a check, a fake of the sums that it takes of the parameters, and a list
    # of one number: the optimizer's updates so far. The check looks at a sample of the elements
    # first (``sampled``), and sums all (``sum_of_all``) only if the sample did not change.
    check, digest, updates = make_check()
    for step in range(5):
        updates[0] += 1
        digest.sum_of_all += 1
        check.check_window(first_step=step, steps=1)
    # At the start, and for each window, as no sampled element changed.
    assert digest.sums_taken == 1 + 5
    # In each of 5 windows, the fake digest takes 5 ns for the samples and 100 ns for the sums.
    assert check.take_ns() == 5 * (5 + 100)
    assert check.take_ns() == 0  # the time was taken


@pytest.mark.parametrize("exact", [False, True])
def test_window_without_change_fails_if_exact_sums_at_its_start_are_known(exact: bool) -> None:
    # ``make_check`` gives a check, the fake digest that it reads, and the number of updates, as a
    # list of one. ``exact`` asks for the sums of all elements; without it, a sample may be enough.
    check, digest, updates = make_check()
    # The first window has an update that changes sampled elements, which is proof enough: exact
    # sums are only taken if they are asked for. Later updates change nothing.
    updates[0] = digest.sampled = digest.sum_of_all = 1
    check.check_window(first_step=0, steps=1, exact=exact)
    # Without exact sums at the end of the first window, the second one cannot be judged yet.
    first = 1
    if not exact:
        updates[0] += 10
        check.check_window(first_step=1, steps=10)
        first = 11
    updates[0] += 10
    with pytest.raises(NotTrainedError) as caught:
        check.check_window(first_step=first, steps=10)
    assert caught.value.code == "parameters_unchanged_in_window"
    assert caught.value.details == {
        "first": first + 1,
        "last": first + 10,
        "updates": 10,
        "parameters": 2,  # of the fake digest: weight and bias
    }


def test_windows_whose_steps_were_all_dropped_may_change_nothing() -> None:
    # ``make_check`` gives a check, the fake digest that it reads, and the number of updates, as a
    # list of one.
    check, digest, updates = make_check()
    # In two windows no step is an update and nothing changes, which is no error.
    check.check_window(first_step=0, steps=10)
    check.check_window(first_step=10, steps=10)
    # The third window has an update, which changes the digest.
    updates[0] = digest.sampled = digest.sum_of_all = 1
    check.check_window(first_step=20, steps=10)
    assert check.end() == {
        "changed": {"weight": True, "bias": False},
        # ``make_check`` watches the gradients of no parameter, and only sums of those are given.
        "gradients": {},
        "sums": {},
    }


def take_step_with(
    weights: dict[str, torch.Tensor], gradients: dict[str, torch.Tensor | None]
) -> None:
    """Set gradients and take a step of a new AdamW, whose weight decay changes all weights."""
    for name, gradient in gradients.items():
        weights[name].grad = gradient
    torch.optim.AdamW(list(weights.values()), lr=0.1, weight_decay=0.5).step()


def test_gradients_are_watched_in_the_first_steps_of_the_optimizer_of_the_weights() -> None:
    # Two steps are watched (``num_steps``). A weight's flag says whether any element of its
    # gradients in these steps was not zero. ``take_step_with`` sets gradients and takes a step of
    # an optimizer.
    weights = {name: torch.ones(3, requires_grad=True) for name in ("seen", "late", "zero", "none")}
    watch = GradientWatch(weights, num_steps=2)
    nonzero, zero = torch.tensor([0.0, 0.0, 1.0]), torch.zeros(3)
    # A step of another optimizer's weights does not count.
    take_step_with({"other": torch.ones(1, requires_grad=True)}, {"other": torch.ones(1)})
    take_step_with(weights, {"seen": nonzero, "late": zero, "zero": zero, "none": None})
    assert not watch.is_finished
    take_step_with(weights, {"seen": zero, "late": nonzero, "zero": zero, "none": None})
    assert watch.is_finished
    take_step_with(weights, {"zero": nonzero})  # the watch has ended: ignored
    # A weight that never had a gradient has no flag.
    assert watch.read_flags() == {"seen": True, "late": True, "zero": False}
    watch.close()
