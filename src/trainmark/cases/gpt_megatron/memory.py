"""What a step of the GPT takes of a rank's memory; no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.train.step_memory import Prediction, Transformer, predict_peak_bytes

if TYPE_CHECKING:
    from .recipe import GptRecipe


def predict(recipe: GptRecipe, world_size: int) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a step."""
    hidden, layers, tokens = (
        recipe.hidden_size, recipe.num_layers, recipe.micro_batch_size * recipe.seq_length
    )  # fmt: skip
    rows = recipe.padded_vocab_size
    replicas = world_size // recipe.tensor_parallel
    block = 12 * hidden**2 + 13 * hidden  # biases 3 + 1 + 4 + 1, norms 4
    sizes = Transformer(
        parameters=(rows + recipe.seq_length + 2) * hidden + layers * block,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=recipe.num_heads,
        wide=4 * hidden,
        vocab_size=rows,
        tokens=tokens,
        scores=tokens * recipe.vocab_size,
        tied_head=True,
        dropout=recipe.dropout > 0,
        checkpoint_activations=recipe.checkpoint_activations,
        tensor_parallel=recipe.tensor_parallel,
        shards=replicas if recipe.fsdp else 1,
        keeps_gradients=recipe.grad_accum_steps > 1 or (replicas > 1 and not recipe.fsdp),
    )
    return predict_peak_bytes(sizes, recipe)
