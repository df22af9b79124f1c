"""Write trained adapters as files that peft can load, and describe their configuration.

Owns the two files and how they name the base model; must not know where a run stores them.
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

# The fields of the configuration that the published page prints, in its order.
SHOWN = (
    "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "r",
    "target_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "bias",
    "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern",
)  # fmt: skip


def save(model: LlamaLora, folder: Path, base: str) -> None:
    """Write the adapters and their configuration into ``folder``; every rank must call it.

    Only rank 0 writes. The weights get their final name when they are complete.

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
        "inference_mode": True,  # peft loads them for training only on request
    })  # fmt: skip
    finished.save_pretrained(str(folder))
    assert (folder / CONFIG_NAME).is_file()


def described(model: LlamaLora) -> dict[str, str]:
    """Return the adaptation scheme, the library that implements it, and its configuration."""
    settings = _settings(model)
    shown = []
    for name in SHOWN:
        value: Any = getattr(settings, name)
        if name == "target_modules":
            value = sorted(value)
        elif name == "task_type":
            value = str(getattr(value, "value", value))
        shown.append(f"{name}={value!r}")
    return {
        "scheme": "lora",
        "implementer": f"peft {peft.__version__}",
        "details": f"LoraConfig({', '.join(shown)})",
    }


def _settings(model: LlamaLora) -> LoraConfig:
    return model.peft.peft_config[ADAPTER]


def _adapters(model: LlamaLora) -> dict[str, Tensor]:
    # Pass the state: otherwise peft would collect the frozen weights too.
    trained = {name: x for name, x in model.peft.named_parameters() if x.requires_grad}
    found: dict[str, Tensor] = get_peft_model_state_dict(
        model.peft, state_dict=trained, save_embedding_layers=False
    )
    return found


def _whole(value: Tensor) -> Tensor:
    """Return a tensor on the host, gathered if it is sharded over ranks."""
    plain = value.full_tensor() if isinstance(value, DTensor) else value
    return plain.detach().to("cpu").contiguous()
