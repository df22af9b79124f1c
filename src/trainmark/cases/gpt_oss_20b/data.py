"""The two pairs of token files in a data folder, and the memory of a step. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trainmark.data.c4_pairs import check, generate, load
from trainmark.recipe import AUTOCAST
from trainmark.train.step_memory import (
    ADAM_MOMENTS,
    FP32_BYTES,
    HALF_BYTES,
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
        saved: saved until the backward pass; less than ``computed`` if the block is recomputed.
        computed: saved while the block is computed or recomputed.
        temporary: maximum of the temporary tensors of its experts.
    """

    stream: int
    saved: int
    computed: int
    temporary: int


class _PeakBytes(NamedTuple):
    """Bytes of gradients and activations that exist together at a moment of a step."""

    gradients: int
    activations: int


def predict(recipe: GptOssRecipe, world_size: int) -> Prediction:
    """Return the predicted peak memory of one rank of ``world_size`` in a step.

    Equal loads of the experts are assumed; a busier rank needs more. Of four moments, that with the
    largest need counts: the end of the forward pass, the backward passes of the last and of the
    first block, and the end of the backward pass.

    Args:
        recipe: its ``kernels`` is ``library`` or ``own``, not None.
    """
    num_shards = world_size if recipe.fsdp or recipe.expert_parallel > 1 else 1
    # All sizes are in bytes. The token table and the head are two tables of the same size.
    table = recipe.vocab_size * recipe.hidden_size * FP32_BYTES
    weights_of_block = (recipe.parameters * FP32_BYTES - 2 * table) // recipe.num_layers
    local_weights = recipe.parameters * FP32_BYTES // num_shards
    gathered = 0
    if num_shards > 1:
        gathered = _predict_gathered_bytes(recipe, weights_of_block, world_size)
    weight_copies = 0  # half-precision copies of a block's weights, which autocast makes
    if recipe.precision in AUTOCAST:
        # Nearly all weights belong to experts, of which a rank computes only its share.
        weight_copies = weights_of_block * HALF_BYTES // FP32_BYTES // recipe.expert_parallel
    block = _predict_block(recipe, weight_copies)
    peak = _find_peak(recipe, block, local_weights=local_weights, is_sharded=num_shards > 1)
    # FSDP2 gathers weights in streams of its own, and other streams never use memory that is freed
    # in them. The factor 2 is empirical: it brings estimates near to what an allocator reserved.
    cached = 2 * gathered
    if num_shards > 1:
        # To reduce the gradients of both tables, FSDP2 copies them into one buffer. It exists only
        # for that moment, at the end of the backward pass, so it is counted as freed memory.
        cached += 2 * table
    if recipe.checkpoint_activations != "none":
        # Fragmentation by recomputed blocks; the share is empirical.
        cached += (block.computed + block.temporary) // 2
    # Freed logits leave unusable memory. The project's own kernels never hold all logits at once.
    # With FSDP2 it is left out, as in the estimate of Llama 3.1, which then agrees with what an
    # allocator reserved on a simulated card. For this model, FSDP2 with the library's kernels was
    # not measured.
    if recipe.kernels == "library" and num_shards == 1:
        cached += estimate_cached_scores(
            recipe.micro_batch_size * recipe.seq_length * recipe.vocab_size
        )
    return Prediction(
        weights=local_weights + gathered,
        optimizer=local_weights * ADAM_MOMENTS,
        gradients=peak.gradients,
        activations=peak.activations,
        cached=cached,
    )


def _predict_gathered_bytes(recipe: GptOssRecipe, weights_of_block: int, world_size: int) -> int:
    """Return the bytes of weights that FSDP2 gathers at a time.

    These are the token table, the head, the current block and the next one.

    Args:
        weights_of_block: bytes of a whole block's weights, with all its experts.
    """
    table = recipe.vocab_size * recipe.hidden_size * FP32_BYTES  # the head is as large
    experts = recipe.num_experts * recipe.expert_weights * FP32_BYTES
    gathered_experts = experts // recipe.expert_parallel
    if recipe.expert_parallel == world_size:
        gathered_experts = 0  # there is one replica: a rank's experts are not sharded further
    gathered_block = weights_of_block - experts + gathered_experts
    return 2 * table + min(2, recipe.num_layers) * gathered_block


def _find_peak(
    recipe: GptOssRecipe, block: _BlockBytes, *, local_weights: int, is_sharded: bool
) -> _PeakBytes:
    """Return the bytes at the moment of a step when gradients and activations need most.

    Args:
        block: bytes of one block's activations: ``saved`` until its backward pass; ``computed``
            when its forward pass ends, also if it is recomputed; ``temporary`` in its backward
            pass; and ``stream``, those of the residual stream.
        local_weights: bytes of the weights that the rank holds; their gradients are as large.
        is_sharded: FSDP2 shards the weights.
    """
    layers = recipe.num_layers
    # Bytes of the token table; the head's weights and their gradients are as large.
    table = recipe.vocab_size * recipe.hidden_size * FP32_BYTES
    # Gradients that exist in the forward pass: those of earlier micro-batches, if there are any.
    early_gradients = local_weights if recipe.grad_accum_steps > 1 else 0
    # Gradients that exist in the backward passes of the last and of the first block.
    if is_sharded:
        # The head's gradient is computed first, but FSDP2 reduces it last: until then it is whole,
        # and exists beside the sharded gradients.
        last_block_gradients = early_gradients + table
        late_gradients = local_weights + table
    else:
        # Not a sum: if there are early gradients, the head's gradient is added to them in place.
        last_block_gradients = max(early_gradients, table)
        # The gradient of the token table is computed only afterwards.
        late_gradients = max(early_gradients, local_weights - table)
    # Activations in the backward pass of a block; a gradient of the residual stream exists too.
    in_block = block.computed + block.temporary + block.stream
    head = _predict_head_bytes(recipe, block.stream)  # activations of head and last norm
    peaks = (
        # At the end of the forward pass.
        _PeakBytes(gradients=early_gradients, activations=layers * block.saved + head),
        # In the backward pass of the last block, when the head's gradient exists.
        _PeakBytes(
            gradients=last_block_gradients,
            activations=(layers - 1) * block.saved + in_block,
        ),
        # In the backward pass of the first block.
        _PeakBytes(gradients=late_gradients, activations=in_block),
        # At the end of the backward pass.
        _PeakBytes(gradients=local_weights, activations=block.stream),
    )
    return max(peaks, key=lambda peak: peak.gradients + peak.activations)


def _predict_head_bytes(recipe: GptOssRecipe, stream: int) -> int:
    """Return the bytes of the last norm's and the head's activations, with temporary tensors.

    Args:
        stream: bytes of the residual stream.
    """
    num_scores = recipe.micro_batch_size * recipe.seq_length * recipe.vocab_size
    saved = 2 * stream  # the inputs of the last norm and of the head
    if recipe.kernels == "library":  # log-probabilities, their gradient and that of the scores
        return saved + 3 * num_scores * FP32_BYTES
    # Own kernels compute the scores in blocks, and with them the gradient of the head's weights.
    num_head_weights = recipe.vocab_size * recipe.hidden_size
    return saved + (num_head_weights + min(num_scores, SCORES_AT_ONCE)) * FP32_BYTES


def _predict_block(recipe: GptOssRecipe, weight_copies: int) -> _BlockBytes:
    """Return the bytes of a block's activations on a rank.

    They are those of a block with a sliding window, which needs more memory than full attention.

    Args:
        weight_copies: bytes of the half-precision copies of a block's weights that autocast makes.
    """
    is_half = recipe.precision in AUTOCAST
    number_bytes = HALF_BYTES if is_half else FP32_BYTES  # of a number in matmuls
    tokens = recipe.micro_batch_size * recipe.seq_length
    stream = tokens * recipe.hidden_size * FP32_BYTES  # bytes of the residual stream
    attention_result = tokens * number_bytes * recipe.head_dim * recipe.num_heads
    # Autocast copies a layer's input for each matrix: query, key, value, router and experts. In
    # fp32 there are no copies: the first three share one input, and the router has another.
    num_inputs = 5 if is_half else 2
    inputs = num_inputs * tokens * recipe.hidden_size * number_bytes
    # Each of two norms saves its input and the normalized input. Its result is an input below.
    norms = 4 * stream
    # Attention by windows saves queries and result once, but keys and values twice, because the
    # queries of a window attend to its keys and to those of the window before. Keys and values are
    # repeated for all heads that share them, so they are as large as the queries.
    windows = (2 + 2 * 2) * attention_result
    # The output projection saves its input: a copy of the result in another layout.
    output_input = attention_result
    attention = norms + inputs + windows + output_input
    # A row is a token for one of its experts. If ranks share experts, the rows exist in three
    # orders: sent, received and sorted by expert.
    num_orders = 3 if recipe.expert_parallel > 1 else 1
    column_bytes = tokens * recipe.top_k * number_bytes  # of one column of all rows
    # The rows in these orders and the result have the hidden size. These have the feed-forward
    # size: both halves of the first product, gate and up; and what the activation saves, which is
    # the clamped gate, its sigmoid, the product of these two, ``up + 1``, and the result.
    experts = column_bytes * ((num_orders + 1) * recipe.hidden_size + (2 + 5) * recipe.ffn_size)
    # What a block keeps for its backward pass, unless it is recomputed.
    computed = attention + experts + weight_copies
    # A block that is recomputed in the backward pass keeps only its input until then; with
    # ``selective`` it keeps the result of attention too.
    saved_by_setting = {"none": computed, "selective": stream + attention_result, "full": stream}
    return _BlockBytes(
        stream=stream,
        saved=saved_by_setting[recipe.checkpoint_activations],
        computed=computed,
        # Of the experts' second matrix product: the gradient of its result, the product before
        # biases are added, and the bias of each row.
        temporary=3 * column_bytes * recipe.hidden_size,
    )


check_fit = make_fit_check(predict)
