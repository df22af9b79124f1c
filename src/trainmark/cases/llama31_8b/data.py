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
    estimate_cached_scores,
    make_fit_check,
)

if TYPE_CHECKING:
    from .case import Llama31Recipe

__all__ = ["check", "check_fit", "generate", "load", "predict"]


def predict(recipe: Llama31Recipe, world_size: int) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a step.

    The peak is where the forward pass ends, in the backward pass of the last or of the first block,
    or where that pass ends with all gradients; names and terms follow the library's Llama.
    """
    cut, replicas = recipe.tensor_parallel, world_size // recipe.tensor_parallel
    half = recipe.precision in AUTOCAST
    number = HALF if half else FULL  # in matmuls
    hidden, ffn, layers = recipe.hidden_size, recipe.ffn_size, recipe.num_layers
    tokens = recipe.micro_batch_size * recipe.seq_length
    heads, kept = recipe.num_heads, hidden // recipe.num_heads * recipe.num_kv_heads
    table = recipe.vocab_size * hidden
    whole = recipe.matmul_weights + table + (2 * layers + 1) * hidden
    of_block = (recipe.matmul_weights - table) // layers
    sharded = recipe.fsdp and replicas > 1
    held = whole // (cut * replicas if sharded else cut)
    gathered = (2 * table + min(2, layers) * of_block) // cut if sharded else 0  # FSDP2: the root's
    stream = tokens * hidden * FULL // (cut if recipe.sequence_parallel else 1)
    inside = tokens * number // cut
    copies = of_block * HALF // cut if half else 0  # of a block's weights, by autocast
    # Two norms save their input and result; query, key, value, result of attention; inputs of
    # matmuls, one copy for each under autocast; four results of the feed-forward layer.
    inputs = 5 if half else 2
    block = 4 * stream + inside * ((2 + inputs) * hidden + 2 * kept + 4 * ffn)
    block += tokens * heads * FULL // cut
    # Its backward pass: gradients of two results of that layer, of the stream and of a matrix.
    temporary = 2 * inside * ffn + stream + hidden * ffn * number // cut
    saved = block + copies
    if recipe.checkpoint_activations != "none" or recipe.compile:
        results = 0
        if recipe.checkpoint_activations == "selective":  # of matmuls and attention
            results = inside * (4 * hidden + 2 * kept + 2 * ffn)
        temporary += saved - stream - results
        saved = stream + results
    scores = tokens * recipe.vocab_size  # of the head, on every rank
    if recipe.kernels == "library":  # log-probabilities, their gradient and that of the scores
        head = 4 * stream + 3 * scores * FULL
    else:
        at_once = min(scores // cut, SCORES_AT_ONCE)
        head = 4 * stream + (table // cut + at_once) * FULL
        if half:
            head += inside * hidden + at_once * HALF
    cache = 0 if saved > block else layers * copies  # autocast's, to the end of the forward pass
    grads, shards = held * FULL, replicas if sharded else 1
    of_head, of_one = table * FULL // (cut * shards), of_block * FULL // (cut * shards)
    early = grads if recipe.grad_accum_steps > 1 else 0
    peaks = (
        (early, layers * saved + cache + head),
        (max(early, of_head), layers * saved + temporary),
        (max(early, grads - of_head - of_one), saved + temporary),
        (grads, stream),
    )
    gradients, activations = max(peaks, key=sum)
    # As ``step_memory`` says of what an allocator keeps.
    cached = 2 * gathered * FULL
    if not sharded and recipe.kernels == "library":
        cached = estimate_cached_scores(scores)
    return Prediction(
        weights=(held + gathered) * FULL,
        optimizer=held * FULL * ADAM_MOMENTS,
        gradients=gradients,
        activations=activations,
        cached=cached,
    )


check_fit = make_fit_check(predict)
