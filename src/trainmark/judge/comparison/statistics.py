"""The ratio of a figure between two groups of launches, with its interval by bootstrap.

Owns the draws over launches and over blocks of steps; docs/compare.md says how well the intervals
hold. Everything is on logarithms: a ratio is a difference there, and A over B is the inverse of
B over A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainmark.record.stats import DRAWS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_LEAST_BLOCKS = 20  # fewer resampled blocks tell too little of their mean's variation
_MOST = 340.0  # of a logarithm: 1e147, which a record can hold
_MOST_BLOCKS = 200  # more cost time and tell no more


@dataclass(frozen=True, slots=True)
class Group:
    """A figure over launches, or over rounds of two launches.

    Args:
        logs: logarithm for each launch; of a round the difference of two.
        noise: launches x draws, what the steps of a launch add to its logarithm when blocks of
            them are drawn again; None: the figure does not follow from single steps, or the
            steps are too few.
    """

    logs: Array
    noise: Array | None

    def less(self, other: Group) -> Group:
        """Return the differences of paired launches."""
        pairs = self.noise is not None and other.noise is not None
        noise = self.noise - other.noise if pairs else None  # type: ignore[operator]
        return Group(self.logs - other.logs, noise)


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A with its 95% interval; no interval where neither launches nor steps vary."""

    value: float
    low: float | None
    high: float | None


def block_length(series: Array) -> int:
    """Return how many steps a block has, so that blocks are nearly independent of each other.

    Twice the first lag at which the autocorrelation is below ``2 / sqrt(steps)``, at least the
    cube root of the number of steps; so long and so short that there are 20 to 200 blocks.
    """
    count = len(series)
    spectrum = np.fft.rfft(series - series.mean(), 2 * count)
    covariance = np.fft.irfft(spectrum * spectrum.conj())[:count]
    small = np.flatnonzero(np.abs(covariance) < 2 / np.sqrt(count) * covariance[0])
    lag = int(small[0]) if len(small) else 1
    wanted: int = max(2 * lag, round(count ** (1 / 3)), -(-count // _MOST_BLOCKS))
    return max(1, min(wanted, count // _LEAST_BLOCKS))


def step_noise(
    step_ns: Array, samples: Array, *, draws: int, rng: np.random.Generator
) -> Array | None:
    """Return how far the logarithm of the rate moves when blocks of steps are drawn again.

    Circular blocks: Politis and Romano, "A circular block-resampling procedure for stationary
    data", 1992. To first order in the deviation of the drawn time.

    Args:
        step_ns: of the steps after the warm-up, in order, each with its ``samples``.
    """
    count, time, work = len(step_ns), step_ns.sum(), samples.sum()
    if count < _LEAST_BLOCKS or time <= 0 or work <= 0:
        return None
    excess = step_ns - samples * (time / work)  # over the time that the samples take on average
    length = block_length(excess)
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([excess, excess[:length]]))])
    blocks = running[length : length + count] - running[:count]
    chosen = rng.integers(0, count, size=(draws, count // length), dtype=np.int32)
    return np.asarray(-blocks[chosen].mean(axis=1) / length * (count / time), np.float64)


def ratio(
    a: Group, b: Group, *, paired: bool, draws: int = DRAWS, rng: np.random.Generator
) -> Ratio:
    """Return the ratio of the geometric means of ``b`` and ``a``.

    A draw takes launches with replacement and, of each, blocks of its steps. Launches vary by
    their steps too, so their deviations are first reduced by what steps explain: both together
    then vary as the launches do (Davison and Hinkley, "Bootstrap Methods and their Application",
    1997, section 3.8). A few launches tell their own variation badly: each draw is divided by a
    draw of how far it may be off, which makes of normal deviations Student's interval, and of two
    groups Welch's. A single launch has only its steps.

    Args:
        paired: launch k of ``a`` and of ``b`` were done one right after the other.
    """
    groups = [(b.less(a), 1)] if paired else [(a, -1), (b, 1)]
    moved, variances = np.zeros(draws), []
    for group, sign in groups:
        deviations, variance = _drawn(group, draws, rng)
        moved += sign * deviations
        variances.append((variance, max(1, len(group.logs) - 1)))
    if (total := sum(variance for variance, _ in variances)) > 0:
        # Rounded: the sampler rejects, so that another last bit would give other draws altogether.
        freedom = round(total**2 / sum(variance**2 / count for variance, count in variances), 6)
        moved *= np.sqrt(freedom / rng.chisquare(freedom, draws))
    middle = float(b.logs.mean() - a.logs.mean())
    ends = middle + np.percentile(moved, [2.5, 97.5])
    # Two launches have intervals beyond all floats.
    value, low, high = (float(x) for x in np.exp(np.clip([middle, *ends], -_MOST, _MOST)))
    if not moved.any() and min(len(a.logs), len(b.logs)) == 1:
        return Ratio(value, None, None)
    return Ratio(value, low, high)


def _drawn(group: Group, draws: int, rng: np.random.Generator) -> tuple[Array, float]:
    """Return deviations of the mean, and its variance as launches show it; 0 for a single one."""
    count = len(group.logs)
    chosen = rng.integers(0, count, size=(draws, count))
    seen = float(group.logs.var(ddof=1)) if count > 1 else 0.0
    between, within, share = np.zeros(draws), np.zeros(draws), 0.0
    if group.noise is not None:
        places = np.arange(draws)
        for slot in range(count):  # a launch drawn twice takes its steps from two draws
            within += group.noise[chosen[:, slot], (places + slot * (draws // count)) % draws]
        within /= count
        of_steps = float(group.noise.var(axis=1).mean())
        if count > 1 and of_steps > 0:
            share = min(1.0, of_steps / seen) if seen else 0.0
            within *= np.sqrt(share * seen / of_steps)
    if seen:
        between = group.logs[chosen].mean(axis=1) - group.logs.mean()
        between *= np.sqrt((1 - share) * count / (count - 1))
    return between + within, seen / count
