"""The order in which samples are trained, by their numbers of candidates.

Owns an epoch's order for ``training.shards.Sharding``. What a step costs a rank follows
from its samples' candidates, and the slowest rank sets the step's time; grouped, ranks
that wait for each other get samples of like numbers. Numpy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainmark.training.shards import Sharding


def grouped_order(
    num_choices: NDArray[np.int64], sharding: Sharding, epoch: int
) -> NDArray[np.int64]:
    """Return row numbers as ``Sharding.micro_batches`` takes them, int64 (samples,).

    A group is what all ranks take in one micro-batch: neighbours in a sorted order, ties
    broken at random. Groups, and samples within one, are then shuffled; what fills no
    group is drawn first, at random, and comes last. So every sample is there once, and
    every place in the epoch is as likely for it as any other, whatever its group.

    Args:
        num_choices: candidates of each sample, int64 (samples,).
    """
    rng = np.random.default_rng([sharding.seed, epoch])
    size = sharding.micro_batch_size * sharding.world_size
    shuffled = rng.permutation(len(num_choices))
    whole = len(shuffled) // size * size
    rest, shuffled = shuffled[whole:], shuffled[:whole]
    ordered = shuffled[np.argsort(num_choices[shuffled], kind="stable")]
    groups = rng.permuted(ordered.reshape(-1, size), axis=1)[rng.permutation(whole // size)]
    return np.concatenate([_by_rank(groups, sharding), rest])


def _by_rank(groups: NDArray[np.int64], sharding: Sharding) -> NDArray[np.int64]:
    """Lay groups out as a step's rows are cut: first by rank, then by micro-batch.

    The groups of an epoch's last step may be fewer than it could hold; its cut follows
    the number of its rows, so they stay as they are.
    """
    steps = len(groups) // sharding.grad_accum_steps
    full = steps * sharding.grad_accum_steps
    cut = groups[:full].reshape(
        steps, sharding.grad_accum_steps, sharding.world_size, sharding.micro_batch_size
    )
    return np.concatenate([cut.swapaxes(1, 2).reshape(-1), groups[full:].reshape(-1)])
