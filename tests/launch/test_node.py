"""What asks the process of a node to stop: signals, and a launcher that is gone."""

from __future__ import annotations

from trainmark.launch.node import HeartbeatReader, poll_stop_signal
from trainmark.launch.processes import StopRequest


class FakeHeartbeat(HeartbeatReader):
    """Stands for the reader of standard input; a test sets whether the launcher is lost."""

    def __init__(self, *, lost: bool) -> None:
        super().__init__()
        self.lost = lost

    def is_lost(self) -> bool:
        return self.lost


def test_nothing_asks_to_stop_while_the_launcher_is_heard() -> None:
    stop = StopRequest()
    assert poll_stop_signal(stop, FakeHeartbeat(lost=False)) is None
    assert stop.signal_name is None


def test_without_heartbeat_only_signals_count() -> None:
    stop = StopRequest()
    assert poll_stop_signal(stop, None) is None
    stop.signal_name = "SIGTERM"  # as the handler of the signal notes it
    assert poll_stop_signal(stop, None) == "SIGTERM"


def test_noted_signal_stays_when_the_launcher_is_lost() -> None:
    stop = StopRequest(signal_name="SIGINT")
    assert poll_stop_signal(stop, FakeHeartbeat(lost=True)) == "SIGINT"
    assert stop.signal_name == "SIGINT"


def test_lost_launcher_counts_as_sighup_even_if_it_is_heard_again() -> None:
    stop = StopRequest()
    heartbeat = FakeHeartbeat(lost=True)
    assert poll_stop_signal(stop, heartbeat) == "SIGHUP"
    heartbeat.lost = False
    assert poll_stop_signal(stop, heartbeat) == "SIGHUP"
    assert stop.signal_name == "SIGHUP"
