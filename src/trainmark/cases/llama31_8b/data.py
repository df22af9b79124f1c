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
    from .case import Llama31Recipe

__all__ = ["check", "check_fit", "generate", "load", "predict"]


@dataclass(frozen=True, slots=True)
class _BlockBytes:
    """Bytes of a block's activations on a rank.

    Args:
        stream: the residual stream.
        saved: saved until the backward pass.
        temporary: temporary tensors of its backward pass, which may recompute it.
        cached_copies: autocast's copies of its weights that stay until the forward pass ends.
    """

    stream: int
    saved: int
    temporary: int
    cached_copies: int


class _PeakBytes(NamedTuple):
    """Bytes of gradients and activations that exist together at a moment of a step."""

    gradients: int
    activations: int


def predict(recipe: Llama31Recipe, world_size: int) -> Prediction:
    """Return the predicted peak memory of one rank of ``world_size`` in a step.

    The peak is at the end of the forward pass, in the backward pass of the last or of the first
    block, or at the end of the backward pass with all gradients. The terms follow the library's
    Llama.

    Args:
        recipe: its ``kernels`` is ``library`` or ``own``, not None.
    """
    tensor_parallel = recipe.tensor_parallel
    replicas = world_size // tensor_parallel
    is_sharded = recipe.fsdp and replicas > 1
    num_shards = tensor_parallel * replicas if is_sharded else tensor_parallel
    layers = recipe.num_layers
    # Numbers of weights.
    table = recipe.vocab_size * recipe.hidden_size
    norms = (2 * layers + 1) * recipe.hidden_size  # two in each block, and the last norm
    parameters = recipe.matmul_weights + table + norms
    # The head, of the table's size, is among the matmul weights, but in no block.
    block_weights = (recipe.matmul_weights - table) // layers
    local_weights = parameters // num_shards
    gathered_weights = 0
    # FSDP2 gathers token table and head, the current block and the next one.
    if is_sharded:
        gathered_weights = (2 * table + min(2, layers) * block_weights) // tensor_parallel
    peak = _find_peak(
        recipe,
        _predict_block(recipe, block_weights),
        all_gradients=local_weights * FP32_BYTES,
        table_gradient=table * FP32_BYTES // num_shards,
        block_gradient=block_weights * FP32_BYTES // num_shards,
        whole_head_gradient=table * FP32_BYTES // tensor_parallel if is_sharded else 0,
    )
    cached = 0  # bytes that the allocator keeps after they are freed
    if is_sharded:
        # FSDP2 gathers weights in streams of its own, and no other stream can use the memory that
        # is freed there. The factor 2 is empirical: it brings estimates near to what an allocator
        # reserved.
        cached = 2 * gathered_weights * FP32_BYTES
    elif recipe.kernels == "library":
        # The library's kernels have all scores (logits) in memory at once. When the scores are
        # freed, they leave memory that is too small for those of the next step. With FSDP2 it is
        # not counted: without it, the estimate agrees with what an allocator reserved on a
        # simulated card.
        cached = estimate_cached_scores(
            recipe.micro_batch_size * recipe.seq_length * recipe.vocab_size
        )
    return Prediction(
        weights=(local_weights + gathered_weights) * FP32_BYTES,
        optimizer=local_weights * FP32_BYTES * ADAM_MOMENTS,
        gradients=peak.gradients,
        activations=peak.activations,
        cached=cached,
    )


def _find_peak(
    recipe: Llama31Recipe,
    block: _BlockBytes,
    *,
    all_gradients: int,
    table_gradient: int,
    block_gradient: int,
    whole_head_gradient: int,
) -> _PeakBytes:
    """Return the bytes at the moment of a step when gradients and activations need most.

    Args:
        block: bytes of one block's activations: ``saved`` until its backward pass; ``temporary``
            in its backward pass, which may recompute it; ``cached_copies`` of its weights, which
            autocast keeps until the forward pass ends; and ``stream``, those of the residual
            stream.
        all_gradients, table_gradient, block_gradient: bytes of the gradients that the rank holds:
            of all weights, of the token table or the head, and of one block.
        whole_head_gradient: bytes of the head's gradient before FSDP2 reduces it, beside those of
            the sharded gradients; 0: the weights are not sharded.
    """
    # Gradients that exist in the forward pass: those of earlier micro-batches, if there are any.
    early_gradients = all_gradients if recipe.grad_accum_steps > 1 else 0
    # Gradients that exist in the backward pass of the first block, whose own gradients are not
    # computed yet. Nor is that of the token table.
    late_gradients = all_gradients - table_gradient - block_gradient
    if whole_head_gradient:
        # The head's gradient is computed first, but FSDP2 reduces it last: until then it is whole,
        # and exists beside the sharded gradients.
        last_block_gradients = early_gradients + whole_head_gradient
        # Of the sharded ones, the head's is missing too, which is as large as the token table's.
        late_gradients = max(early_gradients, late_gradients - table_gradient) + whole_head_gradient
    else:
        # Not a sum: if there are early gradients, the head's gradient is added to them in place.
        last_block_gradients = max(early_gradients, table_gradient)
        late_gradients = max(early_gradients, late_gradients)
    saved = recipe.num_layers * block.saved
    cached_copies = recipe.num_layers * block.cached_copies
    head = _predict_head_bytes(recipe, block.stream)
    peaks = (
        # At the end of the forward pass.
        _PeakBytes(gradients=early_gradients, activations=saved + cached_copies + head),
        # In the backward pass of the last block. The head's gradient exists; its other tensors and
        # autocast's copies are freed.
        _PeakBytes(
            gradients=last_block_gradients,
            activations=saved + block.temporary,
        ),
        # In the backward pass of the first block.
        _PeakBytes(gradients=late_gradients, activations=block.saved + block.temporary),
        # At the end of the backward pass. One tensor of the residual stream's size remains.
        _PeakBytes(gradients=all_gradients, activations=block.stream),
    )
    return max(peaks, key=sum)  # by gradients and activations together


def _predict_block(recipe: Llama31Recipe, block_weights: int) -> _BlockBytes:
    """Return the bytes of a block's activations on a rank.

    A block saves all that its backward pass needs, or saves a part and recomputes the rest.

    Args:
        block_weights: number of weights in a block.
    """
    is_half = recipe.precision in AUTOCAST
    number_bytes = HALF_BYTES if is_half else FP32_BYTES  # of a number in matmuls
    tensor_parallel = recipe.tensor_parallel
    hidden = recipe.hidden_size
    ffn = recipe.ffn_size
    kv_size = hidden // recipe.num_heads * recipe.num_kv_heads
    tokens = recipe.micro_batch_size * recipe.seq_length
    stream = tokens * hidden * FP32_BYTES  # the residual stream, which is the block's input
    if recipe.sequence_parallel:
        stream //= tensor_parallel
    column = tokens * number_bytes // tensor_parallel  # for each column of a matmul's result
    # Copies of weights, by autocast.
    copies = block_weights * HALF_BYTES // tensor_parallel if is_half else 0
    # Each of two norms saves its input and the normalized input. Its result is an input below.
    norms = 4 * stream
    # Inputs of the matmuls for query, key, value, gate and up, which are whole on every rank.
    # Autocast saves a copy for each; otherwise, those of attention share one input, and gate and up
    # share the other.
    num_inputs = 5 if is_half else 2
    inputs = num_inputs * hidden * tokens * number_bytes
    attention = (2 * hidden + 2 * kv_size) * column  # query and result, key and value
    # Sums of the softmax, one for each token and head.
    attention_sums = tokens * recipe.num_heads * FP32_BYTES // tensor_parallel
    feed_forward = 4 * ffn * column  # gate, its activation, up, and the product of these two
    needed = norms + inputs + attention + attention_sums + feed_forward
    # Gradients of two results of the feed-forward layer, of the stream and of one weight matrix.
    temporary = 2 * column * ffn + stream + hidden * ffn * number_bytes // tensor_parallel
    if recipe.checkpoint_activations == "none" and not recipe.compile:
        # The block saves all. The copies are included, so ``cached_copies`` must not count them.
        return _BlockBytes(stream, saved=needed + copies, temporary=temporary, cached_copies=0)
    # The block saves its input and recomputes the rest. A compiled block is estimated in the same
    # way: torch may recompute in it too, and this is the least that it saves.
    saved_results = 0
    if recipe.checkpoint_activations == "selective":
        # It also saves the results of matmuls and attention. Their widths: ``hidden`` of query,
        # attention, its projection and down; ``kv_size`` of key and value; ``ffn`` of gate and up.
        saved_results = column * (4 * hidden + 2 * kv_size + 2 * ffn)
    # What is saved, the block's input and ``saved_results``, is not recomputed.
    recomputed = needed + copies - stream - saved_results
    return _BlockBytes(
        stream,
        saved=stream + saved_results,
        temporary=temporary + recomputed,
        cached_copies=copies,  # of the forward pass; the backward pass makes them again
    )


def _predict_head_bytes(recipe: Llama31Recipe, stream: int) -> int:
    """Return the bytes that the head and the last norm need: saved and temporary tensors.

    The library's kernels compute all scores (logits) at once, on every tensor-parallel rank. The
    kernels of this program compute a part at a time, and compute the gradient of the head's weights
    in the forward pass.

    Args:
        stream: bytes of this rank's part of the residual stream.
    """
    tokens = recipe.micro_batch_size * recipe.seq_length
    hidden = recipe.hidden_size
    scores = tokens * recipe.vocab_size
    # Of the residual stream's size: the last norm's input and the normalized input. Of the size of
    # the whole stream, because each tensor-parallel rank needs all positions: the norm's result,
    # which is the head's input, and the gradient of this result.
    saved = 2 * stream + 2 * tokens * hidden * FP32_BYTES
    if recipe.kernels == "library":  # log-probabilities, their gradient and that of the scores
        return saved + 3 * scores * FP32_BYTES
    tensor_parallel = recipe.tensor_parallel
    scores_at_once = min(scores // tensor_parallel, SCORES_AT_ONCE)
    weight_gradients = recipe.vocab_size * hidden // tensor_parallel
    head_bytes = saved + (weight_gradients + scores_at_once) * FP32_BYTES
    # Autocast copies the head's input, which is whole on every rank, and the scores.
    if recipe.precision in AUTOCAST:
        head_bytes += (tokens * hidden + scores_at_once) * HALF_BYTES
    return head_bytes


check_fit = make_fit_check(predict)
