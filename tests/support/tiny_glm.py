"""A GLM small enough to train in a test, on one rank or on several real ones.

Apart from the tests because a spawned rank has to import it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainmark.cases.glm_superglue.case import GlmRecipe
from trainmark.cases.glm_superglue.data.examples import ChoiceSequence, Examples
from trainmark.cases.glm_superglue.job import GlmJob, build
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext

VOCAB, LENGTH = 40, 24  # ids of tokens, and the longest sequence
SAMPLES, VALIDATION = 22, 13  # of training and of the validation


class DrawnExamples(Examples):
    """Samples of random tokens with 1 to ``max_choices`` candidates.

    In training the first candidate is right, in evaluation each one by chance.
    """

    def __init__(
        self, samples: int, *, max_choices: int, seed: int, evaluation: bool = False
    ) -> None:
        # ``LENGTH``: to how many tokens sequences are padded.
        self.seq_length, self.seed, self.evaluation = LENGTH, seed, evaluation
        # Of each sample, how many candidates it has.
        self.num_choices = np.random.default_rng(seed).integers(1, max_choices + 1, samples)

    def build_sequences(self, row: int) -> list[ChoiceSequence]:
        """Return a sequence for each candidate; ids: 0 ends an answer, 1 starts one.

        A sequence is the context, tokens 2 to ``VOCAB`` - 1 with a gap that the answer fills, and
        then the answer. The model predicts each token of the answer from the one before it.
        """
        rng = np.random.default_rng([self.seed, row])
        context = rng.integers(2, VOCAB, rng.integers(5, 12))
        mask = int(rng.integers(1, len(context)))  # position of the gap in the context
        sequences = []
        for slot in range(self.num_choices[row]):
            answer = rng.integers(2, VOCAB, rng.integers(1, 5))
            block = len(answer) + 1  # the start token and the answer; the end token is a target
            ids = np.concatenate([context, [1], answer])
            # Tokens of the answer have the gap's position, and count in it by block position.
            positions = np.concatenate([np.arange(len(context)), np.full(block, mask)])
            blocks = np.concatenate([np.zeros(len(context)), np.arange(1, block + 1)])
            # Places whose outputs are compared with ``targets``: of the start token and the answer.
            rows = np.arange(len(context), len(ids))
            # In an evaluation any number of candidates may be right.
            right = bool(rng.random() < 0.4) if self.evaluation else slot == 0
            targets = np.concatenate([answer, [0]])
            # ``separator`` is where the answer begins; ``target_ids`` are the tokens to predict at
            # the places ``target_rows``; ``correct``: whether the candidate is a right answer.
            sequences.append(
                ChoiceSequence(
                    ids=ids,
                    positions=positions,
                    block_positions=blocks.astype(np.int64),
                    separator=len(context),
                    target_rows=rows,
                    target_ids=targets,
                    correct=right,
                )
            )
        return sequences


class NamedOften(Examples):
    """Contexts of 3 or 4 names, of which one, the right answer, occurs three times.

    If ``shuffled``, the name called right is drawn at random instead, so nothing can be learned.
    """

    def __init__(self, samples: int, *, seed: int, shuffled: bool = False) -> None:
        # Sequences are padded to 13 tokens. They have at most 11: a context of 4 names, 2 repeats
        # and 3 other tokens, then the answer's start and the answer.
        self.seq_length, self.seed, self.shuffled = 13, seed, shuffled
        # Of each sample, how many names may be the answer: 3 or 4.
        self.num_choices = np.random.default_rng(seed).integers(3, 5, samples)

    def build_sequences(self, row: int) -> list[ChoiceSequence]:
        """Return a sequence for each name, which is one token; the first one is the right answer.

        Ids: 0 ends a text, 1 starts an answer, 2 starts the context, 3 is the gap.
        """
        rng = np.random.default_rng([self.seed, row])
        names = rng.choice(np.arange(4, 16), self.num_choices[row], replace=False)
        # The first name occurs three times, the others once.
        context = np.concatenate([[2], rng.permutation([*names, names[0], names[0]]), [3, 0]])
        if self.shuffled:  # another name may come first, and is then called right
            names = rng.permutation(names)
        block, mask = len(context), len(context) - 2  # start of the answer, position of the gap
        # The two tokens of the answer have the gap's position, and count in it by block position.
        positions = np.concatenate([np.arange(block), [mask, mask]])
        blocks = np.concatenate([np.zeros(block, np.int64), [1, 2]])
        return [
            ChoiceSequence(
                ids=np.concatenate([context, [1, name]]),
                positions=positions,
                block_positions=blocks,
                separator=block,
                target_rows=np.array([block, block + 1]),
                target_ids=np.array([name, 0]),
                correct=slot == 0,
            )
            for slot, name in enumerate(names)
        ]


def make_recipe(**changes: Any) -> GlmRecipe:
    """Return the recipe of a small model with changes of its fields.

    ``LENGTH`` is the length of the longest sequence, ``VOCAB`` the number of tokens.
    """
    fields = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "seq_length": LENGTH,
        "vocab_size": VOCAB,
        "dropout": 0.0,
        "micro_batch_size": 8,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "lr_decay_steps": 10,
        "init": "random",
        "data": "generated",
    }
    return GlmRecipe(**{**fields, **changes})


def new_job(
    *, rank: int = 0, world_size: int = 1, train: Any = None, validation: Any = None, **changes: Any
) -> GlmJob:
    """Return the job of a rank, on ``SAMPLES`` samples for training, ``VALIDATION`` for scoring.

    Args:
        train, validation: examples; None: those of ``DrawnExamples``, with up to 5 candidates of a
            sample in training and up to 23 in validation, more than fit into a forward pass.
        changes: of fields of the recipe.
    """
    context = JobContext(
        recipe=make_recipe(**changes),
        data_dir=Path(),
        rank=rank,
        world_size=world_size,
        device=CpuDevice(threads=1),
    )
    data = SimpleNamespace(
        train=train or DrawnExamples(SAMPLES, max_choices=5, seed=3),
        validation=validation or DrawnExamples(VALIDATION, max_choices=23, seed=4, evaluation=True),
    )
    return build(context, data)


def train(job: GlmJob, epochs: int = 2) -> dict[str, Any]:
    """Take the steps of some epochs; return what they gave.

    Returns:
        ``losses`` and ``samples`` of each step; ``weights`` by name; ``quality``: the value of the
        evaluation, and of how many samples it is; ``facts`` of the job.
    """
    losses, samples = [], []
    for epoch in range(epochs):
        batches = list(job.batches(epoch))
        stream = iter(batches)
        loss = job.step(stream)
        while loss is not None:  # None: the epoch has ended
            losses.append(loss.item())
            loss = job.step(stream)
        num_samples = 0  # of the step whose micro-batches are counted
        for batch in batches:
            num_samples += batch.counts.samples
            if batch.closes_step:
                samples.append(num_samples)
                num_samples = 0
    job.check()
    quality = job.evaluate()
    weights = {name: value.detach().clone() for name, value in job.model.named_parameters()}
    return {
        "losses": losses,
        "samples": samples,
        "weights": weights,
        "quality": (quality.value, quality.samples),
        "facts": dict(job.facts()),
    }


def train_rank(rank: int, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train each of ``runs`` on two ranks: starting ranks takes longer than training."""
    return [train(new_job(rank=rank, world_size=2, **changes)) for changes in runs]
