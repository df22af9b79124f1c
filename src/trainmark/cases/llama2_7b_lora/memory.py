"""Predict a rank's peak memory from the model's sizes; no torch.

Owns the estimate for frozen weights with adapters; ``step_memory`` refuses what does not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.train.step_memory import ADAM_MOMENTS, FULL, HALF, Prediction

from .model_files import linear_shapes, lora_parameters, parameters
from .recipe import targets

if TYPE_CHECKING:
    from .model_files import ModelConfig
    from .recipe import LlamaRecipe

# What a layer with an adapter reads.
_INPUT_OF = {
    "q_proj": "first norm", "k_proj": "first norm", "v_proj": "first norm",
    "o_proj": "attention result", "gate_proj": "second norm", "up_proj": "second norm",
    "down_proj": "product",
}  # fmt: skip
SCORES_AT_ONCE = 1 << 23  # of the LM head: 32 MiB in float32, less than a wide layer's activations
_GATHERED_BLOCKS = 2  # unsharded at a time under FSDP2: the current one and the next one


def predict_peak_bytes(config: ModelConfig, recipe: LlamaRecipe, world_size: int) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a training step."""
    held = FULL if recipe.weights_dtype == "fp32" else HALF
    frozen, trained = parameters(config), lora_parameters(config, recipe.lora_rank, targets(recipe))
    weights = frozen * held + trained * FULL
    if recipe.fsdp and world_size > 1:
        trained = -(-trained // world_size)
        weights = -(-weights // world_size) + _gathered_bytes(config, held)
    return Prediction(
        weights=weights,
        gradients=trained * FULL,
        optimizer=trained * FULL * ADAM_MOMENTS,
        activations=_activation_bytes(config, recipe),
    )


def _gathered_bytes(config: ModelConfig, held: int) -> int:
    """Return the bytes of frozen weights that a rank holds unsharded: tables and two blocks."""
    block = sum(out * into for out, into in linear_shapes(config).values())
    tables = (1 if config.tie_embeddings else 2) * config.vocab_size * config.hidden_size
    return (tables + min(_GATHERED_BLOCKS, config.num_layers) * block) * held


def _activation_bytes(config: ModelConfig, recipe: LlamaRecipe) -> int:
    tokens = recipe.micro_batch_size * recipe.seq_length
    number = HALF if recipe.precision in ("bf16", "fp16") else FULL  # in matmuls
    stream = FULL if recipe.weights_dtype == "fp32" else HALF  # between blocks
    row = tokens * config.hidden_size
    whole = recipe.kernels == "library"
    head = _head_bytes(config, tokens, whole=whole, number=number, stream=stream)
    block = _block_bytes(config, recipe, tokens, number=number)
    head += row * FULL  # saved by the last norm
    # Temporary in the backward pass of a feed-forward layer: at least two gradients of those of
    # gate, up and their product, and that of the stream.
    feed_forward = tokens * (2 * config.intermediate_size * number + config.hidden_size * stream)
    saved = 0
    if recipe.cross_document == "separate":  # the boolean mask, and the one added to scores
        saved += recipe.micro_batch_size * recipe.seq_length**2 * (1 + number)
    if recipe.checkpoint_activations:  # blocks are recomputed after the head's backward pass
        saved += config.num_layers * row * stream
        # The first norm of a block saves the block's input, which is saved already.
        return saved + max(head, block - row * stream + feed_forward)
    # The first block's first norm saves nothing: what it reads is frozen.
    return saved + config.num_layers * block - row * FULL + max(head, feed_forward)


def _block_bytes(config: ModelConfig, recipe: LlamaRecipe, tokens: int, *, number: int) -> int:
    """Return the bytes that one block saves for the backward pass, as the libraries compute it."""
    hidden, wide, keys = config.hidden_size, config.intermediate_size, config.kv_size
    norms = 2 * (hidden + 1) * FULL  # the input in float32, and one number per token
    attention = 2 * (hidden + keys) * number + config.num_heads * FULL  # q, k, v, result
    feed_forward = 3 * wide * number  # gate, its activation, up
    shapes, chosen = linear_shapes(config), targets(recipe)
    adapters, seen = 0, {"attention result"}
    # Without dropout and casts, adapters save a layer's input itself, which others save too.
    same = not recipe.lora_dropout and number == (FULL if recipe.weights_dtype == "fp32" else HALF)
    for name in chosen:
        into = shapes[name][1]
        # The mask: numbers on a CPU, bytes on an accelerator, which the libraries' kernels mean.
        of_a_mask = 1 if recipe.kernels == "library" else FULL
        dropped = into * of_a_mask if recipe.lora_dropout else 0
        if not same or _INPUT_OF[name] not in seen:
            adapters += dropped + into * number
        seen.add(_INPUT_OF[name])
        adapters += recipe.lora_rank * number
    weights = 0
    if number == HALF and recipe.weights_dtype == "fp32":  # autocast's copies
        weights = sum(out * into for out, into in shapes.values()) * number
    return tokens * (norms + attention + feed_forward + adapters) + weights


def _head_bytes(config: ModelConfig, tokens: int, *, whole: bool, number: int, stream: int) -> int:
    """Return the bytes of the LM head's temporary tensors, held while all blocks' are saved.

    Args:
        whole: the scores of all tokens are held, with their softmax and its gradient.
    """
    rows = tokens if whole else min(tokens, max(1, SCORES_AT_ONCE // config.vocab_size))
    of_a_score = 3 * FULL if whole else FULL + (0 if number == FULL else HALF)
    scores = rows * config.vocab_size * of_a_score
    copies = config.vocab_size * config.hidden_size * number if number != stream else 0
    if whole:  # at the softmax's backward pass, when the hidden states are gone
        return scores + copies
    states = 2 * tokens * config.hidden_size * stream  # last hidden states, their gradient
    if number != stream:
        states += tokens * config.hidden_size * number
    return scores + copies + states + rows * config.hidden_size * number
