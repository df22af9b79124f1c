"""Clocks that are wrong on purpose, to see which check finds what."""

from __future__ import annotations

from trainmark_stand_in.timeline import Mark, Timeline


class HostMarks(Timeline):
    """A mark is the host's time, not a point in the device's queue."""

    def mark(self) -> Mark:
        return Mark(self.clock())


class WaitingMarks(Timeline):
    """A mark waits for the device."""

    def mark(self) -> Mark:
        self.synchronize("mark()")
        return super().mark()


class NoWait(Timeline):
    """``Device.synchronize`` returns at once; only reading a value back waits."""

    def synchronize(self, cause: str) -> None:
        if cause != "synchronize()":
            super().synchronize(cause)


TIMELINES = {
    "none": Timeline,
    "host_marks": HostMarks,
    "waiting_marks": WaitingMarks,
    "no_wait": NoWait,
}
