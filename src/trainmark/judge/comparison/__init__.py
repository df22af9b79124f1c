"""Compare two groups of results: ratios with intervals, verdicts, and what else differs."""

from trainmark.judge.comparison.comparing import (
    REGRESSIONS,
    UNTOLD,
    ComparedFigure,
    Comparison,
    compare,
)

__all__ = ["REGRESSIONS", "UNTOLD", "ComparedFigure", "Comparison", "compare"]
