"""The two pairs in a data folder, and the memory that training takes. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.data.c4_pairs import check, generate, load
from trainmark.recipe import AUTOCAST
from trainmark.train.step_memory import (
    ADAM_MOMENTS,
    FULL,
    HALF,
    SCORES_AT_ONCE,
    Prediction,
    cached_scores,
    make_fit_check,
)

if TYPE_CHECKING:
    from .case import GptOssRecipe

__all__ = ["check", "check_fit", "generate", "load", "predict"]


@dataclass(frozen=True, slots=True)
class _BlockBytes:
    """Bytes of a block's activations on a rank.

    Args:
        stream: the residual stream.
        kept: what is saved until the backward pass.
        whole: what is saved while the block itself is computed, or computed again.
        temporary: most of what its experts need beside that.
    """

    stream: int
    kept: int
    whole: int
    temporary: int


def predict(recipe: GptOssRecipe, world_size: int) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a step.

    Experts are taken to get equal loads: a busier rank needs more. The peak is where the forward
    pass ends, or in the backward pass of the last block, or in that of the first one, with all
    gradients.
    """
    layers = recipe.num_layers
    shards = world_size if recipe.fsdp or recipe.expert_parallel > 1 else 1
    table = recipe.vocab_size * recipe.hidden_size * FULL
    of_block = (recipe.parameters * FULL - 2 * table) // layers
    of_experts = recipe.num_experts * recipe.expert_weights * FULL
    held = recipe.parameters * FULL // shards
    gathered = 0
    if shards > 1:  # by FSDP2: the root's tables, and two blocks
        shared = recipe.expert_parallel
        experts = 0 if shared == world_size else of_experts // shared
        gathered = 2 * table + min(2, layers) * (of_block - of_experts + experts)
    copies = 0  # of a block's weights, by autocast
    if recipe.precision in AUTOCAST:
        copies = of_block * HALF // FULL // recipe.expert_parallel
    block = _predict_block(recipe, copies)
    early = held if recipe.grad_accum_steps > 1 else 0
    # The head's gradient is ready first; FSDP2 reduces it last.
    late = max(early, held - table) if shards == 1 else held + table
    in_block = block.whole + block.temporary + block.stream
    peaks = (
        (early, layers * block.kept + _predict_head_bytes(recipe, block.stream)),
        (max(early, table), (layers - 1) * block.kept + in_block),
        (late, in_block),
        (held, block.stream),
    )
    gradients, activations = max(peaks, key=sum)
    cached = 2 * gathered  # in streams of their own, which no other stream uses
    if shards > 1:
        cached += 2 * table  # gradients of both tables in one piece, to be reduced
    if recipe.checkpoint_activations != "none":
        cached += (block.whole + block.temporary) // 2  # holes of blocks computed again
    if recipe.kernels == "library" and shards == 1:
        cached += cached_scores(recipe.micro_batch_size * recipe.seq_length * recipe.vocab_size)
    return Prediction(
        weights=held + gathered,
        optimizer=held * ADAM_MOMENTS,
        gradients=gradients,
        activations=activations,
        cached=cached,
    )


def _predict_head_bytes(recipe: GptOssRecipe, stream: int) -> int:
    """Return the bytes that the head needs, with what it and the last norm save."""
    scores = recipe.micro_batch_size * recipe.seq_length * recipe.vocab_size
    if recipe.kernels == "library":  # log-probabilities, their gradient and that of the scores
        return 2 * stream + 3 * scores * FULL
    table = recipe.vocab_size * recipe.hidden_size
    return 2 * stream + (table + min(scores, SCORES_AT_ONCE)) * FULL


def _predict_block(recipe: GptOssRecipe, copies: int) -> _BlockBytes:
    """Return the bytes of a block's activations; of those with a sliding window, which need more.

    Autocast makes a copy of a layer's input for each of its matrices.

    Args:
        copies: bytes of the copies of a block's weights.
    """
    is_half = recipe.precision in AUTOCAST
    number = HALF if is_half else FULL  # in matmuls
    tokens = recipe.micro_batch_size * recipe.seq_length
    hidden = tokens * recipe.hidden_size
    stream = hidden * FULL
    result = tokens * number * recipe.head_dim * recipe.num_heads
    inputs = 5 * hidden * HALF if is_half else stream  # query, key, value, router, rows
    # A window's queries attend to its keys and to those of the window before.
    attention = 4 * stream + inputs + result + (2 + 2 * 2) * result
    # Rows of experts: both halves of the first product, five numbers of the gate, the result. If
    # ranks share experts: rows in the order they are sent in, received in and multiplied in.
    rows = tokens * recipe.top_k * number
    orders = 3 if recipe.expert_parallel > 1 else 1
    experts = rows * ((orders + 1) * recipe.hidden_size + 7 * recipe.ffn_size)
    whole = attention + experts + copies
    kept = {"none": whole, "selective": stream + result, "full": stream}
    # The gradient of the result, the product without biases, and biases by row.
    temporary = 3 * rows * recipe.hidden_size
    return _BlockBytes(stream, kept[recipe.checkpoint_activations], whole, temporary)


check_fit = make_fit_check(predict)
