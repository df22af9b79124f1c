"""Checks of the tensors that a program's optimizers hold: their time, and what they find."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from trainmark.witness.weights import TrainedWeights


def make_optimizer() -> torch.optim.Optimizer:
    """Return an optimizer of a new tensor that has a gradient."""
    tensor = torch.nn.Parameter(torch.ones(3))
    tensor.grad = torch.ones(3)
    return torch.optim.SGD([tensor], lr=0.1)


@pytest.mark.parametrize(
    "joins", [False, True], ids=["no optimizer joins", "another optimizer joins"]
)
def test_only_checks_between_windows_count(joins):
    """The time of the check after a window counts; that of the check before the next step does not.

    It also counts if another optimizer then joins, for which the check of windows starts anew.
    """
    # Each check reads the clock at its start and at its end: the first one takes 1 - 0 ns, the
    # second one 9 - 4 ns.
    ticks = (number**2 for number in count())
    weights = TrainedWeights(clock=lambda: next(ticks))
    optimizer = make_optimizer()
    weights.add(optimizer)
    optimizer.step()
    weights.count_step(optimizer)
    # Not exact: a sample of the elements is compared, which is enough if it has changed.
    weights.check_window(first_step=0, steps=1, exact=False)
    other = make_optimizer()
    if joins:
        weights.add(other)
    weights.check_before_step(step=1)
    assert next(ticks) == 16  # two checks have read the clock, at 0, 1, 4 and 9
    assert weights.take_check_ns() == 1  # of the first check alone; then it is taken, and 0 is left
    assert weights.take_check_ns() == 0
    assert not weights.violations


def test_step_that_goes_on_after_a_window_ended_in_it_may_change_tensors():
    # An evaluation in the closure of a step ends the window; the step then changes the tensors.
    # ``TrainedWeights`` checks at the end of a window whether they have changed, and before a step
    # whether something else than the steps has changed them, which is a violation.
    optimizer = make_optimizer()
    weights = TrainedWeights(clock=lambda: 0)
    weights.add(optimizer)
    for step in range(3):
        weights.check_before_step(step=step)
        weights.check_window(first_step=step, steps=1, exact=False)
        optimizer.step()
        weights.count_step(optimizer)
    assert "witness_changed_outside" not in weights.violations


def test_optimizer_whose_last_group_is_empty_is_checked():
    # An optimizer of one tensor in its first group, and of none in a second one. ``TrainedWeights``
    # checks that steps, and nothing else, change tensors. It reads the clock, which stands still,
    # to tell how long that takes.
    optimizer = make_optimizer()
    optimizer.add_param_group({"params": []})
    weights = TrainedWeights(clock=lambda: 0)
    weights.add(optimizer)
    optimizer.step()
    weights.count_step(optimizer)
    weights.check_window(first_step=0, steps=1, exact=False)
    with torch.no_grad():
        optimizer.param_groups[0]["params"][0].add_(1.0)  # written to outside of a step
    weights.check_at_end()
    assert list(weights.violations) == ["parameters_changed_after_training"]
