"""Print the tables of docs/compare.md: how well intervals hold and what differences are seen.

    python tools/comparison_power.py > tables.md

Simulated launches whose true ratio is 1, so that each interval tells all of it: the interval of
another true ratio is the same one, moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainmark.judge.comparison import THRESHOLD, find_suspicious_drift
from trainmark.record.stats import estimate_ratio, summarize_launches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

POWER = 0.9
LAUNCHES = (5, 7, 11, 20)
CVS = (0.005, 0.01, 0.02, 0.05)
KINDS = ("normal", "skewed", "correlated")


def simulate_launches(kind: str, count: int, cv: float, rng: np.random.Generator) -> Array:
    """Return logarithms of launches around 0: normal, late by an exponential time, or AR(1)."""
    if kind == "skewed":
        return cv * (1 - rng.exponential(size=count))
    shocks = rng.standard_normal(count)
    for at in range(1, count if kind == "correlated" else 0):
        shocks[at] = 0.3 * shocks[at - 1] + (1 - 0.3**2) ** 0.5 * shocks[at]
    return cv * shocks


def measure_coverage(kind: str, count: int, *, repetitions: int, seed: int = 0) -> dict[str, float]:
    """Return the share of intervals that hold what they are of: a mean, ratios of two sides."""
    rng, held = np.random.default_rng(seed), {"mean": 0, "ratio": 0, "paired": 0}
    for _ in range(repetitions):
        a, b = (np.exp(simulate_launches(kind, count, 0.02, rng)).tolist() for _ in range(2))
        shares = summarize_launches(a)
        ends = {
            "mean": (shares.low, shares.high),
            "ratio": estimate_ratio(a, b)[1:],
            "paired": estimate_ratio(a, b, paired=True)[1:],
        }
        for name, (low, high) in ends.items():
            held[name] += (low or 0) <= 1 <= (high or 0)
    return {name: times / repetitions for name, times in held.items()}


def _simulate_comparisons(
    count: int, cv: float, repetitions: int, seed: int
) -> tuple[Array, Array, Array]:
    """Return both ends of each comparison's interval, and whether its launches seem to drift."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(repetitions):
        a, b = (np.exp(simulate_launches("normal", count, cv, rng)).tolist() for _ in range(2))
        rows.append((*estimate_ratio(a, b)[1:], find_suspicious_drift(a, b, THRESHOLD) is not None))
    low, high, drifting = np.array(rows, np.float64).T
    return low, high, drifting > 0


def measure_power(
    count: int, cv: float, *, repetitions: int, seed: int = 0
) -> tuple[float, float, float]:
    """Return the loss that nine of ten comparisons call slower, and of equal sides two shares.

    These are of comparisons that end with no difference seen, and with a false ``slower``. The
    launches do not drift; where they seem to, nothing is called.
    """
    low, high, drifting = _simulate_comparisons(count, cv, repetitions, seed)
    settled = ~drifting & (low >= 1 - THRESHOLD) & (high <= 1 + THRESHOLD)
    losses = np.where(drifting, np.inf, 1 - (1 - THRESHOLD) / high)
    loss = np.quantile(losses, POWER, method="higher")
    false_alarms = ~drifting & (high < 1 - THRESHOLD)
    return float(loss), float(np.mean(settled)), float(np.mean(false_alarms))


def measure_trends(count: int, cv: float, *, repetitions: int, seed: int = 0) -> float:
    """Return the share of comparisons in which launches that do not drift seem to."""
    return float(np.mean(_simulate_comparisons(count, cv, repetitions, seed)[2]))


def iterate_coverage_rows(repetitions: int) -> Iterator[list[str]]:
    """Yield a row a kind of launches: coverage in percent of mean, ratio and paired ratio."""
    yield ["launches", *map(str, LAUNCHES)]
    for kind in KINDS:
        found = (measure_coverage(kind, count, repetitions=repetitions) for count in LAUNCHES)
        yield [kind, *(", ".join(f"{100 * x:.1f}" for x in shares.values()) for shares in found)]


def iterate_power_rows(repetitions: int) -> Iterator[list[str]]:
    """Yield a row a CV: loss that is seen, equal sides settled, false regressions, in percent."""
    yield ["CV of launches", *(f"{count} launches" for count in LAUNCHES)]
    for cv in CVS:
        found = (measure_power(count, cv, repetitions=repetitions) for count in LAUNCHES)
        yield [
            f"{100 * cv:g}%",
            *("{:.1f}; {:.0f}; {:.2f}".format(*(100 * x for x in shares)) for shares in found),
        ]


def iterate_trend_rows(repetitions: int) -> Iterator[list[str]]:
    """Yield a row a CV: comparisons that the rule on trends calls too noisy, in percent."""
    yield ["CV of launches", *(f"{count} launches" for count in LAUNCHES)]
    for cv in CVS:
        found = (measure_trends(count, cv, repetitions=repetitions) for count in LAUNCHES)
        yield [f"false alarms, CV {100 * cv:g}%", *(f"{100 * share:.1f}" for share in found)]


def main() -> None:
    """Print the tables as Markdown."""
    for rows in (
        iterate_coverage_rows(10_000),
        iterate_power_rows(5_000),
        iterate_trend_rows(5_000),
    ):
        head, *body = rows
        print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
        print("\n".join("| " + " | ".join(row) + " |" for row in body), end="\n\n")


if __name__ == "__main__":
    main()
