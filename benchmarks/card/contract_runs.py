"""Whole runs of the device contract on the card: targets reached, faults named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.card.contract import RUNS, run_contract

if TYPE_CHECKING:
    from benchmarks.card.section import Card, Findings

TITLE = "The device contract: whole runs"


def run(card: Card) -> Findings:
    """Return how many tests passed, failed and were skipped."""
    return run_contract(card, [RUNS])
