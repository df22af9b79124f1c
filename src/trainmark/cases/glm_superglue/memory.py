"""What a step of GLM takes of a rank's memory; no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.train.step_memory import Prediction, Transformer, predict_peak_bytes

if TYPE_CHECKING:
    from .recipe import GlmRecipe


def predict(
    recipe: GlmRecipe, world_size: int, *, choices: float, tokens: float | None
) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a step.

    Args:
        choices: candidates of a sample, on average: some micro-batch has as many or more.
        tokens: of a sample's longest sequence, on average; None or 0: ``seq_length``.
    """
    sequences = int(choices * recipe.micro_batch_size)
    length = min(tokens or recipe.seq_length, recipe.seq_length)
    sizes = Transformer(
        parameters=recipe.shape.parameters,
        num_layers=recipe.num_layers,
        hidden_size=recipe.hidden_size,
        num_heads=recipe.num_heads,
        wide=4 * recipe.hidden_size,
        vocab_size=recipe.vocab_size,
        tokens=int(sequences * length),
        scores=sequences * recipe.vocab_size,  # one token of each candidate, or more
        tied_head=True,
        dropout=recipe.dropout > 0,
        checkpoint_activations=recipe.checkpoint_activations,
        keeps_gradients=recipe.grad_accum_steps > 1 or world_size > 1,
    )
    # Its head is the library's whatever ``kernels`` says.
    return predict_peak_bytes(sizes, replace(recipe, kernels="library"))
