"""Trained adapters as files that peft alone can load, and their configuration in words.

Owns the two files and what they say of the base model; must not know where a run keeps
them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import peft
from peft import LoraConfig, get_peft_model_state_dict
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from .model import ADAPTER

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from .model import LlamaLora

# What the published page prints of the configuration, in its order.
SHOWN = (
    "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "r",
    "target_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "bias",
    "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern",
)  # fmt: skip


def save(model: LlamaLora, folder: Path, base: str) -> None:
    """Write the adapters and their configuration into ``folder``; every rank must call it.

    The first rank writes, each file under another name first.

    Args:
        base: name or path of the frozen model, recorded for loading the adapters.
    """
    state = {name: _whole(value) for name, value in _adapters(model).items()}
    if dist.is_initialized() and dist.get_rank() > 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f".{SAFETENSORS_WEIGHTS_NAME}.writing"
    save_file(state, staging, metadata={"format": "pt"})
    staging.rename(folder / SAFETENSORS_WEIGHTS_NAME)
    settings = _settings(model)
    finished = LoraConfig(**{
        **{item.name: getattr(settings, item.name) for item in fields(settings) if item.init},
        "base_model_name_or_path": base,
        "inference_mode": True,  # loaded for training only where that is asked for
    })  # fmt: skip
    finished.save_pretrained(str(folder))
    assert (folder / CONFIG_NAME).is_file()


def described(model: LlamaLora) -> dict[str, str]:
    """Return how the frozen model is adapted, by whom, and the whole configuration."""
    settings = _settings(model)
    words = []
    for name in SHOWN:
        value: Any = getattr(settings, name)
        if name == "target_modules":
            value = sorted(value)
        elif name == "task_type":
            value = str(getattr(value, "value", value))
        words.append(f"{name}={value!r}")
    return {
        "scheme": "lora",
        "implementer": f"peft {peft.__version__}",
        "details": f"LoraConfig({', '.join(words)})",
    }


def _settings(model: LlamaLora) -> LoraConfig:
    return model.peft.peft_config[ADAPTER]


def _adapters(model: LlamaLora) -> dict[str, Tensor]:
    # The state is given: peft would otherwise collect the frozen weights with it.
    trained = {name: x for name, x in model.peft.named_parameters() if x.requires_grad}
    found: dict[str, Tensor] = get_peft_model_state_dict(
        model.peft, state_dict=trained, save_embedding_layers=False
    )
    return found


def _whole(value: Tensor) -> Tensor:
    """Return a tensor on the host, gathered where it is cut over ranks."""
    plain = value.full_tensor() if isinstance(value, DTensor) else value
    return plain.detach().to("cpu").contiguous()
