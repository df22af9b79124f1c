"""Print the figures of docs/compare.md: how well intervals hold and what differences are seen.

    python tools/comparison_power.py > tables.md

Simulated launches whose true ratio is 1, so that each interval tells all of it: the interval of
another true ratio is the same one, moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.judge.comparison.statistics import Group, ratio, step_noise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

THRESHOLD = 0.03
LAUNCHES = (3, 5, 10)
LAUNCHES_JUDGED = (5, 7, 10, 20)  # fewer are described only
LAUNCH_CVS = (0.005, 0.01, 0.02, 0.05)
POWER = 0.9
_SETTLING = 60  # steps before which an autocorrelated series forgets its start


class Noise(NamedTuple):
    """How launches and steps vary.

    Args:
        launch_cv: standard deviation of a launch's logarithm, without its steps.
        step_cv: that of a step's time as a share; 0: the figure does not follow from steps.
        correlation: of a step's time with the one before.
        skewed: launches are late by an exponential time instead of a normal one.
    """

    launch_cv: float
    step_cv: float = 0.0
    correlation: float = 0.0
    steps: int = 200
    skewed: bool = False


REGIMES = {
    "launches alone, normal": Noise(0.02),
    "launches alone, skewed": Noise(0.02, skewed=True),
    "launches 2%, steps 5%": Noise(0.02, 0.05, 0.5),
    "launches 0.5%, steps 5%": Noise(0.005, 0.05, 0.5),
    "steps 5% alone": Noise(0.0, 0.05, 0.5),
    "steps 5% alone, slowly varying": Noise(0.0, 0.05, 0.9),
}


def group(launches: int, noise: Noise, *, draws: int, rng: np.random.Generator) -> Group:
    """Return simulated launches of one side."""
    late = 1 - rng.exponential(size=launches) if noise.skewed else rng.standard_normal(launches)
    logs = noise.launch_cv * late
    if noise.step_cv == 0:
        return Group(logs, None)
    shocks = rng.standard_normal((launches, _SETTLING + noise.steps))
    moved = shocks * np.sqrt(1 - noise.correlation**2)
    for step in range(1, shocks.shape[1]):
        moved[:, step] += noise.correlation * moved[:, step - 1]
    times = 1 + noise.step_cv * moved[:, _SETTLING:]
    samples = np.ones(noise.steps)
    drawn = [step_noise(series, samples, draws=draws, rng=rng) for series in times]
    return Group(logs - np.log(times.mean(axis=1)), np.array(drawn))


def intervals(
    launches: int, noise: Noise, *, repetitions: int, draws: int, seed: int = 0
) -> dict[bool, tuple[Array, Array]]:
    """Return both ends of the intervals of comparisons whose true ratio is 1, by paired."""
    rng = np.random.default_rng(seed)
    ends = np.empty((2, 2, repetitions))
    for number in range(repetitions):
        a, b = (group(launches, noise, draws=draws, rng=rng) for _ in range(2))
        for paired in (False, True):
            found = ratio(a, b, paired=paired, draws=draws, rng=rng)
            assert found.low is not None
            assert found.high is not None
            ends[int(paired), :, number] = found.low, found.high
    return {paired: (ends[int(paired), 0], ends[int(paired), 1]) for paired in (False, True)}


def coverage(low: Array, high: Array) -> float:
    """Return the share of intervals that hold the true ratio."""
    return float(np.mean((low <= 1) & (high >= 1)))


def called(high: Array, threshold: float = THRESHOLD) -> float:
    """Return the share of comparisons that call B slower: a false regression, each of them."""
    return float(np.mean(high < 1 - threshold))


def seen(high: Array, threshold: float = THRESHOLD, power: float = POWER) -> float:
    """Return the loss of throughput that is called slower in a share ``power`` of comparisons."""
    return float(np.quantile(1 - (1 - threshold) / high, power))


def settled(low: Array, high: Array, threshold: float = THRESHOLD) -> float:
    """Return the share of comparisons of equal sides that end with: no difference seen."""
    return float(np.mean((low >= 1 - threshold) & (high <= 1 + threshold)))


def coverage_rows(*, repetitions: int, draws: int) -> Iterator[tuple[str, ...]]:
    """Yield a row a regime: coverage in percent for each number of launches, not paired, paired."""
    yield ("noise", *(f"{count} launches" for count in LAUNCHES))
    for name, noise in REGIMES.items():
        cells = []
        for count in LAUNCHES:
            found = intervals(count, noise, repetitions=repetitions, draws=draws)
            cells.append(", ".join(f"{100 * coverage(*ends):.1f}" for ends in found.values()))
        yield (name, *cells)


def power_rows(*, repetitions: int, draws: int) -> Iterator[tuple[str, ...]]:
    """Yield a row a CV: loss that is seen, equal sides settled, false regressions, in percent."""
    yield ("CV of launches", *(f"{count} launches" for count in LAUNCHES_JUDGED))
    for cv in LAUNCH_CVS:
        cells = []
        for count in LAUNCHES_JUDGED:
            found = intervals(count, Noise(cv), repetitions=repetitions, draws=draws)
            low, high = found[False]
            shares = seen(high), settled(low, high), called(high)
            cells.append("{:.1f}; {:.0f}; {:.2f}".format(*(100 * share for share in shares)))
        yield (f"{100 * cv:g}%", *cells)


def main() -> None:
    """Print both tables as Markdown."""
    steps = coverage_rows(repetitions=2_000, draws=500)
    launches = power_rows(repetitions=5_000, draws=1_000)
    for rows in (steps, launches):
        head, *body = rows
        print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
        print("\n".join("| " + " | ".join(row) + " |" for row in body), end="\n\n")


if __name__ == "__main__":
    main()
