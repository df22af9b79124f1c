"""The two pairs in a data folder, and the memory that training takes. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data.c4_pairs import check, generate, load
from trainmark.recipe import AUTOCAST
from trainmark.train.step_memory import (
    ADAM_MOMENTS,
    FULL,
    HALF,
    SCORES_AT_ONCE,
    Prediction,
    refuse_too_little,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import RankMemory

    from .case import GptOssRecipe

__all__ = ["check", "check_fit", "generate", "load", "predict"]


def predict(recipe: GptOssRecipe, world_size: int) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a step; a lower bound.

    Experts are taken to get equal loads: a busier rank needs more. The peak is where the forward
    pass ends, in the backward pass of the last block, or where that pass ends with all gradients.
    """
    number = HALF if recipe.precision in AUTOCAST else FULL  # in matmuls
    layers, tokens = recipe.num_layers, recipe.micro_batch_size * recipe.seq_length
    shards = world_size if recipe.fsdp or recipe.expert_parallel > 1 else 1
    table = recipe.vocab_size * recipe.hidden_size
    of_block = (recipe.parameters - 2 * table) // layers
    of_experts = recipe.num_experts * recipe.expert_weights
    held = recipe.parameters // shards
    gathered = 0
    if shards > 1:  # by FSDP2: the root's tables, and two blocks
        shared = recipe.expert_parallel
        experts = 0 if shared == world_size else of_experts // shared
        gathered = 2 * table + min(2, layers) * (of_block - of_experts + experts)
    copies = (of_block * HALF) // recipe.expert_parallel if number == HALF else 0  # by autocast
    stream, block, experts = _activations(recipe, tokens, number)
    temporary = experts // 2 + copies  # gradients within an expert, and one of a matrix
    saved = block
    if recipe.checkpoint_activations == "full":
        temporary += block - stream
        saved = stream
    elif recipe.checkpoint_activations == "selective":
        saved = stream + tokens * number * recipe.head_dim * recipe.num_heads
        temporary += block - saved
    scores = tokens * recipe.vocab_size
    if recipe.kernels == "library":  # log-probabilities, their gradient and that of the scores
        head = 2 * stream + 3 * scores * FULL
    else:
        head = 2 * stream + (table + min(scores, SCORES_AT_ONCE)) * FULL
    gradients = held * FULL
    early = gradients if recipe.grad_accum_steps > 1 else 0
    peaks = (
        (early, layers * saved + head),
        (max(early, table * FULL // shards), layers * saved + temporary),
        (gradients, stream),
    )
    peak_gradients, activations = max(peaks, key=sum)
    return Prediction(
        weights=(held + gathered) * FULL,
        optimizer=held * FULL * ADAM_MOMENTS,
        gradients=peak_gradients,
        activations=activations,
    )


def _activations(recipe: GptOssRecipe, tokens: int, number: int) -> tuple[int, int, int]:
    """Return the bytes of the residual stream, of what a block saves, and of its experts' part."""
    hidden, width = recipe.hidden_size, recipe.head_dim * recipe.num_heads
    kept = recipe.head_dim * recipe.num_kv_heads
    stream = tokens * hidden * FULL
    # Two norms save their input and result; attention query, keys, values and result.
    attention = 4 * stream + tokens * number * (hidden + 2 * width + 2 * kept)
    # An expert saves its rows, both halves of its first product, what its gate makes of them, and
    # its result, which is weighted.
    rows = tokens * recipe.top_k
    experts = rows * number * (2 * hidden + 7 * recipe.ffn_size)
    return stream, attention + experts, experts


def check_fit(folder: Path, recipe: GptOssRecipe, world_size: int, memory: RankMemory) -> int:
    """Refuse a recipe that needs more than ``memory``; see ``step_memory.refuse_too_little``."""
    del folder  # the recipe has all sizes
    return refuse_too_little(lambda other: predict(other, world_size), recipe, memory)
