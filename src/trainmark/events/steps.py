"""Combine the steps of all ranks.

They are kept in arrays, so that a million steps on eight ranks fit in memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainmark.events.schema import Window

RANKS_DISAGREE = -1  # in place of a number of samples on which ranks disagree
_Scalar = TypeVar("_Scalar", np.int64, np.float64)


@dataclass(slots=True)
class RankSteps:
    """The steps of one rank, collected while its file is read; each field has a value a step.

    Args:
        step_ns: time in nanoseconds.
        loss: mean loss of the step's samples; NaN: not known.
        samples: number of samples that the case counted on this rank.
        step_samples: number of samples in the step's batches on all ranks, as each batch of this
            rank declares it.
    """

    step_ns: array[int] = field(default_factory=lambda: array("q"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    samples: array[int] = field(default_factory=lambda: array("q"))
    step_samples: array[int] = field(default_factory=lambda: array("q"))

    def add(self, window: Window) -> None:
        """Append the steps of a window; a loss that is not known becomes NaN.

        Of each step, ``samples`` is the number that this rank trained, and ``step_samples`` that of
        all ranks together.
        """
        self.step_ns.fromlist(window.step_ns)
        self.samples.fromlist(window.samples)
        self.step_samples.fromlist(window.step_samples)
        self.loss.extend(nan if value is None else value for value in window.loss)


def _make_empty_integers() -> NDArray[np.int64]:
    """Return an array of integers without a step."""
    return np.empty(0, np.int64)


def _extend_with_zeros(values: NDArray[_Scalar], length: int) -> NDArray[_Scalar]:
    """Return ``values`` with zeros appended up to ``length``."""
    return np.concatenate([values, np.zeros(length - len(values), values.dtype)])


@dataclass(slots=True)
class Series:
    """The steps of all ranks together; each field has a value a step.

    Args:
        step_ns: time of the slowest rank in nanoseconds.
        loss_sum: sum of the losses of all samples; NaN: a rank's loss is not known.
        samples: number of samples of all ranks.
        global_samples: number of samples in the global batch, as each rank's batch declares it;
            ``RANKS_DISAGREE`` if ranks declare different numbers.
    """

    step_ns: NDArray[np.int64] = field(default_factory=_make_empty_integers)
    loss_sum: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    samples: NDArray[np.int64] = field(default_factory=_make_empty_integers)
    global_samples: NDArray[np.int64] = field(default_factory=_make_empty_integers)

    def add(self, rank: RankSteps) -> None:
        """Add the steps of a rank; all ranks begin with the same step, some stop early."""
        num_known_steps = len(self.step_ns)
        num_steps = len(rank.step_ns)
        samples = np.array(rank.samples)
        global_samples = np.array(rank.step_samples)
        if num_steps > num_known_steps:
            self.step_ns = _extend_with_zeros(self.step_ns, num_steps)
            self.loss_sum = _extend_with_zeros(self.loss_sum, num_steps)
            self.samples = _extend_with_zeros(self.samples, num_steps)
            # No other rank has declared the samples of these steps yet.
            self.global_samples = np.concatenate(
                [self.global_samples, global_samples[num_known_steps:]]
            )
        steps = slice(0, num_steps)
        np.maximum(self.step_ns[steps], rank.step_ns, out=self.step_ns[steps])
        # The loss of a step without samples is NaN and counts as 0. The unknown loss of a step with
        # samples stays NaN, and so does the sum.
        self.loss_sum[steps] += np.where(samples > 0, np.array(rank.loss) * samples, 0.0)
        self.samples[steps] += samples
        differs = self.global_samples[steps] != global_samples
        self.global_samples[steps][differs] = RANKS_DISAGREE

    @property
    def loss(self) -> NDArray[np.float64]:
        """Return the mean loss of each step's samples."""
        # A step without samples has the sum 0, and so the mean 0.
        return self.loss_sum / np.maximum(self.samples, 1)
