"""GLM's training: scores, loss and accuracy of candidates, its optimizer, and several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from support import tiny_glm
from support.real_ranks import call_on_ranks
from trainmark.cases import load
from trainmark.cases.glm_superglue.case import GlmRecipe
from trainmark.cases.glm_superglue.job import ScoreLayout, SequenceTensors, compute_lr_factor
from trainmark.protocols import Counts

pytestmark = pytest.mark.usefixtures("one_thread")


def score_candidates_plainly(model: Any, examples: Any, row: int) -> list[float]:
    """Return the score of each candidate, computed alone and without padding.

    Args:
        examples: the samples; ``build_sequences`` returns a sequence for each candidate of one.
        row: number of the sample.
    """
    scores = []
    for item in examples.build_sequences(row):
        # The first three fields of a sequence, each as a batch of one.
        ids, positions, blocks = (torch.from_numpy(x)[None] for x in item[:3])
        hidden = model.compute_hidden_states(ids, positions, blocks, torch.tensor([item.separator]))
        logits = F.linear(hidden[0], model.word_embeddings.weight).log_softmax(1)
        scores.append(logits[item.target_rows, item.target_ids].sum().item())
    return scores


def test_scores_are_sums_and_a_missing_candidate_is_never_chosen() -> None:
    """A candidate's score is the sum of the log-probabilities of its target tokens.

    The one with the highest score is chosen. In a table of samples and candidates a place without a
    candidate has minus infinity. A sample is right if its chosen candidate is marked in
    ``correct``.
    """
    # Six sequences are the candidates of three samples, which have 2, 1 and 3 of them.
    layout = ScoreLayout(
        sample_of_sequence=torch.tensor([0, 0, 1, 2, 2, 2]),  # the sample of each sequence
        choice_of_sequence=torch.tensor([0, 1, 0, 0, 1, 2]),  # which candidate of its sample it is
        num_samples=3,
        max_choices=3,
    )
    # The second tensor: the sequence of each of the eight targets, whose log-probabilities follow.
    sequences = SequenceTensors((torch.zeros(6, 4),), torch.tensor([0, 0, 1, 2, 3, 4, 4, 5]))
    scores = sequences.sum_scores(torch.tensor([-1.0, -2, -1, -50, -4, -1, -1, -3]))
    assert scores.tolist() == [-3, -1, -50, -4, -2, -3]
    none = -float("inf")
    assert layout.arrange_scores(scores).tolist() == [
        [-3, -1, none],
        [-50, none, none],
        [-4, -2, -3],
    ]
    # Cross-entropy of the first candidate of each sample; with a single one it is 0.
    expected = np.log1p(np.exp(2)) + 0.0 + np.log1p(np.exp(2) + np.exp(1))
    assert float(layout.compute_loss_sum(scores)) == pytest.approx(expected, rel=1e-6)
    # Chosen are the candidates 1 of sample 0, 0 of sample 1, and 1 of sample 2.
    for correct, right in (
        ([0, 1, 1, 0, 1, 0], 3),
        ([1, 0, 1, 0, 1, 1], 2),
        ([1, 0, 1, 1, 0, 1], 1),
        ([1, 0, 0, 1, 0, 0], 0),
    ):
        assert int(layout.count_right(scores, torch.tensor(correct, dtype=torch.bool))) == right


@pytest.mark.parametrize("micro_batch_size", [1, 3])  # 10 and 30 sequences a forward pass
@pytest.mark.parametrize("trim", [False, True])
def test_accuracy_takes_the_best_of_all_candidates(micro_batch_size: int, trim: bool) -> None:
    """``evaluate`` gives the accuracy that scoring each candidate alone gives.

    The small job has 13 validation samples (``VALIDATION``) with up to 23 candidates.
    ``trim_padding`` cuts padding that no sequence of a batch needs.
    """
    job = tiny_glm.new_job(micro_batch_size=micro_batch_size, trim_padding=trim)
    tiny_glm.train(job, epochs=1)
    examples = job.data.validation
    assert examples.num_choices.max() > 20  # more than fit into a forward pass of 10
    right = 0
    job.model.eval()
    with torch.no_grad():
        for row in range(len(examples)):
            best = int(np.argmax(score_candidates_plainly(job.model, examples, row)))
            right += examples.build_sequences(row)[best].correct
    quality = job.evaluate()
    assert 0 < right < len(examples)
    assert (quality.value, quality.samples) == (right / tiny_glm.VALIDATION, tiny_glm.VALIDATION)
    assert quality.detail == {"correct": float(right)}
    assert job.model.training  # ``evaluate`` returns to training mode


def test_accumulation_trimming_and_checkpointing_train_the_same() -> None:
    """Three ways to save memory or time must not change what is trained.

    The small model trains two epochs of 22 samples in steps of 8. A step may be accumulated from
    four micro-batches of 2, have less padding, or compute activations again in the backward pass.
    """
    reference_training = tiny_glm.train(tiny_glm.new_job())
    for changes in (
        {"micro_batch_size": 2, "grad_accum_steps": 4},
        {"trim_padding": True},
        {"checkpoint_activations": True},
    ):
        training = tiny_glm.train(tiny_glm.new_job(**changes))
        assert training["losses"] == pytest.approx(reference_training["losses"], rel=1e-4), changes
        # Samples of each step: 22 are 8, 8 and the remaining 6, in each of two epochs.
        assert training["samples"] == reference_training["samples"] == [8, 8, 6] * 2
        assert training["quality"] == reference_training["quality"]


def test_grouping_batches_samples_of_similar_size() -> None:
    """With ``group_by_choices`` a batch of two samples has more similar numbers of candidates."""
    spread = {}
    for grouped in (False, True):
        job = tiny_glm.new_job(group_by_choices=grouped, micro_batch_size=2)
        # Number of candidates of each sample of a batch.
        counts = [
            np.bincount(batch.tensors[1].sample_of_sequence.numpy()) for batch in job.batches(0)
        ]
        # Differences of the largest and the smallest number.
        spread[grouped] = sum(np.ptp(count) for count in counts)
        assert job.facts()["group_by_choices"] is grouped
    assert spread[True] < spread[False]


def test_learning_rate_rises_and_falls_linearly() -> None:
    """The factor by which the learning rate is multiplied after so many finished steps."""
    standard = load("glm_superglue").recipes["standard-1x8"]  # the published recipe for 8 ranks
    # The start, two steps of the warm-up, the first after it, the middle of the fall, its end, and
    # any later one.
    steps = (0, 216, 433, 434, 2386, 4338, 10_000)
    # Warm-up is 10% of 4,338 steps: 433.8; then the factor falls linearly from 1 to the floor of
    # 0.1, that is, by 0.9.
    middle, falling = (1 - 0.9 * (step - 433.8) / (4338 - 433.8) for step in (2386, 434))
    factors = [compute_lr_factor(standard, step) for step in steps]
    assert factors == pytest.approx([0.0, 216 / 433.8, 433 / 433.8, falling, middle, 0.1, 0.1])
    published = load("glm_superglue").recipes
    for world in ("1x1", "1x8", "2x8"):  # all published world sizes share one schedule
        assert [
            compute_lr_factor(published[f"standard-{world}"], step) for step in steps
        ] == factors
    # Without a warm-up the first step has the full rate; with a floor of 1 it never falls.
    assert compute_lr_factor(GlmRecipe(lr_warmup_fraction=0.0), 0) == 1.0
    assert compute_lr_factor(GlmRecipe(lr_floor=1.0), 4000) == 1.0


def test_the_optimizer_is_the_published_one() -> None:
    """AdamW decays all weights but those of norms, and no bias; 0.1 is the recipe's decay."""
    job = tiny_glm.new_job(weight_decay=0.1)
    optimizer = job.stepper.optimizer
    # Parameters of the first group are decayed, those of the second are not.
    names = {id(value): name for name, value in job.model.named_parameters()}
    decayed, plain = (
        {names[id(parameter)] for parameter in group["params"]} for group in optimizer.param_groups
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert all(name.endswith(".bias") or "layernorm" in name for name in plain)
    assert all(name.endswith(".weight") and "layernorm" not in name for name in decayed)
    assert len(decayed) + len(plain) == len(names)
    assert {(g["betas"], g["eps"]) for g in optimizer.param_groups} == {((0.9, 0.999), 1e-8)}


def test_flop_formula_matches_a_count_by_hand() -> None:
    """The FLOPs of a small model in a training step follow from its sizes and its tokens."""
    job = tiny_glm.new_job(hidden_size=64, num_heads=2)
    batch = next(job.batches(0))
    flops = job.model_flops(batch.counts)
    # For each token: 12 L D^2 weights with 6 FLOPs each, and 12 L D S for attention; L = 2
    # layers, D = 64, and sequences are padded to S = 24 tokens.
    sequences = batch.counts.sequences
    by_hand = (6 * 12 * 2 * 64**2 + 12 * 2 * 64 * 24) * sequences * 24
    assert flops == by_hand
    assert job.model_flops(Counts()) == 0.0


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_answer_in_the_passage_is_learned_and_a_shuffled_one_is_not(shuffled: bool) -> None:
    """The name that occurs most often is right; ``shuffled``: a random one is, as a control.

    Only the samples for training are shuffled. A model that learns nothing from them scores by
    chance on validation samples, in which the answer can be found.
    """
    # ``NamedOften`` has sequences of 13 tokens, with ids below 16; 1,600 samples are 100 steps an
    # epoch, 200 in the two epochs of ``train``. With the other sizes a CPU learns it in seconds.
    train = tiny_glm.NamedOften(1_600, seed=5, shuffled=shuffled)
    validation = tiny_glm.NamedOften(300, seed=6)
    job = tiny_glm.new_job(
        train=train,
        validation=validation,
        vocab_size=16,
        seq_length=13,
        num_layers=1,
        micro_batch_size=16,
        learning_rate=5e-3,
        lr_decay_steps=200,
        weight_decay=0.0,
    )
    accuracy, samples = tiny_glm.train(job)["quality"]
    chance = float((1 / validation.num_choices).mean())
    # The standard error of the accuracy.
    noise = (chance * (1 - chance) / samples) ** 0.5
    if shuffled:
        assert abs(accuracy - chance) < 4 * noise
    else:
        # With seeds 5, 6 and 7 of the samples 0.89 to 0.93 were reached on a CPU. A sample has 3 or
        # 4 names, so chance is about 0.29.
        assert accuracy > 0.75


RUNS: list[dict[str, Any]] = [
    {"micro_batch_size": 4},
    {"micro_batch_size": 2, "grad_accum_steps": 2},  # the last step's 6 samples: uneven parts
    {"micro_batch_size": 7, "grad_accum_steps": 3},  # one rank takes one micro-batch more
]


@pytest.fixture(scope="module")
def results_of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Return for each run (a training with the changes in ``RUNS``) the results of two ranks."""
    # ``train_rank`` trains each run on one rank and returns its results as a list in that order, so
    # ``ranks`` has such a list for each rank; these are regrouped by run.
    ranks = call_on_ranks(2, tmp_path_factory.mktemp("ranks"), tiny_glm.train_rank, RUNS)
    return [list(pair) for pair in zip(*ranks, strict=True)]


@pytest.mark.parametrize("run", range(len(RUNS)))
def test_two_ranks_train_as_one_rank(results_of_two_ranks: Any, run: int) -> None:
    """``RUNS`` are changes of the small recipe: other micro-batches; ``run`` is the index of one.

    The fixture has trained each run on two real ranks, and returns the results of both: samples and
    loss of each step, the score of the validation (``quality``) and the trained weights.
    """
    changes = RUNS[run]
    # One rank with twice the micro-batch has the same steps.
    single_rank = tiny_glm.train(
        tiny_glm.new_job(**{**changes, "micro_batch_size": 2 * changes["micro_batch_size"]})
    )
    training = results_of_two_ranks[run]
    samples = np.array([result["samples"] for result in training])
    assert samples.sum(0).tolist() == single_rank["samples"]
    losses = np.array([result["losses"] for result in training])
    # The loss of a step over both ranks; a rank's loss is the mean of its samples.
    means = (losses * samples).sum(0) / samples.sum(0)
    assert means == pytest.approx(np.array(single_rank["losses"]), rel=1e-4)
    for item in training:
        assert item["quality"] == single_rank["quality"]  # every validation sample scored once
        for name, value in single_rank["weights"].items():
            # Adam divides by the gradient's size, so that the rounding of a gradient near 0 changes
            # a weight by part of the learning rate, which is 0.01.
            torch.testing.assert_close(
                item["weights"][name], value, rtol=0, atol=2e-3, msg=f"{changes} {name}"
            )
