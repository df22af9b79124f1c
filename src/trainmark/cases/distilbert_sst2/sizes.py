"""Compute parameters and FLOPs from a recipe and the model's sizes in a record.

Records are checked against them, also without the events of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.spec import Sizes

from .data.model_files import NUM_LABELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.protocols import Counts

    from .case import DistilbertRecipe


def compute_model_flops(
    *, layers: int, dim: int, hidden_dim: int, seq_length: int, counts: Counts
) -> float:
    """Return the model FLOPs of training on a number of rows and tokens, by PaLM, appendix B.

    These are 6 for each weight and token (2 in the forward pass, 4 in the backward pass), and
    12 x dim x sequence length for each layer's attention and token. Padding counts, because the
    model computes it. Embeddings do not count: they are looked up. The head sees only the first
    token of each row.

    Args:
        layers: number of encoder layers.
        dim: width of the hidden states, and of all heads together.
        hidden_dim: width of the feed-forward part.
        seq_length: number of tokens that a row is padded to.
        counts: the rows (``samples``) and tokens that were trained on.
    """
    # Of each layer: queries, keys, values and output; and both layers of the feed-forward part.
    encoder_weights = layers * (4 * dim**2 + 2 * dim * hidden_dim)
    head_weights = dim**2 + dim * NUM_LABELS
    flops_per_token = 6.0 * encoder_weights + 12.0 * layers * dim * seq_length
    flops_per_row = 6.0 * head_weights
    return flops_per_token * counts.tokens_padded + flops_per_row * counts.samples


def find_sizes(recipe: DistilbertRecipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the facts that the job must report, and the formula of the model FLOPs.

    Args:
        facts: what the job reported; some sizes depend on its data or model.
    """
    config: Mapping[str, int] | None = facts.get("model_config")
    if config is None:
        return Sizes({})  # without the job's facts, nothing can be expected
    layers = config["n_layers"]
    dim = config["dim"]
    hidden_dim = config["hidden_dim"]
    # ``+ 1`` is for the biases. A norm has 2 x dim parameters.
    norm = 2 * dim
    embeddings = (config["vocab_size"] + config["max_position_embeddings"]) * dim + norm
    attention = 4 * (dim + 1) * dim
    feed_forward = (dim + 1) * hidden_dim + (hidden_dim + 1) * dim
    head = (dim + 1) * dim + (dim + 1) * NUM_LABELS
    parameters = embeddings + layers * (attention + feed_forward + 2 * norm) + head

    def compute_flops(counts: Counts) -> float:
        """Return the model FLOPs of training this model on the samples of ``counts``."""
        return compute_model_flops(
            layers=layers,
            dim=dim,
            hidden_dim=hidden_dim,
            seq_length=recipe.seq_length,
            counts=counts,
        )

    return Sizes({"parameters": parameters, "trainable_parameters": parameters}, compute_flops)
