"""Which device computes differently, and when no device can be blamed."""

from __future__ import annotations

from typing import Literal, NamedTuple

from trainmark.acceptance.bits import Comparison, Deviation, compare_devices
from trainmark.acceptance.tasks import StepDigest


class Change(NamedTuple):
    """What deviates in a training: a number is added to a part of a step.

    Args:
        step: counted from 1.
        part: what is changed: the loss itself, or the digest of a gradient or of a weight.
        added: the number; any but 0 makes a difference.
    """

    step: int
    part: Literal["loss", "gradient", "weight"]
    added: int = 1


def make_digests_of_run(*changes: Change, steps: int = 3) -> list[StepDigest]:
    """Return the digests of a training; equal arguments give equal digests.

    A digest has a number for each tensor, here any that depends on the step and the tensor. A
    change adds a number, 1 unless it names another, to that of a gradient in the tensor ``last``,
    or of a weight in the tensor ``first``, or to the loss, whose digest is its text.
    """
    digests = []
    for step in range(1, steps + 1):
        added = {change.part: change.added for change in changes if change.step == step}
        digests.append(
            StepDigest(
                loss=(1.0 / step + added.get("loss", 0)).hex(),
                gradients={"first": 10 * step, "last": 20 * step + added.get("gradient", 0)},
                weights={"first": 30 * step + added.get("weight", 0), "last": 40 * step},
            )
        )
    return digests


def test_devices_that_agree_are_deterministic() -> None:
    """Each device has trained twice; all trainings have the same digests.

    ``control`` tells whether devices repeat themselves at all, ``deviations`` lists those that
    compute differently, ``unclear`` those that differ while no result has a majority.
    """
    compared = compare_devices(
        {name: [make_digests_of_run(), make_digests_of_run()] for name in "abc"}
    )

    assert compared == Comparison(control="deterministic", deviations=[], unclear=[])


def test_deviating_minority_is_named_with_step_and_first_tensor() -> None:
    """Both trainings of b have the same errors: it agrees with itself, not with a and c.

    Each device has two trainings of 3 steps. The result of a and c is that of the majority, so b is
    the one that is blamed, in comparison with its peers.
    """
    # The gradient of step 2 deviates first, in the tensor ``last``; what deviates after it is its
    # consequence.
    flipped = make_digests_of_run(
        Change(step=2, part="gradient"),
        Change(step=3, part="weight", added=5),  # any other number
        Change(step=3, part="loss"),
    )

    compared = compare_devices(
        {
            "a": [make_digests_of_run(), make_digests_of_run()],
            "b": [flipped, flipped],
            "c": [make_digests_of_run(), make_digests_of_run()],
        }
    )

    assert compared.deviations == [
        Deviation(device="b", compared_with="peers", step=2, part="gradient", tensor="last")
    ]


def test_device_that_differs_from_itself_among_consistent_ones_is_named() -> None:
    """In the second training of device b a weight of the tensor ``first`` differs after step 3.

    Devices a and c repeat themselves, so the software is deterministic, and b is at fault.
    """
    compared = compare_devices(
        {
            "a": [make_digests_of_run(), make_digests_of_run()],
            "b": [make_digests_of_run(), make_digests_of_run(Change(step=3, part="weight"))],
            "c": [make_digests_of_run(), make_digests_of_run()],
        }
    )

    assert compared.control == "deterministic"
    assert compared.deviations == [
        Deviation(device="b", compared_with="itself", step=3, part="weight", tensor="first")
    ]


def test_nondeterministic_software_blames_no_device() -> None:
    """If at least half of the devices differ from themselves, the software is the cause.

    So it is with one such device alone, with one of two, and with both. ``deviations`` would name
    blamed devices, and ``unclear`` those that differ while no result has a majority.
    """
    # A device whose two trainings differ. It is blamed only if most devices repeat themselves.
    noisy = [make_digests_of_run(), make_digests_of_run(Change(step=1, part="loss"))]

    for devices in (
        {"a": noisy},
        {"a": noisy, "b": [make_digests_of_run(), make_digests_of_run()]},
        {"a": noisy, "b": noisy},
    ):
        compared = compare_devices(devices)
        assert compared == Comparison(control="not_deterministic", deviations=[], unclear=[])


def test_of_two_differing_devices_neither_is_blamed() -> None:
    """A result is right if more than half of the devices have it; here each of two has its own.

    ``make_digests_of_run`` returns the same digests in each call without a change, so both
    trainings of a are equal, as are those of b. ``unclear`` names the devices that may be wrong.
    """
    # Each device repeats itself, but they differ.
    other = make_digests_of_run(Change(step=1, part="loss"))

    compared = compare_devices(
        {"a": [make_digests_of_run(), make_digests_of_run()], "b": [other, other]}
    )

    assert compared == Comparison(control="no_majority", deviations=[], unclear=["a", "b"])


def test_unmeasured_devices_are_excluded() -> None:
    """A device without any training (``[]``) does not count.

    If no device has one, nothing was measured. Otherwise those that have trained decide: here b
    alone, whose two trainings are equal, which is deterministic.
    """
    assert compare_devices({"a": [], "b": []}).control == "not_measured"
    assert (
        compare_devices({"a": [], "b": [make_digests_of_run(), make_digests_of_run()]}).control
        == "deterministic"
    )
