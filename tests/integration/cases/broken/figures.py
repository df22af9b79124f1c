"""Figures of its own, if their computation is not the one that raises."""

from __future__ import annotations

from trainmark.spec import OwnFigures


def compute(works, known):
    """Return no figures, or raise if the job says so among its facts."""
    if any(work.facts.get("figures") == "raise" for work in works):
        raise KeyError("planted in figures")
    return OwnFigures({})
