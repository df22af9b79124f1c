"""What the measured loop adds to the bare step of the same job on the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.card.section import Findings
from benchmarks.loop_overhead import measure

if TYPE_CHECKING:
    from benchmarks.card.section import Card

TITLE = "The measured loop against the bare step"


def run(card: Card) -> Findings:
    bars, figures, details = measure(card.device)
    return Findings(
        bars,
        figures,
        f"{details} A small model has a short step, so the overhead's share is the largest here.",
    )
