"""What a step of DistilBERT takes of a rank's memory; no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.train.step_memory import Prediction, Transformer, predict_peak_bytes

if TYPE_CHECKING:
    from .data.model_files import ModelConfig
    from .recipe import DistilbertRecipe


def predict(config: ModelConfig, recipe: DistilbertRecipe, world_size: int) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a step."""
    sizes = Transformer(
        parameters=config.parameters,
        num_layers=config.n_layers,
        hidden_size=config.dim,
        num_heads=config.n_heads,
        wide=config.hidden_dim,
        vocab_size=config.vocab_size,
        tokens=recipe.micro_batch_size * recipe.seq_length,
        scores=0,
        tied_head=False,
        dropout=config.dropout > 0,
        saved_inputs=3,
        keeps_gradients=recipe.grad_accum_steps > 1 or world_size > 1,
    )
    return predict_peak_bytes(sizes, recipe)
