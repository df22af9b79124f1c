"""Hold the values that one source has in one run of a log."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass
class RunValues:
    """The values that one source has in one run.

    Args:
        values: in the unit of the log.
        seconds: that each value covers; NaN: not known.
        work: samples or tokens that each value covers; NaN: not known.
        batches: samples of a step over all devices; NaN: not known.
        has_pause: 1 if an evaluation or a checkpoint was seen since the value before, else 0.
        pauses_s: seconds of these evaluations and checkpoints that the log prints; 0: none.
        first_text: the line of the first value that counts, with its number: ``line 12: …``.
        last_text: the line of the last value, with its number.
    """

    values: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    work: array[float] = field(default_factory=lambda: array("d"))
    batches: array[float] = field(default_factory=lambda: array("d"))
    has_pause: array[int] = field(default_factory=lambda: array("b"))
    pauses_s: array[float] = field(default_factory=lambda: array("d"))
    first_text: str = ""
    last_text: str = ""
