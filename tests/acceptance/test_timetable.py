"""Times that are shown before an acceptance starts and while it runs."""

from __future__ import annotations

import pytest

from trainmark.acceptance import timetable
from trainmark.acceptance.timetable import Progress, ScheduledRound, Timetable, format_time


def test_finished_test_states_no_times() -> None:
    """A timetable tells which rounds are still to be measured, and how long they take.

    Without a round in ``schedule`` all were measured in earlier sessions. A round takes about 30 s
    (``round_s``), so the only one of the second timetable takes 0.5 min; ``limit_s``, the most that
    it may take, does not count.
    """
    finished = Timetable(title="2 devices", schedule=[], round_s=30.0, limit_s=0.0)
    text = " ".join(finished.describe())
    assert "0.0 min" not in text
    assert "earlier sessions" in text

    one_round = ScheduledRound(phase="devices", number=0, teams=[("a",)])
    unfinished = Timetable(title="2 devices", schedule=[one_round], round_s=30.0, limit_s=600.0)
    assert "in all about 0.5 min" in unfinished.describe()


def test_rounds_of_each_phase_are_counted_and_timed() -> None:
    """Two rounds of devices and one of nodes, each of about 30 s (``round_s``).

    The lines of the phases are behind the title.
    """
    schedule = [
        ScheduledRound(phase="devices", number=0, teams=[("a",)]),
        ScheduledRound(phase="devices", number=1, teams=[("a",)]),
        ScheduledRound(phase="nodes", number=0, teams=[("a",)]),
    ]
    lines = Timetable(title="a", schedule=schedule, round_s=30.0, limit_s=600.0).describe()
    assert lines[1:3] == ["devices: 2 rounds, about 1.0 min", "nodes: 1 round, about 0.5 min"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (594, "9.9 min"),
        (600, "10 min"),  # from here on without a fraction
        (7_140, "119 min"),
        (7_200, "2.0 h"),  # from here on in hours
        (9_000, "2.5 h"),
    ],
)
def test_time_is_in_minutes_and_from_two_hours_on_in_hours(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_progress_states_the_time_left_of_the_phase_and_of_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rounds of devices and one of nodes, each of which takes 60 s.

    The guess before the first has ended is 30 s: 10 s of timed training and 20 s to start ranks.
    """
    now_s = 0.0
    monkeypatch.setattr(timetable.time, "monotonic", lambda: now_s)
    progress = Progress(["devices", "devices", "nodes"], training_s=10.0)
    lines = []
    for _ in range(3):
        lines.append(progress.begin_round())
        now_s += 60.0

    # Before the first round: two and three rounds of 30 s. Later: the rounds that are left, 60 s
    # each, as the ones before.
    assert lines == [
        "devices: round 1 of 2, about 1.0 min left in this phase, 1.5 min left in total",
        "devices: round 2 of 2, about 1.0 min left in this phase, 2.0 min left in total",
        "nodes: round 1 of 1, about 1.0 min left",
    ]
