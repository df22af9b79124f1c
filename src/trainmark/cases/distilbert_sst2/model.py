"""The classifier of `transformers`: built from sizes, its weights read, its optimizer groups."""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

# The narrow path: the package's own lazy top level resolves far more.
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from trainmark.data.checkpoint_shapes import StoredTensor, weights_in
from trainmark.errors import DataError

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

    The one place a model comes from. What ``weights`` does not hold starts from ``seed``.

    Raises:
        DataError: weights that cannot be read or do not fit ``config``.
    """
    hf_config = DistilBertConfig.from_dict({**config.raw, "num_labels": NUM_LABELS})
    hf_config._attn_implementation = attention
    torch.manual_seed(seed)
    model: nn.Module = DistilBertForSequenceClassification(hf_config)
    if weights is not None:
        _load_weights(model, weights, config)
    return model.train()


def _load_weights(model: nn.Module, file: Path, config: ModelConfig) -> None:
    """Copy a checkpoint's numbers into ``model``; never executes code from the file."""
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise DataError(
            f"not readable as weights: {str(error).splitlines()[0]}",
            where=str(file),
            remedy=MODEL_REMEDY,
        ) from None
    state = weights_in(state, file, rule=MODEL_RULE, remedy=MODEL_REMEDY)
    if strange := [key for key, item in state.items() if not isinstance(item, Tensor)]:
        raise DataError(
            f"{strange[0]} is no tensor",
            where=f"{file}, {strange[0]}",
            rule="a checkpoint is a state_dict",
            remedy=MODEL_REMEDY,
        )
    stored = [
        StoredTensor(file, key, str(item.dtype).removeprefix("torch."), tuple(item.shape))
        for key, item in state.items()
    ]
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in match_weights(stored, config, file).items():
            parameters[name].copy_(state[tensor.key])


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
