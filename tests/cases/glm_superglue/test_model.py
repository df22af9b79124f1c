"""GLM computes as the original does, and its head only for targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.glm_plain import PlainGlm

from trainmark.cases.glm_superglue.case import GlmShape
from trainmark.cases.glm_superglue.model import Glm, build_model

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = GlmShape(num_layers=3, hidden_size=32, num_heads=4, vocab_size=97, max_positions=160)


def make_sequences(rows: int, length: int, *, seed: int = 0) -> list[torch.Tensor]:
    """Return random token ids, positions and block positions, each of shape (rows, length).

    Both kinds of positions go from 0 to ``max_positions`` of ``SHAPE``, the small model.
    """
    generator = torch.Generator().manual_seed(seed)
    upper_bounds = [SHAPE.vocab_size, SHAPE.max_positions + 1, SHAPE.max_positions + 1]
    return [torch.randint(0, bound, (rows, length), generator=generator) for bound in upper_bounds]


def make_models(**switches: Any) -> tuple[Glm, PlainGlm]:
    """Return our model and the plain reference with the same nonzero weights.

    Args:
        switches: arguments of our model, such as ``dropout``; the reference never drops anything.
    """
    our_model, plain = build_model(SHAPE, seed=4, **switches), PlainGlm(SHAPE, dropout=0.0).train()
    with torch.no_grad():
        for parameter in our_model.parameters():
            # Biases and norms begin as constants, which would hide errors.
            parameter.add_(0.1 * torch.randn_like(parameter))
    plain.load_state_dict(our_model.state_dict())  # also raises if a name or a shape differs
    return our_model, plain


def assert_near(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_parameter_counts_match_the_model() -> None:
    """A shape has the sizes of a model, and computes from them how many parameters it has."""
    # ``SHAPE`` is small, so that the model can be built and its parameters counted.
    assert sum(parameter.numel() for parameter in Glm(SHAPE).parameters()) == SHAPE.parameters
    # The published model: 24 layers of width 1,024, and 30,592 tokens. The first number counts all
    # weights, biases and norms; the others are the weights of matrix products: 12 x 1,024^2 in a
    # layer and 30,592 x 1,024 in the head.
    large = GlmShape()
    assert large.parameters == 334_688_256
    assert (large.layer_matmul_weights, large.head_matmul_weights) == (12_582_912, 31_326_208)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("length", [20, 150])
def test_logits_loss_and_gradients_equal_the_originals(length: int, checkpointed: bool) -> None:
    """Our model against the original, written out plainly (``PlainGlm``), with equal weights.

    Ours computes only the log-probabilities of targets, given as flat positions; the original has a
    mask of all tokens. ``checkpointed``: activations are computed again in the backward pass.
    """
    our_model, plain = make_models(dropout=0.0, checkpoint_activations=checkpointed)
    inputs = make_sequences(rows=3, length=length)
    # Tokens before the separator see each other: none, half, or all of a sequence.
    separators = torch.tensor([0, length // 2, length])
    hidden = our_model.compute_hidden_states(*inputs, separators)
    logits = hidden @ our_model.word_embeddings.weight.t()
    assert_near(logits, plain.logits(*inputs, separators))

    generator = torch.Generator().manual_seed(1)
    # Random targets: ours as a list of flat positions, the original's as a mask of all tokens.
    counted = (torch.rand(3, length, generator=generator) < 0.3).float()
    targets = torch.randint(0, SHAPE.vocab_size, (3, length), generator=generator)
    target_positions = counted.flatten().nonzero().squeeze(1)
    log_probs = our_model.compute_target_log_probs(
        *inputs, separators, target_positions, targets.flatten()[target_positions]
    )
    sums = torch.zeros(3).index_add(0, target_positions // length, log_probs)
    expected = plain(*inputs, separators, targets, counted)
    assert_near(sums, expected)
    # The three sequences as candidates of one sample, of which the second is right.
    right = torch.tensor([1])
    losses = [torch.nn.functional.cross_entropy(item[None], right) for item in (sums, expected)]
    assert_near(*losses)
    for loss in losses:
        loss.backward()
    plain_gradients = {name: item.grad for name, item in plain.named_parameters()}
    # Three tables of embeddings, the layers (weight and bias of two norms and four linear layers,
    # which are 12 tensors), and the last norm's weight and bias.
    assert len(plain_gradients) == 3 + 12 * SHAPE.num_layers + 2
    for name, parameter in our_model.named_parameters():
        assert parameter.grad is not None
        assert_near(parameter.grad, plain_gradients[name])


def compute_gradients(model: Glm) -> list[torch.Tensor]:
    """Return log-probabilities of two targets and all gradients, with a fixed seed for dropout."""
    inputs = make_sequences(rows=2, length=150)
    torch.manual_seed(8)
    # One target in each of the two sequences, at position 140, behind the separators (11 and 139).
    # Flat positions count through all sequences of 150 tokens: 140 and 150 + 140. 3 and 5 are the
    # target tokens, any two.
    target_positions = torch.tensor([140, 290])
    log_probs = model(*inputs, torch.tensor([11, 139]), target_positions, torch.tensor([3, 5]))
    return [log_probs.detach(), *torch.autograd.grad(log_probs.sum(), list(model.parameters()))]


def test_recomputed_layer_repeats_its_dropout_mask() -> None:
    """With ``checkpoint_activations`` the backward pass computes each layer a second time.

    It must drop the same numbers as before, or gradients would differ. ``compute_gradients``
    returns log-probabilities and all gradients, from a fixed seed. ``make_models`` returns our
    model and the original's, with the same weights in each call, as their seed is fixed as well.
    """
    first_run, recomputed, repeated = (
        compute_gradients(make_models(dropout=0.3, checkpoint_activations=switch)[0])
        for switch in (False, True, False)
    )
    for first, second, third in zip(first_run, recomputed, repeated, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        torch.testing.assert_close(first, third, rtol=0, atol=0)  # the seed decides
    nothing_dropped = compute_gradients(make_models(dropout=0.0)[0])
    # Dropout did have an effect.
    assert not torch.allclose(first_run[0], nothing_dropped[0], rtol=1e-3)
