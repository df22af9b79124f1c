"""Compute parameters and FLOPs from a recipe and the model's sizes in a record."""

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
    """Return the model FLOPs of training ``counts``, by PaLM, appendix B.

    The head sees only the first token of each row.
    """
    encoder = layers * (4 * dim**2 + 2 * dim * hidden_dim)
    per_token = 6.0 * encoder + 12.0 * layers * dim * seq_length  # H x Q is dim
    head = 6.0 * (dim**2 + dim * NUM_LABELS)
    return per_token * counts.tokens_padded + head * counts.samples


def find_sizes(recipe: DistilbertRecipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the expected facts and the FLOPs formula for ``recipe`` and the job's facts."""
    config: Mapping[str, int] | None = facts.get("model_config")
    if config is None:
        return Sizes({})
    layers, dim, hidden_dim = config["n_layers"], config["dim"], config["hidden_dim"]
    tables = (config["vocab_size"] + config["max_position_embeddings"] + 2) * dim  # and a norm
    attention = 4 * (dim + 1) * dim
    feed_forward = (dim + 1) * hidden_dim + (hidden_dim + 1) * dim
    head = (dim + 1) * dim + (dim + 1) * NUM_LABELS
    parameters = tables + layers * (attention + feed_forward + 4 * dim) + head

    def compute_flops(counts: Counts) -> float:
        return compute_model_flops(
            layers=layers,
            dim=dim,
            hidden_dim=hidden_dim,
            seq_length=recipe.seq_length,
            counts=counts,
        )

    return Sizes({"parameters": parameters, "trainable_parameters": parameters}, compute_flops)
