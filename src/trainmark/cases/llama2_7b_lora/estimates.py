"""Model FLOPs and peak memory of training adapters in a frozen model; no torch.

A frozen weight takes part in the forward pass and in the gradient of its input: 4 FLOPs per token.
An adapter's weight also needs its own gradient: 6 FLOPs. Attention's matmuls have no weights and
count as in full training, 12 x layers x heads x head width x tokens of a sample, causal or not.
Gradients that no adapter needs are not counted: nothing before the first adapter of the first block
is trained, so no gradients are computed there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.train.step_memory import ADAM_MOMENTS, FP32_BYTES, HALF_BYTES, Prediction

from .case import parse_targets
from .model_files import compute_linear_shapes, count_lora_parameters, count_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .case import LlamaRecipe
    from .model_files import ModelConfig

FORMULA = "lora: 4 x frozen + 6 x trained + 12LHQT per token, less the first block's unneeded"
# The linear layers of a block in the order of the forward pass; those of a group share their input.
_LAYER_GROUPS = (
    ("q_proj", "k_proj", "v_proj"),
    ("o_proj",),
    ("gate_proj", "up_proj"),
    ("down_proj",),
)


def count_matmul_weights(config: ModelConfig) -> int:
    """Return the number of weights in matrix products: blocks and LM head, no look-up tables."""
    shapes = compute_linear_shapes(config).values()
    block_weights = sum(outputs * inputs for outputs, inputs in shapes)
    return config.num_layers * block_weights + config.vocab_size * config.hidden_size


def compute_unneeded_flops_per_token(
    config: ModelConfig, *, rank: int, targets: Sequence[str], seq_length: int
) -> float:
    """Return the FLOPs per token of the first block's gradients that no adapter needs.

    The gradient of an activation is needed only for the adapters of layers before it. In the first
    block, no layer comes before the first inputs. As in all model FLOPs here, attention counts all
    pairs of tokens, also those that the causal mask hides.

    Args:
        rank: of the adapters.
        targets: names of the linear layers that have one.
    """
    shapes = compute_linear_shapes(config)
    earlier_layers: set[str] = set()
    flops = 0.0
    # The layers of a group share their input; groups are in the order of the forward pass.
    for group in _LAYER_GROUPS:
        if earlier_layers.isdisjoint(targets):  # no adapter needs the gradient of this input
            for name in group:
                outputs, inputs = shapes[name]
                flops += 2.0 * outputs * inputs  # the frozen weight's part of the gradient
                if name in targets:
                    flops += 2.0 * rank * inputs  # the part of its adapter's first matrix
        earlier_layers.update(group)
    # Attention's backward pass has four matmuls, for the gradients of these:
    is_gradient_needed = {
        "probabilities": "q_proj" in targets or "k_proj" in targets,
        "queries": "q_proj" in targets,
        "keys": "k_proj" in targets,
        "values": "v_proj" in targets,
    }
    num_unneeded = list(is_gradient_needed.values()).count(False)
    return flops + num_unneeded * 2.0 * config.hidden_size * seq_length


def compute_model_flops_per_token(
    config: ModelConfig, *, rank: int, targets: Sequence[str], seq_length: int
) -> float:
    """Return the model FLOPs of training one token.

    Args:
        rank: of the adapters.
        targets: names of the linear layers that have one.
    """
    trained = count_lora_parameters(config, rank, targets)
    # 12 = 2 matmuls x 2 FLOPs x 3: one forward pass, and a backward pass of twice its FLOPs
    attention = 12.0 * config.num_layers * config.hidden_size * seq_length
    # Gradients of the first block that lead to no adapter are not computed.
    skipped = compute_unneeded_flops_per_token(
        config, rank=rank, targets=targets, seq_length=seq_length
    )
    # A frozen weight has 4: 2 in the forward pass and 2 for the gradient of its input. A trained
    # weight has 2 more, for its own gradient.
    return 4.0 * count_matmul_weights(config) + 6.0 * trained + attention - skipped


# Scores of the LM head in a block: 32 MiB in float32, less than the activations of a wide layer.
SCORES_AT_ONCE = 1 << 23


def predict_peak_bytes(config: ModelConfig, recipe: LlamaRecipe, world_size: int) -> Prediction:
    """Return the predicted peak memory of one rank of ``world_size`` in a step.

    If the LM head is computed in blocks of scores (``kernels=own``), its temporary tensors are not
    included.

    Args:
        recipe: its ``kernels`` is ``library`` or ``own``, not None.
    """
    # Bytes of a frozen weight.
    weight_bytes = FP32_BYTES if recipe.weights_dtype == "fp32" else HALF_BYTES
    num_trained = count_lora_parameters(config, recipe.lora_rank, parse_targets(recipe))
    bytes_of_weights = count_parameters(config) * weight_bytes + num_trained * FP32_BYTES
    num_trained_here = num_trained  # of which this rank holds gradients and optimizer state
    cached_bytes = 0  # freed memory that the allocator keeps
    if recipe.fsdp and world_size > 1:
        num_trained_here = -(-num_trained // world_size)  # of a rank's shard, rounded up
        # Weights that FSDP2 gathers at a time, at least: a table and the matrices of a block. The
        # head, if it is not the table, and the next block, which FSDP2 gathers in advance, are
        # left out.
        num_gathered = config.vocab_size * config.hidden_size
        for outputs, inputs in compute_linear_shapes(config).values():
            num_gathered += outputs * inputs
        shard_bytes = -(-bytes_of_weights // world_size)  # rounded up
        bytes_of_weights = shard_bytes + num_gathered * weight_bytes
        # FSDP2 gathers in a separate stream, whose freed memory no other stream uses.
        cached_bytes = num_gathered * weight_bytes
    block_bytes = _predict_block_bytes(config, recipe)  # per token, as ``saved_bytes``
    saved_bytes = config.num_layers * block_bytes
    batch_tokens = recipe.micro_batch_size * recipe.seq_length
    if recipe.checkpoint_activations:  # one block is recomputed, the others keep their input
        # Recomputed blocks leave holes in the allocator's memory, about as large as the activations
        # of one block.
        cached_bytes += batch_tokens * block_bytes
        # The kept input is the residual stream. It has the type of the frozen weights, because it
        # begins as rows of their table.
        saved_bytes = block_bytes + (config.num_layers - 1) * config.hidden_size * weight_bytes
    if recipe.kernels == "library":  # three tensors: scores, their softmax and its gradient
        saved_bytes += 3 * FP32_BYTES * config.vocab_size
    return Prediction(
        weights=bytes_of_weights,
        gradients=num_trained_here * FP32_BYTES,
        optimizer=num_trained_here * FP32_BYTES * ADAM_MOMENTS,
        activations=batch_tokens * saved_bytes,
        cached=cached_bytes,
    )


def _predict_block_bytes(config: ModelConfig, recipe: LlamaRecipe) -> int:
    """Return the bytes per token that one block saves for its backward pass.

    A frozen layer does not save its input, which only the gradient of its weights would need.
    """
    # Bytes of a number in a matmul's result.
    number_bytes = HALF_BYTES if recipe.precision in ("bf16", "fp16") else FP32_BYTES
    # Two norms. Each converts its input to float32 and saves that, and one number per token.
    norms = 2 * (config.hidden_size + 1) * FP32_BYTES
    query_and_result = 2 * config.hidden_size * number_bytes
    key_and_value = 2 * config.kv_size * number_bytes
    # Fused attention keeps them instead of probabilities.
    softmax_sums = config.num_heads * FP32_BYTES
    feed_forward = 3 * config.intermediate_size * number_bytes  # gate, its activation, up
    adapters = _predict_adapter_bytes(config, recipe, number_bytes)
    return norms + query_and_result + key_and_value + softmax_sums + feed_forward + adapters


def _predict_adapter_bytes(config: ModelConfig, recipe: LlamaRecipe, number_bytes: int) -> int:
    """Return the bytes per token that the adapters of a block save for the backward pass.

    With dropout or autocast, each adapter saves its own copy of the input, and the dropout mask.
    Otherwise, the adapters with the same input save it once.

    Args:
        number_bytes: bytes of a number in matmuls.
    """
    shapes = compute_linear_shapes(config)
    is_autocast = number_bytes < FP32_BYTES
    copies_input = recipe.lora_dropout > 0 or is_autocast
    mask_bytes = 1 if recipe.lora_dropout > 0 else 0  # of each number of the input
    saved_bytes = 0
    for group in _LAYER_GROUPS:  # layers with the same input
        adapters = [name for name in group if name in parse_targets(recipe)]
        adapters_that_save = adapters if copies_input else adapters[:1]
        for name in adapters_that_save:
            _, input_width = shapes[name]
            saved_bytes += input_width * (number_bytes + mask_bytes)
        # The result of each adapter's first matrix.
        saved_bytes += len(adapters) * recipe.lora_rank * number_bytes
    return saved_bytes
