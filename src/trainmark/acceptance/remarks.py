"""Say before the start what the options of an acceptance leave undecided, or let pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.acceptance.model import compute_widening, count_degrees_of_freedom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.acceptance.evidence import Phase
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.acceptance.timetable import ScheduledRound

_MAX_WIDENING = 2.0  # of intervals because of few rounds; wider ones are worth a remark


def list_option_remarks(
    request: AcceptRequest,
    schedule: Sequence[ScheduledRound],
    *,
    alone_phase: Phase,
    num_members: int,
) -> list[str]:
    """Return remarks on tolerances that are large, and on verdicts that cannot be reached.

    Args:
        request: has the tolerances, the phases and the baseline that the user chose.
        schedule: all rounds that will be measured in any case.
        alone_phase: the phase that measures each member alone: ``devices`` or ``nodes``.
        num_members: number of devices or nodes that are accepted.
    """
    unit = alone_phase.removesuffix("s")  # ``device`` or ``node``
    remarks = [
        _describe_large_tolerance(option, value, what)
        for option, value, what in (
            ("--worse-by", request.worse_by, f"a {unit}"),
            ("--rates-worse-by", request.rates_worse_by, "a matmul, a copy or a collective"),
        )
        if value >= 1  # 1 is 100%: the user may have meant percent
    ]
    has_comparison = num_members > 1 or request.baseline is not None
    if not has_comparison:
        remarks.append(
            f"a single {unit} has no peers, so its speed stays undecided; "
            f"add --baseline, or measure more {alone_phase}"
        )
    # Only the times of members alone and of pairs show how noisy the measurements are.
    num_teams = {"pairs": 0, alone_phase: 0}
    for scheduled in schedule:
        if scheduled.phase in num_teams:
            num_teams[scheduled.phase] += len(scheduled.teams)
    degrees_of_freedom = count_degrees_of_freedom(
        num_alone=num_teams[alone_phase], num_pairs=num_teams["pairs"], num_nodes=num_members
    )
    is_alone_measured = alone_phase in request.chosen_phases
    fix = "use a larger --repeats" if is_alone_measured else f"add {alone_phase} to --phases"
    if degrees_of_freedom < 1:
        remarks.append(
            f"there are too few rounds to estimate the noise, so no {unit} can pass unless the "
            f"folder contains earlier rounds; {fix}"
        )
    elif has_comparison:
        widening = compute_widening(num_members, degrees_of_freedom)
        if widening > _MAX_WIDENING:
            remarks.append(
                "so few rounds show the noise only roughly, so confidence intervals are at least "
                f"{widening:.1f} times as wide as with a known noise, and {alone_phase} may stay "
                f"undecided; {fix}"
            )
    return remarks


def _describe_large_tolerance(option: str, value: float, what: str) -> str:
    """Return what a tolerance of 100% or more allows, and how to write it if percent was meant.

    Args:
        option: name of the option that sets the tolerance.
        value: the tolerance as a fraction, of which 1 is 100%.
        what: what may be slower by so much, such as a device.
    """
    return (
        f"{option} {value:g} allows {what} to be {100 * value:g}% slower; "
        f"for {value:g}%, use {option} {value / 100:g}"
    )
