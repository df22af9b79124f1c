"""What a section of ``make gpu`` gets and returns.

A section is a module of this package with ``TITLE``, one line, and ``run(card) -> Findings``.
``__main__`` calls it in a process of its own and ends it after eight minutes.
"""

from __future__ import annotations

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
    """

    device: str
    size: Literal["full", "tiny"]
    scratch: Path


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
