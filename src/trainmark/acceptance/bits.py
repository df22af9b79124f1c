"""Compare what devices computed, bit by bit: the same training must give the same numbers.

First the control: a device that trains twice from one seed must agree with itself. If most of the
devices do not, their software is not deterministic, and no device fails. Here, a run is the digests
of one training on one device.
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
    """Compare the trainings of devices by name, each of which trained as often.

    Args:
        trainings: digests of each step of each training, by device.
    """
    measured = {device: runs for device, runs in trainings.items() if runs}
    if not measured:
        return Comparison(control="not_measured", deviations=[], unclear=[])
    deviations = []
    consistent: dict[str, Sequence[StepDigest]] = {}
    for device, runs in measured.items():
        first_run = runs[0]
        differences = [find_difference(first_run, run) for run in runs[1:]]
        found_differences = [place for place in differences if place is not None]
        if found_differences:
            deviations.append(_make_deviation(device, "itself", found_differences[0]))
        else:
            consistent[device] = first_run
    if 2 * len(consistent) <= len(measured):
        return Comparison(control="not_deterministic", deviations=[], unclear=[])
    encoded_runs = {device: _encode_digests(run) for device, run in consistent.items()}
    usual_encoding, count = Counter(encoded_runs.values()).most_common(1)[0]
    if 2 * count <= len(measured):
        return Comparison(control="no_majority", deviations=deviations, unclear=sorted(consistent))
    devices_of_majority = [
        device for device, encoding in encoded_runs.items() if encoding == usual_encoding
    ]
    usual_run = consistent[devices_of_majority[0]]
    for device, run in consistent.items():
        place = find_difference(usual_run, run)
        if place is not None:
            deviations.append(_make_deviation(device, "peers", place))
    return Comparison(control="deterministic", deviations=deviations, unclear=[])


def _encode_digests(run: Sequence[StepDigest]) -> bytes:
    """Return the digests of a run in a form that can be counted: equal for equal runs."""
    return msgspec.json.encode(run, order="sorted")


def _make_deviation(
    device: str, compared_with: Literal["itself", "peers"], place: BitDifference
) -> Deviation:
    """Return a deviation of a device at the place where two runs first differ."""
    return Deviation(
        device=device,
        compared_with=compared_with,
        step=place.step,
        part=place.part,
        tensor=place.tensor,
    )
