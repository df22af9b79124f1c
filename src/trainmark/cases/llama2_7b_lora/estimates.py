"""Model FLOPs and peak memory of training adapters in a frozen model; no torch.

A frozen weight takes part in the forward pass and in the gradient of its input: 4 FLOPs per token.
An adapter's weight also needs its own gradient: 6 FLOPs. Attention's matmuls have no weights and
count as in full training, 12 x layers x heads x head width x tokens of a sample, causal or not.
Gradients that no adapter needs are not counted: nothing before the first adapter of the first block
is trained, so no gradients are computed there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.train.step_memory import ADAM_MOMENTS, FULL, HALF, Prediction

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
    block = sum(out * into for out, into in compute_linear_shapes(config).values())
    return config.num_layers * block + config.vocab_size * config.hidden_size


def compute_unneeded_flops_per_token(
    config: ModelConfig, *, rank: int, targets: Sequence[str], seq_length: int
) -> float:
    """Return the FLOPs of the first block's gradients that lead to no adapter."""
    shapes, earlier_layers = compute_linear_shapes(config), set[str]()
    flops = 0.0
    for group in _LAYER_GROUPS:
        if earlier_layers.isdisjoint(targets):  # no adapter needs the gradient of this input
            for name in group:
                out, into = shapes[name]
                flops += 2.0 * out * into
                if name in targets:
                    flops += 2.0 * rank * into
        earlier_layers.update(group)
    query, key, value = (name in targets for name in _LAYER_GROUPS[0])
    # Attention's backward pass has four matmuls: for probabilities, queries, keys and values.
    needed_matmuls = (query or key) + query + key + value
    return flops + (4 - needed_matmuls) * 2.0 * config.hidden_size * seq_length


def compute_model_flops_per_token(
    config: ModelConfig, *, rank: int, targets: Sequence[str], seq_length: int
) -> float:
    """Return the model FLOPs of training one token.

    Args:
        rank: of the adapters.
        targets: names of the linear layers that have one.
    """
    trained = count_lora_parameters(config, rank, targets)
    attention = 12.0 * config.num_layers * config.hidden_size * seq_length  # two matmuls, 3 passes
    unneeded = compute_unneeded_flops_per_token(
        config, rank=rank, targets=targets, seq_length=seq_length
    )
    return 4.0 * count_matmul_weights(config) + 6.0 * trained + attention - unneeded


# Scores of the LM head in a block: 32 MiB in float32, less than the activations of a wide layer.
SCORES_AT_ONCE = 1 << 23


def predict_peak_bytes(config: ModelConfig, recipe: LlamaRecipe, world_size: int) -> Prediction:
    """Return the predicted peak memory of one rank of ``world_size`` in a step.

    The temporary tensors of a head that is computed in blocks are not included.
    """
    weight_bytes = FULL if recipe.weights_dtype == "fp32" else HALF  # of a frozen weight
    trained = count_lora_parameters(config, recipe.lora_rank, parse_targets(recipe))
    weights = count_parameters(config) * weight_bytes + trained * FULL
    cached = 0
    if recipe.fsdp and world_size > 1:  # FSDP2 gathers the tables and a block
        trained = -(-trained // world_size)
        gathered = config.vocab_size * config.hidden_size
        gathered += sum(out * into for out, into in compute_linear_shapes(config).values())
        weights = -(-weights // world_size) + gathered * weight_bytes
        cached = gathered * weight_bytes  # in a separate stream; see ``step_memory``
    number = HALF if recipe.precision in ("bf16", "fp16") else FULL  # bytes, in matmuls
    hidden, keys, layers = config.hidden_size, config.kv_size, config.num_layers
    # Bytes per token that a block saves for its backward pass.
    norms = 2 * (hidden + 1) * FULL  # the input in float32, and one number per token
    attention = 2 * (hidden + keys) * number + config.num_heads * FULL  # q, k, v, result
    feed_forward = 3 * config.intermediate_size * number  # gate, its activation, up
    block = norms + attention + feed_forward + _predict_adapter_bytes(config, recipe, number)
    saved = layers * block
    if recipe.checkpoint_activations:  # one block is recomputed, the others keep their input
        cached += recipe.micro_batch_size * recipe.seq_length * block  # fragmentation
        saved = block + (layers - 1) * hidden * weight_bytes
    if recipe.kernels == "library":  # the scores, their softmax and its gradient
        saved += 3 * FULL * config.vocab_size
    return Prediction(
        weights=weights,
        gradients=trained * FULL,
        optimizer=trained * FULL * ADAM_MOMENTS,
        activations=recipe.micro_batch_size * recipe.seq_length * saved,
        cached=cached,
    )


def _predict_adapter_bytes(config: ModelConfig, recipe: LlamaRecipe, number: int) -> int:
    """Return the bytes per token that the adapters of a block save for the backward pass.

    With dropout or autocast, each adapter saves its own copy of the input, and the dropout mask.
    Otherwise, the adapters with the same input save it once.

    Args:
        number: bytes of a number in matmuls.
    """
    shapes, saved = compute_linear_shapes(config), 0
    has_own_input = recipe.lora_dropout > 0 or number < FULL
    mask = 1 if recipe.lora_dropout > 0 else 0
    for group in _LAYER_GROUPS:
        adapters = [name for name in group if name in parse_targets(recipe)]
        inputs = adapters if has_own_input else adapters[:1]
        saved += sum(shapes[name][1] * (number + mask) for name in inputs)
        saved += len(adapters) * recipe.lora_rank * number
    return saved
