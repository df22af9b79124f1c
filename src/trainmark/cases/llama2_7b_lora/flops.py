"""Model FLOPs of training adapters in a frozen model; no torch.

A frozen weight is multiplied forward and for the gradient of its input: 4 FLOPs a token. An
adapter's weight has a gradient of its own: 6. Attention's products have no weights and count
as in full training, 12 x layers x heads x head width x tokens of a sample, causal or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model_files import linear_shapes

if TYPE_CHECKING:
    from .model_files import ModelConfig

FORMULA = "lora: 4 x frozen + 6 x trained + 12LHQT per token"


def weight_flops_per_token(frozen: float, trained: float) -> float:
    """Return the FLOPs of the products with ``frozen`` and ``trained`` weights."""
    return 4.0 * frozen + 6.0 * trained


def attention_flops_per_token(config: ModelConfig, seq_length: int) -> float:
    """Return the FLOPs of scores and their mix, forward and backward."""
    return 12.0 * config.num_layers * config.hidden_size * seq_length


def matmul_weights(config: ModelConfig) -> int:
    """Return the weights that every token is multiplied with: no look-ups, but the LM head."""
    block = sum(out * into for out, into in linear_shapes(config).values())
    return config.num_layers * block + config.vocab_size * config.hidden_size


def model_flops_per_token(config: ModelConfig, *, trained: int, seq_length: int) -> float:
    """Return the model FLOPs of training one token with ``trained`` adapter weights."""
    weights = weight_flops_per_token(matmul_weights(config), trained)
    return weights + attention_flops_per_token(config, seq_length)
