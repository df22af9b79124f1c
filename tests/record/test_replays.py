"""Repeated windows in a record: which rank is named, and which rates leave out their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.fakes import launch_event, make_event, make_span, make_window, measure, write_run
from trainmark.events.timeline import read_run
from trainmark.record import findings
from trainmark.record.figures import compute_figures
from trainmark.record.replays import ReplayDifference, Replays
from trainmark.record.trust import grade_reasons
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.record.measurement import Measurement

S = 1_000_000_000


class Difference(NamedTuple):
    """Where a repeat first differed; a loss is no tensor."""

    step: int
    part: str
    tensor: str | None


def make_replay(
    difference: Difference | None = None, *, first_step: int = 4, control: str | None = None
) -> dict[str, Any]:
    """Return the event of a rank that trained a window of 4 steps again, which took 3 s.

    Args:
        difference: where the repeat first differed from the window; None: they were equal.
        first_step: the first of the 4 steps.
        control: what two more repeats showed, which follow a difference: whether they were equal
            (``deterministic``) or not (``not_deterministic``). ``not_needed``: there were none.
            None: ``deterministic`` if there is a difference, else ``not_needed``.
    """
    place = None if difference is None else difference._asdict()
    kind = control or ("not_needed" if place is None else "deterministic")
    return make_event(
        "replay",
        13 * S,
        start_ns=10 * S,
        end_ns=13 * S,
        first_step=first_step,
        steps=4,
        repeats=1 if kind == "not_needed" else 3,
        control=kind,
        difference=place,
    )


@pytest.fixture
def measure_replays(tmp_path: Path) -> Any:
    """Return a function that writes a run and measures it."""

    def call(
        *ranks: list[dict[str, Any]], replay_every: int | None = 1, nproc: int = 2
    ) -> Measurement:
        """Return the measurement of ranks with these repeats after a window.

        The steps of a repeat need not be those of the window: nothing compares them.

        Args:
            ranks: for each rank a list of what ``make_replay`` returns.
            replay_every: the recipe's ``replay_every_windows``; None: no window is to be repeated.
            nproc: ranks of each node.
        """
        events = [
            [
                make_event("start", 1 * S, pid=1),
                make_window(2 * S, 4 * S, phase="compile", step_ns=[2 * S], samples=[8]),
                make_span("replay", 4 * S, 5 * S),  # saving the state before the window
                # Of its 5 s, one is in no step; rates count it.
                make_window(5 * S, 10 * S, first_step=1, step_ns=[S] * 4, samples=[8] * 4),
                *replays,
                make_event("trained", 14 * S, start_ns=2 * S, end_ns=14 * S, steps=5, epochs=1),
                make_event("end", 15 * S),
            ]
            for replays in ranks
        ]
        run_dir = write_run(tmp_path / "run", [launch_event()], *events)
        return measure(
            read_run(run_dir, len(ranks)), nproc=nproc, replay_every_windows=replay_every
        )

    return call


def find_findings(measurement: Measurement) -> list[tuple[str, dict[str, Any]]]:
    """Return code and arguments of each finding about windows of steps that were run again."""
    all_findings = findings.find_in_measurement(measurement, {})
    return [(item.code, dict(item.args)) for item in all_findings if item.code.startswith("replay")]


def test_time_of_window_repeats_is_a_span_excluded_from_rates(measure_replays: Any) -> None:
    # One rank trains 5 steps of 8 samples, 40 in all, from second 2 to second 14. Saving the state
    # before a window takes 1 s (4 to 5), the repeats of the window take 3 s (10 to 13).
    measurement = measure_replays([make_replay()])

    (rank,) = measurement.ranks
    assert rank.spans_ns["replay"] == 1 * S + 3 * S  # saving the state, and the repeats
    assert sum(rank.spans_ns.values()) == rank.wall_ns
    assert rank.train_ns == 12 * S - 4 * S
    figures = compute_figures(measurement)
    assert figures["p_train"].value == 40 / 8  # samples in 8 of the 12 s
    assert figures["train_time"].value == 8.0
    assert figures["replayed_windows"].value == 1.0


def test_run_that_ended_before_the_first_repeat_has_no_figure_but_a_finding(
    measure_replays: Any,
) -> None:
    """A plan may say that some windows of steps are trained again, to compare the results.

    ``measure_replays`` writes and measures a run with a list of such repeats for each rank. Its
    plan repeats every window unless ``replay_every`` is None. Here the only rank has no repeat.
    """
    measurement = measure_replays([])
    figure = compute_figures(measurement)["replayed_windows"]

    assert (figure.value, figure.reason) == (None, message("no_window_replayed"))
    # {}: no figures, which other findings would be derived from.
    codes = [finding.code for finding in findings.find_in_measurement(measurement, {})]
    assert "no_window_replayed" in codes
    # Without repeats in the plan there is no such figure at all.
    assert "replayed_windows" not in compute_figures(measure_replays([], replay_every=None))


def test_equal_repeats_are_counted_and_raise_no_finding(measure_replays: Any) -> None:
    # Two ranks, of which each repeated the same two windows of 4 steps: one that begins at step 4,
    # the default of ``make_replay``, and one at step 8. Without a difference all repeats are equal.
    measurement = measure_replays(
        [make_replay(), make_replay(first_step=8)], [make_replay(), make_replay(first_step=8)]
    )

    assert measurement.replays == Replays(
        windows=2, not_deterministic=0, different=0, differences=[]
    )
    assert find_findings(measurement) == []


def test_rank_whose_gradient_differs_first_is_named_with_its_node(measure_replays: Any) -> None:
    # Four ranks repeated one window each. ``make_replay(d)`` is the event that the repeat first
    # differed at ``d``. Rank 2 is on node 1, as a node has two ranks. The reduction gives all ranks
    # its wrong gradient, so their weights differ in the next step.
    follows = Difference(step=7, part="weight", tensor="head")
    measurement = measure_replays(
        [make_replay(follows)],
        [make_replay(follows)],
        [make_replay(Difference(step=6, part="gradient", tensor="layer.1"))],
        [make_replay(follows)],
    )

    assert measurement.replays.differences == [
        ReplayDifference(step=6, part="gradient", tensor="layer.1", ranks=[2])
    ]
    ((code, args),) = find_findings(measurement)
    assert code == "replay_differs"
    assert args == {
        "ranks": "2",
        "nodes": "1",
        "step": 6,
        "place": "gradient layer.1",
        "windows": 1,  # with a difference
        "of": 1,  # that were repeated
    }
    assert grade_reasons([message(code, **args)]).grade == "do_not_quote"


def test_ranks_that_differ_at_the_same_step_are_all_named(measure_replays: Any) -> None:
    difference = Difference(step=5, part="loss", tensor=None)
    # Three ranks, two of them on the first node. Each repeated a window, and its loss differed in
    # step 5 (a loss is no tensor).
    measurement = measure_replays(*[[make_replay(difference)]] * 3)

    ((_, args),) = find_findings(measurement)
    assert (args["ranks"], args["nodes"], args["place"]) == ("0-2", "0-1", "loss")


def test_nondeterministic_software_blames_no_rank(measure_replays: Any) -> None:
    # In the second window, the repeats on each rank differ from one another. In the first one, a
    # tensor of rank 0 differs.
    unstable = make_replay(first_step=8, control="not_deterministic")

    measurement = measure_replays(
        [make_replay(Difference(step=6, part="weight", tensor="head")), unstable],
        [make_replay(), unstable],
    )

    # The difference in the first window is not reported either: the same software may have made it.
    # Arguments: of 2 repeated windows, 1 has repeats that differ from one another.
    assert find_findings(measurement) == [("replay_not_deterministic", {"windows": 1, "of": 2})]


def test_window_that_not_all_ranks_repeated_is_excluded(measure_replays: Any) -> None:
    # Rank 0 repeated the windows of first step 4, the default, and 8; rank 1 that of 4 alone.
    measurement = measure_replays([make_replay(), make_replay(first_step=8)], [make_replay()])

    assert measurement.replays.windows == 1  # that of 4
