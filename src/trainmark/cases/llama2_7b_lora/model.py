"""Build transformers' Llama with peft's adapters, and compute its training loss.

Frozen weights are loaded from a folder or drawn from a seed, directly in their final place. Only
adapters are trained; frozen weights never get a gradient.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it
from torch.utils.checkpoint import checkpoint

# Imported by submodule: the package's lazy top level imports far more.
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRotaryEmbedding

from trainmark.data.splits import translate_read_errors
from trainmark.train.kernels import choose_kernels

from .case import parse_targets
from .data.dialogues import IGNORED
from .estimates import SCORES_AT_ONCE
from .model_files import check_weights, make_model_error

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.model_folder import StoredTensor
    from trainmark.protocols import Device
    from trainmark.train.kernels import Kernels

    from .case import LlamaRecipe
    from .model_files import ModelConfig

ADAPTER = "default"  # peft's name for a model's only adapter
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class LlamaLora(nn.Module):
    """A frozen Llama with trained adapters; ``forward`` returns the loss.

    Args:
        peft: the model in peft's wrapper, on one device.
        checkpoint_activations: recompute each block in the backward pass.
        kernels: provides the cross-entropy.
    """

    def __init__(self, peft: PeftModel, *, checkpoint_activations: bool, kernels: Kernels) -> None:
        super().__init__()
        self.peft = peft
        self.kernels = kernels
        self._checkpoint_activations = checkpoint_activations

    @property
    def causal_lm(self) -> LlamaForCausalLM:
        """The library's model, with the adapters in its layers."""
        return self.peft.get_base_model()

    def list_decoder_layers(self) -> list[nn.Module]:
        """Return the decoder blocks, each of which FSDP2 shards as a unit."""
        return list(self.causal_lm.model.layers)

    def compute_hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states (B, S, D) of token ids (B, S).

        The layers are called one by one, so that each can be recomputed in the backward pass.
        """
        model = self.causal_lm.model
        x = model.embed_tokens(ids)
        angles = model.rotary_emb(x, torch.arange(ids.size(1), device=ids.device)[None])
        for layer in model.layers:  # without a mask, attention is causal
            if self._checkpoint_activations and self.training:
                x = checkpoint(layer, x, position_embeddings=angles, use_reentrant=False)
            else:
                x = layer(x, position_embeddings=angles)
        return cast("Tensor", model.norm(x))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the SUM of the cross-entropy, in nats, over all labels but ``IGNORED``.

        The loss is computed here so that wrappers (DDP, FSDP) also cover the LM head.

        Args:
            ids: (B, S), int64.
            labels: (B, S), int64; each is predicted from the tokens before its position.
        """
        hidden = self.compute_hidden(ids).flatten(0, 1)  # (B * S, D)
        next_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED).flatten()
        return self.kernels.cross_entropy(
            hidden,
            self.causal_lm.lm_head.weight,
            next_labels,
            ignored=IGNORED,
            scores_at_once=SCORES_AT_ONCE,  # maximum number of scores in memory
        )


def build_model(
    config: ModelConfig,
    recipe: LlamaRecipe,
    *,
    weights: Path | None,
    device: Device,
    sharded: bool = False,
) -> LlamaLora:
    """Return the model in train mode; only adapters require gradients.

    It is on ``device``, or on the host if ``sharded``.

    There is never a second copy of the weights in memory.

    Args:
        weights: the model folder; None: draw the weights from the recipe's seed.
        sharded: the model will be sharded: FSDP2 takes each rank's shard from the host.

    Raises:
        DataError: the weights cannot be read or do not fit ``config``.
    """
    dtype = DTYPES[recipe.weights_dtype]
    with torch.device("meta"):
        causal_lm = LlamaForCausalLM(_build_library_config(config)).to(dtype)
    # A tensor that the device has placed tells torch's name of the device.
    torch_device = torch.device("cpu") if sharded else device.place(torch.empty(0)).device
    if weights is None:
        _draw_weights(causal_lm, config, torch_device, seed=recipe.seed)
    else:
        _load_weights(causal_lm, config, torch_device, weights)
    with torch.device(torch_device):  # the rotary angles are not in the files, but computed
        causal_lm.model.rotary_emb = LlamaRotaryEmbedding(config=causal_lm.config)
    if config.tie_embeddings:
        causal_lm.lm_head.weight = causal_lm.model.embed_tokens.weight
    causal_lm.requires_grad_(False)  # before the adapters are added, which do require gradients
    model = LlamaLora(
        _add_adapters(causal_lm, recipe, torch_device),
        checkpoint_activations=recipe.checkpoint_activations,
        kernels=choose_kernels(recipe, device.torch_type),
    )
    _exclude_frozen_from_broadcast(model)
    return model.train()


def _build_library_config(config: ModelConfig) -> LlamaConfig:
    """Return the configuration of the library's model, which computes attention by SDPA."""
    # ``raw``: the keys of config.json. Training needs no key-value cache; MMLU asks for it itself.
    library_config = LlamaConfig.from_dict({**config.raw, "use_cache": False})
    library_config._attn_implementation = "sdpa"
    return library_config


def _add_adapters(causal_lm: LlamaForCausalLM, recipe: LlamaRecipe, torch_device: Any) -> PeftModel:
    """Add float32 adapters, drawn on the host so that their values do not depend on the device."""
    torch.manual_seed(recipe.seed)
    alpha: Any = recipe.lora_alpha  # peft accepts any number, its type annotation only int
    if alpha.is_integer():
        alpha = int(alpha)  # so that the configuration of the saved adapters has 32, not 32.0
    settings = LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.lora_rank,
        lora_alpha=alpha,
        lora_dropout=recipe.lora_dropout,
        target_modules=parse_targets(recipe),
        bias="none",
    )
    with torch.device("cpu"), warnings.catch_warnings():
        # peft reads a property of the library by its deprecated name.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        peft = get_peft_model(causal_lm, settings, adapter_name=ADAPTER)
    for parameter in peft.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch_device, torch.float32)
    return peft


def _set_weight(causal_lm: LlamaForCausalLM, name: str, value: Tensor) -> None:
    """Make ``value`` the frozen weight ``name``, in place of a parameter without memory."""
    module_name, _, attribute = name.rpartition(".")
    module = causal_lm.get_submodule(module_name)
    setattr(module, attribute, nn.Parameter(value, requires_grad=False))


def _draw_weights(
    causal_lm: LlamaForCausalLM, config: ModelConfig, torch_device: torch.device, *, seed: int
) -> None:
    """Draw each weight on its final device, in float32 for every stored type; norms are ones.

    The device's default generator is used, because not every device has others.
    """
    torch.manual_seed(seed)
    for name, meta_weight in _list_weights(causal_lm):
        value = torch.ones(meta_weight.shape, dtype=torch.float32, device=torch_device)
        if value.dim() > 1:
            # In 16 bits, random numbers would differ between versions of torch.
            value.normal_(std=config.initializer_range)
        _set_weight(causal_lm, name, value.to(meta_weight.dtype))


def _load_weights(
    causal_lm: LlamaForCausalLM,
    config: ModelConfig,
    torch_device: torch.device,
    folder: Path,
) -> None:
    """Read each weight directly to its final device.

    Args:
        causal_lm: the model, whose weights have no memory yet.
    """
    stored = check_weights(folder, config)
    for name, meta_weight in _list_weights(causal_lm):
        value = torch.empty(meta_weight.shape, dtype=meta_weight.dtype, device=torch_device)
        copy_stored(stored[name], value)
        _set_weight(causal_lm, name, value)


def copy_stored(stored: StoredTensor, out: Tensor) -> None:
    """Fill ``out``, of the same shape on any device, with the values of ``stored``.

    The file is opened again for each weight, so that mapped pages do not accumulate in memory.

    Raises:
        DataError: the file cannot be read, or a value is not finite in the type of ``out``.
    """
    location = f"{stored.file}, {stored.key}"
    try:
        with (
            translate_read_errors(stored.file, make_model_error),
            safe_open(stored.file, framework="pt") as reader,
        ):
            out.copy_(reader.get_tensor(stored.key))
    except SafetensorError as error:
        raise make_model_error(f"not readable as safetensors: {error}", where=location) from None
    # Both are NaN if any value is. A test of each value would need another tensor as large as
    # ``out``, whose memory the heap would keep.
    extremes = torch.stack([out.min(), out.max()])
    if not extremes.isfinite().all():
        kind = str(out.dtype).removeprefix("torch.")
        rule = f"every weight must be a finite number in {kind}"
        raise make_model_error("a number is not finite", where=location, rule=rule)


def _list_weights(causal_lm: LlamaForCausalLM) -> list[tuple[str, Tensor]]:
    """Return name and tensor of each weight; a tied embedding table occurs once.

    The tensors are on torch's meta device: they have shape and type, but no memory.
    """
    # If they are tied, the head's weight is the table itself: torch lists it once, as the table.
    return list(causal_lm.named_parameters())


def _exclude_frozen_from_broadcast(model: LlamaLora) -> None:
    """Exclude frozen weights from DDP's broadcast: every rank has read or drawn the same values."""
    frozen = [name for name, item in model.named_parameters() if not item.requires_grad]
    # A private method, but the only way that torch offers to exclude parameters.
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, frozen
    )
