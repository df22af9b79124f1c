"""The same as the section ``gpt`` with all three variants through ``torch.compile``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.card.gpt import measure

if TYPE_CHECKING:
    from benchmarks.card.section import Card, Findings

TITLE = "GPT-2 124M, bf16, batch 16, compiled"


def run(card: Card) -> Findings:
    return measure(card, "compiled")
