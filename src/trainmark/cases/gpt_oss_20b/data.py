"""The two pairs of token files in a data folder, and the memory of a step. No torch."""

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
    estimate_cached_scores,
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
        kept: saved until the backward pass.
        whole: saved while the block is computed or recomputed.
        temporary: maximum of the temporary tensors of its experts.
    """

    stream: int
    kept: int
    whole: int
    temporary: int


def predict(recipe: GptOssRecipe, world_size: int) -> Prediction:
    """Return the predicted peak memory of one rank of ``world_size`` in a step.

    Equal loads of the experts are assumed; a busier rank needs more. The peak is at the end of the
    forward pass, or in the backward pass of the last block, or in that of the first block, when all
    gradients exist.
    """
    layers = recipe.num_layers
    shards = world_size if recipe.fsdp or recipe.expert_parallel > 1 else 1
    table = recipe.vocab_size * recipe.hidden_size * FULL
    block_bytes = (recipe.parameters * FULL - 2 * table) // layers
    expert_bytes = recipe.num_experts * recipe.expert_weights * FULL
    sharded_weights = recipe.parameters * FULL // shards
    gathered = 0
    if shards > 1:  # FSDP2 gathers the root's tables, and two blocks
        expert_ranks = recipe.expert_parallel
        gathered_experts = 0 if expert_ranks == world_size else expert_bytes // expert_ranks
        gathered_block = block_bytes - expert_bytes + gathered_experts
        gathered = 2 * table + min(2, layers) * gathered_block
    weight_copies = 0  # of a block, made by autocast
    if recipe.precision in AUTOCAST:
        weight_copies = block_bytes * HALF // FULL // recipe.expert_parallel
    block = _predict_block(recipe, weight_copies)
    # Gradients that exist in the forward pass, and in the backward pass of the first block. The
    # head's gradient is computed first; FSDP2 reduces it last.
    early_gradients = sharded_weights if recipe.grad_accum_steps > 1 else 0
    late_gradients = sharded_weights + table
    if shards == 1:
        late_gradients = max(early_gradients, sharded_weights - table)
    in_block = block.whole + block.temporary + block.stream
    peaks = (
        (early_gradients, layers * block.kept + _predict_head_bytes(recipe, block.stream)),
        (max(early_gradients, table), (layers - 1) * block.kept + in_block),
        (late_gradients, in_block),
        (sharded_weights, block.stream),
    )
    gradients, activations = max(peaks, key=sum)
    cached = 2 * gathered  # FSDP2 gathers in its own streams, whose memory no other stream uses
    if shards > 1:
        cached += 2 * table  # gradients of both tables, in one buffer for the reduction
    if recipe.checkpoint_activations != "none":
        cached += (block.whole + block.temporary) // 2  # fragmentation by recomputed blocks
    if recipe.kernels == "library" and shards == 1:
        cached += estimate_cached_scores(
            recipe.micro_batch_size * recipe.seq_length * recipe.vocab_size
        )
    return Prediction(
        weights=sharded_weights + gathered,
        optimizer=sharded_weights * ADAM_MOMENTS,
        gradients=gradients,
        activations=activations,
        cached=cached,
    )


def _predict_head_bytes(recipe: GptOssRecipe, stream: int) -> int:
    """Return the bytes of the head's temporary tensors, and of those it and the last norm save."""
    scores = recipe.micro_batch_size * recipe.seq_length * recipe.vocab_size
    if recipe.kernels == "library":  # log-probabilities, their gradient and that of the scores
        return 2 * stream + 3 * scores * FULL
    table = recipe.vocab_size * recipe.hidden_size
    return 2 * stream + (table + min(scores, SCORES_AT_ONCE)) * FULL


def _predict_block(recipe: GptOssRecipe, copies: int) -> _BlockBytes:
    """Return the bytes of a block's activations, with a sliding window, which needs more memory.

    Autocast copies a layer's input for each of its matrices.

    Args:
        copies: bytes of autocast's copies of a block's weights.
    """
    is_half = recipe.precision in AUTOCAST
    number = HALF if is_half else FULL  # bytes of a number in matmuls
    tokens = recipe.micro_batch_size * recipe.seq_length
    hidden = tokens * recipe.hidden_size
    stream = hidden * FULL
    result = tokens * number * recipe.head_dim * recipe.num_heads
    inputs = 5 * hidden * HALF if is_half else stream  # of query, key, value, router and experts
    # The queries of a window attend to its keys and to those of the window before.
    attention = 4 * stream + inputs + result + (2 + 2 * 2) * result
    # Of the experts' rows: both halves of the first product, five intermediates of the gate, the
    # result. If ranks share experts, rows exist in the orders of sending, receiving and computing.
    rows = tokens * recipe.top_k * number
    orders = 3 if recipe.expert_parallel > 1 else 1
    experts = rows * ((orders + 1) * recipe.hidden_size + 7 * recipe.ffn_size)
    whole = attention + experts + copies
    kept = {"none": whole, "selective": stream + result, "full": stream}
    # The gradient of the result, the product without biases, and biases by row.
    temporary = 3 * rows * recipe.hidden_size
    return _BlockBytes(stream, kept[recipe.checkpoint_activations], whole, temporary)


check_fit = make_fit_check(predict)
