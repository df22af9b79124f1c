"""The Hugging Face files in ``model/``: the sizes of a Llama, and its weights by name and shape.

Owns what ``config.json`` must say and which tensors the safetensors files must hold. No
torch: the launcher checks with it before anything starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmark.data.input_files import file_bytes, readable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

CONFIG = "config.json"
RULE = "model/ is a Hugging Face folder of a Llama: config.json, safetensors, tokenizer"
REMEDY = "copy the files of a Llama-2 model folder in the Hugging Face form into model/"
MAX_PARAMETERS = 10**12
# What config.json calls each size, and what ``ModelConfig`` does.
SIZES = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
}
# The keys of config.json that define the model; all others are the writer's own business.
ARCHITECTURE = (
    "model_type", "architectures", *SIZES, "num_key_value_heads", "rms_norm_eps",
    "rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings", "initializer_range",
    "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip
# Where Llama-2 knows one value only, given so by most folders.
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,),
    "attention_dropout": (0, None), "pretraining_tp": (1, None),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of the model; ``raw`` holds the keys of ``config.json`` that define it."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tie_embeddings: bool = False
    initializer_range: float = 0.02
    bos_id: int | None = 1
    eos_id: int | None = 2
    pad_id: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of all keys, or of all values, of a token."""
        return self.num_kv_heads * self.head_size


def _preset(hidden: int, layers: int, heads: int, intermediate: int, **more: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": intermediate, "vocab_size": 32_000,
        "max_position_embeddings": 4096, "num_key_value_heads": heads, "rms_norm_eps": 1e-5,
        "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, **more,
    }  # fmt: skip
    raw = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes}
    return config_from(raw)


def linear_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return (output, input) width of each linear layer of a block, by its name."""
    hidden, wide, keys = config.hidden_size, config.intermediate_size, config.kv_size
    return {
        "q_proj": (hidden, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden),
        "o_proj": (hidden, hidden), "gate_proj": (wide, hidden), "up_proj": (wide, hidden),
        "down_proj": (hidden, wide),
    }  # fmt: skip


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every weight of the frozen model, as the hub names them."""
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = table
    for number in range(config.num_layers):
        layer = f"model.layers.{number}"
        for name, shape in linear_shapes(config).items():
            part = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            shapes[f"{layer}.{part}.{name}.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{name}.weight"] = (config.hidden_size,)
    shapes["model.norm.weight"] = (config.hidden_size,)
    return shapes


def parameters(config: ModelConfig) -> int:
    """Return the frozen weights: Llama-2-7B has 6,738,415,616."""
    hidden = config.hidden_size
    block = sum(out * into for out, into in linear_shapes(config).values()) + 2 * hidden
    tables = 1 if config.tie_embeddings else 2
    return config.num_layers * block + tables * config.vocab_size * hidden + hidden


def lora_parameters(config: ModelConfig, rank: int, targets: Iterable[str]) -> int:
    """Return the weights of the adapters of ``rank`` in every block's ``targets``."""
    shapes = linear_shapes(config)
    return config.num_layers * sum(rank * sum(shapes[name]) for name in targets)


def read_config(folder: Path) -> ModelConfig:
    """Read and check ``config.json`` of the model folder.

    Raises:
        DataError: missing, no JSON, another model, or a value outside its range.
    """
    file = folder / CONFIG
    raw = read_json(file)
    if not isinstance(raw, dict) or raw.get("model_type") != "llama":
        kind = raw.get("model_type") if isinstance(raw, dict) else type(raw).__name__
        raise _bad(file, "model_type", kind, 'this case trains "llama"')
    return config_from(raw, file)


def config_from(raw: Mapping[str, Any], file: Path | None = None) -> ModelConfig:
    """Return the sizes that the keys of a ``config.json`` give.

    Raises:
        DataError: a value outside its range, naming ``file`` and the key.
    """
    for name in SIZES:
        if not _is_whole(raw.get(name)) or raw[name] < 1:
            raise _bad(file, name, raw.get(name), "a size is a whole number above 0")
    for name, known in FIXED.items():
        if raw.get(name, known[0]) not in known:
            raise _bad(file, name, raw[name], f"a Llama-2 has {known[0]!r}")
    config = ModelConfig(
        **{ours: raw[name] for name, ours in SIZES.items()},
        num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6, file),
        rope_theta=_rope_theta(raw, file),
        tie_embeddings=raw.get("tie_word_embeddings") or False,
        initializer_range=_number(raw, "initializer_range", 0.02, file),
        bos_id=_token(raw, "bos_token_id", 1, file),
        eos_id=_token(raw, "eos_token_id", 2, file),
        pad_id=_token(raw, "pad_token_id", None, file),
        raw={name: raw[name] for name in ARCHITECTURE if name in raw},
    )
    _refuse_sizes(config, raw, file)
    return config


def _refuse_sizes(config: ModelConfig, raw: Mapping[str, Any], file: Path | None) -> None:
    """Raise DataError for sizes that do not fit each other."""
    if not isinstance(config.tie_embeddings, bool):
        raise _bad(file, "tie_word_embeddings", config.tie_embeddings, "true or false")
    if config.hidden_size % config.num_heads or config.head_size % 2:
        rule = f"hidden_size {config.hidden_size} divides into heads of an even width"
        raise _bad(file, "num_attention_heads", config.num_heads, rule)
    if raw.get("head_dim") not in (None, config.head_size):
        raise _bad(file, "head_dim", raw["head_dim"], f"hidden_size / heads: {config.head_size}")
    kv = config.num_kv_heads
    if not _is_whole(kv) or kv < 1 or config.num_heads % kv:
        rule = f"a whole part of the {config.num_heads} heads"
        raise _bad(file, "num_key_value_heads", kv, rule)
    if parameters(config) >= MAX_PARAMETERS:
        rule = f"a model has fewer than {MAX_PARAMETERS:,} parameters"
        raise _bad(file, ", ".join(SIZES), f"{parameters(config):.1e} parameters together", rule)


def _rope_theta(raw: Mapping[str, Any], file: Path | None) -> float:
    """Return the base of the rotary angles, in the old spelling of the keys or the new."""
    scaling = raw.get("rope_scaling")
    if scaling is not None:
        raise _bad(file, "rope_scaling", scaling, "a Llama-2 has null: its angles are plain")
    new = raw.get("rope_parameters")
    if new is None:
        return _number(raw, "rope_theta", 10_000.0, file)
    if not isinstance(new, dict) or new.get("rope_type", "default") != "default":
        raise _bad(file, "rope_parameters", new, 'a Llama-2 has rope_type "default"')
    return _number(new, "rope_theta", 10_000.0, file)


def _number(raw: Mapping[str, Any], name: str, default: float, file: Path | None) -> float:
    value = raw.get(name, default)
    if not (isinstance(value, float) or _is_whole(value)) or not 0 < value < 1e9:
        raise _bad(file, name, value, "a number above 0")
    return float(value)


def _token(raw: Mapping[str, Any], name: str, default: int | None, file: Path | None) -> int | None:
    value: Any = raw.get(name, default)
    first: int | None = value[0] if isinstance(value, list) and value else value
    if name == "pad_token_id" and first == -1:  # how early folders say that there is none
        return None
    if first is not None and (not _is_whole(first) or not 0 <= first < raw["vocab_size"]):
        raise _bad(file, name, value, f"an id in [0, {raw['vocab_size']}), the vocab_size")
    return first


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(file: Path | None, name: str, value: Any, rule: str) -> DataError:
    shown = repr(value)
    if len(shown) > 80:
        shown = f"{shown[:80]}..."
    where = f"{file or CONFIG}, {name}"
    return DataError(f"{name} is {shown}", where=where, rule=rule, remedy=REMEDY)


def read_json(file: Path) -> Any:
    """Return what a JSON file of the model folder holds.

    Raises:
        DataError: it is missing, no regular file, or no JSON.
    """
    if not file.exists():
        raise DataError("no such file", where=str(file), rule=RULE, remedy=REMEDY)
    with readable(file, rule=RULE, remedy=REMEDY):
        file_bytes(file)  # refuses what is no regular file
        content = file.read_bytes()
    try:
        return json.loads(content)
    except RecursionError:
        why = "nested too deeply"
    except ValueError as error:
        why = str(error)
    raise DataError(f"not readable as JSON: {why}", where=str(file), rule=RULE, remedy=REMEDY)


# Published shapes, and small ones of the same kind. On a frozen random base only adapters
# learn, so the tiny one's weights are drawn wide enough for sharp scores.
PRESETS: dict[str, ModelConfig] = {
    "tiny": _preset(
        64, 2, 4, 172, vocab_size=256, max_position_embeddings=2048, initializer_range=0.2
    ),
    "1b": _preset(2048, 22, 32, 5632, num_key_value_heads=4, max_position_embeddings=2048),
    "7b": _preset(4096, 32, 32, 11_008),
    "7b-2layers": _preset(4096, 2, 32, 11_008),
    "13b": _preset(5120, 40, 40, 13_824),
}
