"""How launches comply with the divisions of their case, as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages.cells import clean
from trainmark.pages.texts import text
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.judge.compliance import Compliance


def lines(found: Compliance, lang: str) -> Iterator[str]:
    """Yield what was judged, then each division with a line a rule."""
    count, claimed = len(found.run_ids), found.claimed
    case = clean(found.case)
    yield text("compliance.of", lang, case=case, launches=count, division=claimed)
    for name, rules in found.divisions.items():
        yield text(f"compliance.{'yes' if found.compliant(name) else 'no'}", lang, division=name)
        for rule in rules:
            mark = text(f"compliance.{'kept' if rule.kept else 'broken'}", lang)
            yield f"  {mark} {clean(render(rule.found, lang))}"
