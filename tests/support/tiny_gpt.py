"""A GPT small enough to train in a test, on one rank or on several real ones.

Apart from the tests because a spawned rank has to import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.distributed.tensor import DTensor

from support.real_ranks import call_on_ranks
from trainmark.cases.gpt_megatron.case import GptRecipe
from trainmark.cases.gpt_megatron.job import GptJob, build
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import Counts, JobContext

if TYPE_CHECKING:
    import torch

VOCAB, SEQUENCE, SAMPLES = 100, 12, 20  # a table of 128 rows on one rank, of 256 on two


@dataclass
class Epoch:
    """Random tokens in the form of ``sampling.EpochIndex``."""

    sample_order: Any  # numbers of the samples in the epoch's order

    def __len__(self) -> int:
        return len(self.sample_order)

    def batch(self, numbers: Any) -> Any:
        """Return the tokens of the samples with these numbers, and counts without padding."""
        tokens = len(numbers) * SEQUENCE
        return self.gather_tokens(numbers), Counts(
            samples=len(numbers), sequences=len(numbers), tokens=tokens, tokens_padded=tokens
        )

    def gather_tokens(self, numbers: Any) -> Any:
        """Return the samples with these numbers, (samples, ``SEQUENCE`` + 1): inputs and targets.

        All tokens of the epoch are drawn anew, with the same seed and so the same result each time.
        """
        rows = np.random.default_rng(5).integers(0, VOCAB, (len(self.sample_order), SEQUENCE + 1))
        return rows[np.asarray(numbers)]


@dataclass
class Split:
    """A data set of random tokens in the form of ``sampling.Samples``, of which epochs are made."""

    samples: int  # number of sequences

    def __len__(self) -> int:
        return self.samples

    def build_epoch(self, number: int) -> Epoch:
        """Return the epoch with this number, in an order that is drawn by it."""
        return Epoch(np.random.default_rng(number).permutation(self.samples))

    def build_unshuffled_epoch(self) -> Epoch:
        """Return all samples in their own order, as a validation reads them."""
        return Epoch(np.arange(self.samples))


def make_recipe(**changes: Any) -> GptRecipe:
    """Return the recipe of a small model with changes of its fields.

    ``SEQUENCE`` is the length of all sequences, ``VOCAB`` the number of tokens.
    """
    fields = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "seq_length": SEQUENCE,
        "vocab_size": VOCAB,
        "dropout": 0.0,
        "micro_batch_size": 8,
        "learning_rate": 1e-2,
        "lr_decay_steps": 10,
        "lr_warmup_fraction": 0.1,
        "min_learning_rate": 1e-3,
        "weight_decay": 0.01,
        "data": "generated",
    }
    return GptRecipe(**{**fields, **changes})


def new_job(*, rank: int = 0, world_size: int = 1, **changes: Any) -> GptJob:
    """Return the job of a rank on random data; ``changes``: of fields of the recipe.

    ``SAMPLES``, 20, are trained in an epoch. ``Split`` makes random tokens of so many samples.
    """
    context = JobContext(
        recipe=make_recipe(**changes),
        data_dir=Path(),
        rank=rank,
        world_size=world_size,
        device=CpuDevice(threads=1),
    )
    # Seven samples for validation are fewer than a usual micro-batch.
    return build(context, SimpleNamespace(train=Split(SAMPLES), validation=Split(7)))


def gather_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, whole also if it is sharded."""
    plain = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return plain.detach().clone()


def train(job: GptJob) -> dict[str, Any]:
    """Take the steps of an epoch; return what they gave.

    Returns:
        ``losses`` of each step; ``samples`` of each batch of this rank; ``weights`` by name, whole;
        ``quality``: the value of the evaluation, and of how many samples it is; ``facts`` of the
        job.
    """
    losses, samples = [], []

    def count(source: Any) -> Any:
        """Yield the batches, and keep how many samples of this rank each has."""
        for batch in source:
            samples.append(batch.counts.samples)
            yield batch

    stream = count(job.batches(0))
    loss = job.step(stream)
    while loss is not None:  # None: the epoch has ended
        losses.append(loss.item())
        loss = job.step(stream)
    job.check()
    quality = job.evaluate()
    weights = {name: gather_whole(value) for name, value in job.model.named_parameters()}
    return {
        "losses": losses,
        "samples": samples,
        "weights": weights,
        "quality": (quality.value, quality.samples),
        "facts": dict(job.facts()),
    }


def train_rank(rank: int, new_job: Any, ranks: int, spreads: list[dict[str, Any]]) -> list[Any]:
    """Train a job for each of ``spreads``, which are changes of the recipe, on one of ``ranks``."""
    return [train(new_job(rank=rank, world_size=ranks, **fields)) for fields in spreads]


def train_on_ranks(
    new_job: Any, place: Path, ranks: int, spreads: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], ...]]:
    """Train a job for each of ``spreads`` on real ranks; return, by spread, all ranks' results.

    Args:
        new_job: makes a rank's job from ``rank``, ``world_size`` and changes of the recipe.
        place: an empty folder, by which the ranks meet.
        ranks: how many processes train together.
        spreads: changes of the recipe that spread the training over ranks.
    """
    return list(zip(*call_on_ranks(ranks, place, train_rank, new_job, ranks, spreads), strict=True))
