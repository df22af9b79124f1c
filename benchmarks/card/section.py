"""What a section of ``make gpu`` gets and returns.

A section is a module of this package with ``TITLE``, one line, and ``run(card) -> Findings``.
``__main__`` calls it in a process of its own and ends it after eight minutes, or after its share
of ``--budget``: it measures what it can within ``card.seconds_left()``.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness import Bar


@dataclass(frozen=True, slots=True)
class Card:
    """What is measured.

    Args:
        device: the vendor's name, as ``--device`` takes it.
        size: ``tiny`` shows that the section works; its figures mean nothing.
        scratch: a folder for generated data, kept from one section to the next.
        ends_at_s: when a section must have ended to be kept, by ``time.monotonic``.
        is_brief: the section has a share of a budget, and not all the time that it wants.
    """

    device: str
    size: Literal["full", "tiny"]
    scratch: Path
    ends_at_s: float = math.inf
    is_brief: bool = False

    def seconds_left(self) -> float:
        """Return how long the section may go on."""
        return self.ends_at_s - time.monotonic()


@dataclass(slots=True)
class Findings:
    """What a section found.

    Args:
        bars: what was asked for, met or not.
        figures: measured numbers by name with the unit in it; None: could not be measured.
        text: Markdown below the bars: tables, profiles, what could not be done and why.
    """

    bars: list[Bar]
    figures: dict[str, float | None] = field(default_factory=dict)
    text: str = ""
