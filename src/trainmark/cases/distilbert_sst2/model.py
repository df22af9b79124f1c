"""Build the classifier of `transformers`, load its weights and make its optimizer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

# Imported by submodule: the package's lazy top level imports far more.
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from trainmark.train.checkpoints import described, read_state

from .data.model_files import MODEL_REMEDY, MODEL_RULE, NUM_LABELS
from .data.weights import match_weights

if TYPE_CHECKING:
    from pathlib import Path

    from .data.model_files import ModelConfig

NO_DECAY = ("bias", "LayerNorm.weight", "layer_norm.weight")  # as the published setup names them


def build_model(
    config: ModelConfig, *, seed: int, weights: Path | None = None, attention: str = "sdpa"
) -> nn.Module:
    """Return the classifier on the host, in train mode.

    Parameters that ``weights`` does not hold are initialized from ``seed``.

    Raises:
        DataError: weights that cannot be read or do not fit ``config``.
    """
    hf_config = DistilBertConfig.from_dict({**config.raw, "num_labels": NUM_LABELS})
    hf_config._attn_implementation = attention
    torch.manual_seed(seed)
    model: nn.Module = DistilBertForSequenceClassification(hf_config)
    if weights is not None:
        state = read_state(weights, rule=MODEL_RULE, remedy=MODEL_REMEDY)
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, tensor in match_weights(described(weights, state), config, weights).items():
                parameters[name].copy_(state[tensor.key])
    return model.train()


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's two groups: decayed weights, and biases and LayerNorms without decay."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (plain if name.endswith(NO_DECAY) else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
