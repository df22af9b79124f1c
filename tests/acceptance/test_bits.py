"""Which device computes differently, and when no device can be blamed."""

from __future__ import annotations

from typing import Literal, NamedTuple

from trainmark.acceptance.bits import Comparison, Deviation, compare_devices
from trainmark.acceptance.tasks import StepDigest


class Change(NamedTuple):
    """What deviates in a training: a number is added to a part of a step, counted from 1."""

    step: int
    part: Literal["loss", "gradient", "weight"]
    added: int = 1


def make_digests_of_run(*changes: Change, steps: int = 3) -> list[StepDigest]:
    """Return the digests of a training; equal arguments give equal digests.

    A gradient changes in the tensor ``last``, a weight in the tensor ``first``.
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
    """Each device has trained twice; all trainings have the same digests."""
    compared = compare_devices(
        {name: [make_digests_of_run(), make_digests_of_run()] for name in "abc"}
    )

    assert compared == Comparison(control="deterministic", deviations=[], unclear=[])


def test_deviating_minority_is_named_with_step_and_first_tensor() -> None:
    # The gradient of step 2 deviates first, in the tensor ``last``; what deviates after it is its
    # consequence.
    flipped = make_digests_of_run(
        Change(step=2, part="gradient"),
        Change(step=3, part="weight", added=5),
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
    """In the second training of device b a weight of the tensor ``first`` differs after step 3."""
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
    # Each device repeats itself, but they differ.
    other = make_digests_of_run(Change(step=1, part="loss"))

    compared = compare_devices(
        {"a": [make_digests_of_run(), make_digests_of_run()], "b": [other, other]}
    )

    assert compared == Comparison(control="no_majority", deviations=[], unclear=["a", "b"])


def test_unmeasured_devices_are_excluded() -> None:
    assert compare_devices({"a": [], "b": []}).control == "not_measured"
    assert (
        compare_devices({"a": [], "b": [make_digests_of_run(), make_digests_of_run()]}).control
        == "deterministic"
    )
