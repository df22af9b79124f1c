"""Compare what devices computed, bit by bit: the same training must give the same numbers.

First the control: a device that trains twice from one seed must agree with itself. If most of the
devices do not, their software is not deterministic, and no device fails.

A digest is a checksum of what a step computed. Here, a run is the digests of all steps of one
training on one device.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import msgspec

from trainmark.rank.replay import find_difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.events.schema import BitDifference
    from trainmark.protocols import StepDigest

Control = Literal["deterministic", "not_deterministic", "no_majority", "not_measured"]


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a device first computed something else.

    Args:
        compared_with: ``itself``: its own first training; ``peers``: most other devices.
        step: counted from 1.
        part: what differed first: ``loss``, ``gradient`` or ``weight``.
        tensor: name of the parameter; None for the loss.
    """

    device: str
    compared_with: Literal["itself", "peers"]
    step: int
    part: Literal["loss", "gradient", "weight"]
    tensor: str | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result over the devices of one product and one software.

    Args:
        control: ``no_majority``: devices differ, and no result is that of more than half of them.
        unclear: devices that differ where there is no majority.
    """

    control: Control
    deviations: list[Deviation]
    unclear: list[str]


def compare_devices(trainings: Mapping[str, Sequence[Sequence[StepDigest]]]) -> Comparison:
    """Compare the trainings of devices, all of which trained the same number of times.

    All trainings begin from the same seed, so that they must agree bit by bit. A run is the digests
    of all steps of one training.

    Args:
        trainings: the runs of each device, by its name. A device without runs does not count.

    Returns:
        Whether devices are deterministic at all (``control``), the devices that differ from
        themselves or from most others (``deviations``), and, if there is no majority, those of
        which it is not known whether they are right (``unclear``).
    """
    runs_of_device = {device: runs for device, runs in trainings.items() if runs}
    if not runs_of_device:
        return Comparison(control="not_measured", deviations=[], unclear=[])
    deviations = []
    # The run of each device whose runs are all equal.
    consistent_runs: dict[str, Sequence[StepDigest]] = {}
    for device, runs in runs_of_device.items():
        difference = _find_first_difference(runs)
        if difference is None:
            consistent_runs[device] = runs[0]
        else:
            deviations.append(_make_deviation(device, "itself", difference))
    # At least half of the devices differ from themselves: their software is not deterministic, and
    # no device is blamed for it.
    if 2 * len(consistent_runs) <= len(runs_of_device):
        return Comparison(control="not_deterministic", deviations=[], unclear=[])
    # Equal for devices whose runs are equal, so that they can be counted.
    encodings = {device: _encode_digests(run) for device, run in consistent_runs.items()}
    usual_encoding, num_agreeing = Counter(encodings.values()).most_common(1)[0]
    # More than half of all devices must agree, with those that differ from themselves counted too.
    if 2 * num_agreeing <= len(runs_of_device):
        unclear = sorted(consistent_runs)
        return Comparison(control="no_majority", deviations=deviations, unclear=unclear)
    devices_of_majority = [
        device for device, encoding in encodings.items() if encoding == usual_encoding
    ]
    usual_run = consistent_runs[devices_of_majority[0]]
    for device, run in consistent_runs.items():
        difference = find_difference(usual_run, run)
        if difference is not None:
            deviations.append(_make_deviation(device, "peers", difference))
    return Comparison(control="deterministic", deviations=deviations, unclear=[])


def _find_first_difference(runs: Sequence[Sequence[StepDigest]]) -> BitDifference | None:
    """Compare all runs of a device with its first one.

    Args:
        runs: the trainings of the device, each as the digests of all its steps.

    Returns:
        The first difference of the earliest run that is not equal; None: all are equal.
    """
    for run in runs[1:]:
        difference = find_difference(runs[0], run)
        if difference is not None:
            return difference
    return None


def _encode_digests(run: Sequence[StepDigest]) -> bytes:
    """Return the digests of a run in a form that can be counted: equal for equal runs."""
    return msgspec.json.encode(run, order="sorted")


def _make_deviation(
    device: str, compared_with: Literal["itself", "peers"], difference: BitDifference
) -> Deviation:
    """Return a deviation of a device: with what it was compared, and where it first differs.

    Args:
        difference: the step, the part of it (loss, gradient or weight), and the name of the
            parameter; None for the loss.
    """
    return Deviation(
        device=device,
        compared_with=compared_with,
        step=difference.step,
        part=difference.part,
        tensor=difference.tensor,
    )
