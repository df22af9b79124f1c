"""The Hugging Face files in ``model/``: the sizes of a Llama, its weights and its tokenizer.

No torch: the launcher checks these files before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainmark.data import model_folder, tokenizer
from trainmark.data.model_folder import (
    INDEX_FILE,
    SINGLE_FILE,
    ConfigKeys,
    ModelWeights,
    Size,
    StoredTensor,
    list_folder_tensors,
    read_json_object,
)
from trainmark.data.tokenizer import (
    FAST_FILE,
    SETTINGS_FILES,
    find_tokenizer_file,
    read_special_token,
    refuse_short_vocabulary,
)
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

make_model_error = partial(
    DataError,
    rule=(
        "model/ must be the Hugging Face folder of a Llama model: config.json, safetensors and "
        "tokenizer"
    ),
    fix="copy the files of a Llama 2 model in Hugging Face format into model/",
)
ABOVE_0 = "a number above 0"
Positive = Annotated[float, Field(gt=0, lt=1e9, description=ABOVE_0)]


class ModelConfig(ConfigKeys):
    """Sizes of the model. Keys with only one valid value for Llama-2 are checked, not stored."""

    # ``pretraining_tp`` slices matrices without changing the model; newer libraries ignore it.
    unused_keys: ClassVar[frozenset[str]] = frozenset({"pretraining_tp", "id2label", "label2id"})
    defaults: ClassVar[dict[str, Any]] = {
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
    }

    model_type: Literal["llama"] = Field(description='must be "llama"')
    architectures: list[str] | None = None
    vocab_size: Size
    hidden_size: Size
    num_layers: Size = Field(alias="num_hidden_layers")
    num_heads: Size = Field(alias="num_attention_heads")
    key_value_heads: Size | None = Field(None, alias="num_key_value_heads")
    head_dim: Size | None = Field(None, exclude=True)
    intermediate_size: Size
    max_positions: Size = Field(alias="max_position_embeddings")
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive = 10_000.0
    rope_parameters: dict[str, Any] | None = None
    tie_embeddings: bool | None = Field(
        False, alias="tie_word_embeddings", description="must be true or false"
    )
    initializer_range: Positive = 0.02
    bos_token_id: int | list[int] | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | list[int] | None = None
    rope_scaling: None = Field(
        None, exclude=True, description="must be null: Llama-2 does not scale its rotary angles"
    )

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads; several query heads may share one."""
        # None: the file does not give it, and each query head has its own.
        return self.key_value_heads or self.num_heads

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of all keys, or all values, of a token."""
        return self.num_kv_heads * self.head_size

    @field_validator("rope_parameters")
    @classmethod
    def _check_rope_parameters(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Refuse all kinds of rotary angles but the unscaled ones."""
        # ``rope_theta``, the base of the angles, may have any value; ``_check_sizes`` compares it
        # with the field of this name.
        angles = value or {}
        unknown_keys = sorted(angles.keys() - {"rope_type", "rope_theta"})
        if unknown_keys:
            raise ValueError(f"only rope_type and rope_theta are supported, not {unknown_keys[0]}")
        if angles.get("rope_type", "default") != "default":
            raise ValueError('rope_type must be "default" for a Llama 2 model')
        return value

    @field_validator("head_dim")
    @classmethod
    def _check_head_dim(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Refuse another width than an equal share of ``hidden_size``."""
        hidden = info.data.get("hidden_size")
        heads = info.data.get("num_heads")
        if value is None or hidden is None or heads is None:
            # Nothing to compare: a size that is itself invalid is None here, and has its own error.
            return value
        if value * heads != hidden:
            raise ValueError(
                f"head_dim must be hidden_size / num_attention_heads ({hidden} / {heads})"
            )
        return value

    @field_validator("bos_token_id", "eos_token_id", "pad_token_id")
    @classmethod
    def _check_token_id(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse ids outside the vocabulary. A field has one id, a list of ids or None: no id."""
        # 0 if ``vocab_size`` is invalid: that error comes first, and only the first is shown.
        size = info.data.get("vocab_size", 0)
        ids = value if isinstance(value, list) else [value]
        # Early model folders have -1 if there is no padding token.
        if info.field_name == "pad_token_id" and ids == [-1]:
            return None
        if not all(number is None or 0 <= number < size for number in ids):
            raise ValueError(f"every token id must be at least 0 and less than vocab_size ({size})")
        return value

    @model_validator(mode="after")
    def _check_sizes(self) -> ModelConfig:
        """Refuse sizes that contradict each other."""
        hidden = self.hidden_size
        heads = self.num_heads
        # Newer files have ``rope_theta`` in ``rope_parameters``, older ones as a field of its own.
        theta = (self.rope_parameters or {}).get("rope_theta", self.rope_theta)
        if "rope_theta" in self.model_fields_set and theta != self.rope_theta:
            rule = f"the value must equal rope_theta in rope_parameters ({theta})"
            raise ValueError(f"rope_theta is {self.rope_theta}; {rule}")
        # The width must be even, because rotary embeddings rotate pairs of numbers.
        if hidden % heads or hidden // heads % 2:
            rule = f"hidden_size / num_attention_heads ({hidden} / {heads}) must be an even integer"
            raise ValueError(f"num_attention_heads is {heads}; {rule}")
        if heads % self.num_kv_heads:
            rule = f"num_attention_heads ({heads}) must be a multiple of num_key_value_heads"
            raise ValueError(f"num_key_value_heads is {self.num_kv_heads}; {rule}")
        return self


def _make_preset(
    hidden: int, layers: int, heads: int, intermediate: int, **other_keys: Any
) -> ModelConfig:
    """Return a config with the given sizes and Llama-2's other values.

    Args:
        intermediate: width of the feed-forward layers.
        other_keys: keys of ``config.json`` that differ from those of Llama-2.
    """
    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "vocab_size": 32_000,
        "max_position_embeddings": 4096,
        "num_key_value_heads": heads,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **other_keys,
    }
    return ModelConfig.model_validate(
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes}
    )


def compute_linear_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the (output, input) width of each linear layer of a block, by name."""
    hidden = config.hidden_size
    kv_size = config.kv_size
    ffn_size = config.intermediate_size
    return {
        "q_proj": (hidden, hidden),
        "k_proj": (kv_size, hidden),
        "v_proj": (kv_size, hidden),
        "o_proj": (hidden, hidden),
        "gate_proj": (ffn_size, hidden),
        "up_proj": (ffn_size, hidden),
        "down_proj": (hidden, ffn_size),
    }


def compute_expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of the frozen model, by its name on the hub."""
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = table
    for number in range(config.num_layers):
        layer = f"model.layers.{number}"
        for name, shape in compute_linear_shapes(config).items():
            is_attention = name in ("q_proj", "k_proj", "v_proj", "o_proj")
            module = "self_attn" if is_attention else "mlp"
            shapes[f"{layer}.{module}.{name}.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{name}.weight"] = (config.hidden_size,)
    shapes["model.norm.weight"] = (config.hidden_size,)
    return shapes


def count_parameters(config: ModelConfig) -> int:
    """Return the number of frozen weights: Llama-2-7B has 6,738,415,616."""
    hidden = config.hidden_size
    shapes = compute_linear_shapes(config).values()
    matrices = sum(outputs * inputs for outputs, inputs in shapes)  # of a block
    norms = 2 * hidden  # of a block
    num_tables = 1 if config.tie_embeddings else 2  # embedding and head; tied, they share one
    tables = num_tables * config.vocab_size * hidden
    last_norm = hidden
    return config.num_layers * (matrices + norms) + tables + last_norm


def count_lora_parameters(config: ModelConfig, rank: int, targets: Iterable[str]) -> int:
    """Return the number of weights of adapters of ``rank`` in every block's ``targets``.

    An adapter of a layer (output, input) has two matrices: (output, rank) and (rank, input).
    """
    shapes = compute_linear_shapes(config)
    block_weights = 0
    for name in targets:
        outputs, inputs = shapes[name]
        block_weights += rank * (outputs + inputs)
    return config.num_layers * block_weights


def read_config(folder: Path) -> ModelConfig:
    """Read and check ``config.json`` of the model folder.

    Raises:
        DataError: the file is missing, not JSON or of another model, or a value is invalid.
    """
    return model_folder.read_config(folder, ModelConfig, make_model_error)


def find_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of the model folder.

    Raises:
        DataError: no weights file exists, or the index names another kind of file.
    """
    return model_folder.find_weight_files(folder, (SINGLE_FILE, INDEX_FILE), make_model_error)


def check_weights(folder: Path, config: ModelConfig) -> dict[str, StoredTensor]:
    """Return the stored tensor of each weight of the model, by its name on the hub.

    Raises:
        DataError: a file is missing or damaged, or a weight is missing, unknown or has another
            shape than the config says.
    """

    def is_unused(name: str) -> bool:
        """Tell whether a file may have a tensor ``name`` that the model does not need."""
        if name == "lm_head.weight":
            return bool(config.tie_embeddings)  # then the embedding table is used instead
        return name.endswith(".rotary_emb.inv_freq")  # computed from the sizes

    weights = ModelWeights(
        model="the Llama model described in model/config.json",
        shapes=compute_expected_shapes(config),
        is_unused=is_unused,
    )
    return weights.match(list_folder_tensors(folder, make_model_error), where=folder)


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """An open tokenizer.

    Args:
        encode: turns texts into ids without special tokens; a special token that is spelled out in
            a text is encoded as ordinary characters.
        file: the tokenizer's file.
        begin: ids before every text: the beginning token, or nothing.
        end_id: id of the token that ends a document.
    """

    encode: Callable[[list[str]], list[list[int]]]
    file: Path
    begin: tuple[int, ...]
    end_id: int

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts that a model continues, without an end token."""
        return [[*self.begin, *ids] for ids in self.encode(list(texts))]

    def encode_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of complete texts, with the end token after each."""
        return [[*ids, self.end_id] for ids in self.encode_prompts(texts)]


def list_tokenizer_files(folder: Path) -> list[Path]:
    """Return the existing files of the tokenizer in ``folder``."""
    files = [folder / name for name in (FAST_FILE, *SETTINGS_FILES)]
    return [file for file in files if file.is_file()]


def open_tokenizer(folder: Path, *, vocab_size: int) -> TextTokenizer:
    """Open the tokenizer in ``folder``.

    Args:
        vocab_size: rows of the model's embedding; the tokenizer must have an entry for each of
            them, and no larger id.

    Raises:
        DataError: the tokenizer is missing or damaged, its ids do not fit ``vocab_size``, or it has
            no end token.
    """
    file = find_tokenizer_file(folder, make_model_error, (FAST_FILE,))
    library = tokenizer.open_tokenizer(file, make_model_error)
    # Refuse settings in tokenizer_config.json that ``library`` does not follow.
    tokenizer.refuse_conflicting_settings(file, library, make_model_error)
    vocab = library.get_vocab(with_added_tokens=True)
    largest_id = max(vocab.values(), default=-1)
    if largest_id >= vocab_size:
        raise DataError(
            f"the largest token id is {largest_id}",
            where=str(file),
            rule=f"token ids must be less than vocab_size in model/config.json ({vocab_size})",
            fix="put the tokenizer and the config.json of the same model into model/",
        )
    # A vocabulary with fewer tokens is incomplete or that of another model. Training would not
    # notice it.
    refuse_short_vocabulary(
        file,
        entries=len(vocab),
        vocab_size=vocab_size,
        size_source="model/config.json",
        fix=(
            "put the tokenizer of this model into model/; if the model's embedding table is "
            f"padded, add unused tokens to the tokenizer until it has {vocab_size} entries"
        ),
    )
    # If no setting names the end token, it is Llama-2's.
    end_id = vocab.get(read_special_token(folder, "eos_token", make_model_error) or "</s>")
    if end_id is None:
        raise DataError(
            "the tokenizer has no end-of-sequence token",
            where=str(file),
            rule="every dialogue must end with an end-of-sequence token",
            fix=f"set eos_token in {SETTINGS_FILES[0]}",
        )

    def encode(texts: list[str]) -> list[list[int]]:
        # Without special tokens: ``TextTokenizer`` adds them itself.
        return [item.ids for item in library.encode_batch(texts, add_special_tokens=False)]

    return TextTokenizer(
        encode,
        file,
        begin=_find_begin_ids(folder, library),
        end_id=end_id,
    )


def _find_begin_ids(folder: Path, library: Any) -> tuple[int, ...]:
    """Return the ids to put before every text: that of the beginning token, or none.

    Args:
        library: the open tokenizer of the library.
    """
    # If no setting names the token, it is Llama-2's.
    begin_token = read_special_token(folder, "bos_token", make_model_error) or "<s>"
    begin_id = library.token_to_id(begin_token)
    if begin_id is None:
        return ()
    adds_begin = None
    settings = folder / SETTINGS_FILES[0]  # ``tokenizer_config.json``
    if settings.is_file():
        adds_begin = read_json_object(settings, make_model_error).get("add_bos_token")
    # If the settings do not say it, the template in tokenizer.json decides: does it put the token
    # before an empty text?
    if adds_begin is None:
        adds_begin = library.encode("").ids[:1] == [begin_id]
    return (begin_id,) if adds_begin else ()


# Published sizes, and small ones of the same architecture. With a frozen random base, only adapters
# learn, so the tiny model's weights have a variance that allows confident predictions.
PRESETS: dict[str, ModelConfig] = {
    "tiny": _make_preset(
        hidden=64,
        layers=2,
        heads=4,
        intermediate=172,
        vocab_size=256,
        max_position_embeddings=2048,
        initializer_range=0.2,
    ),
    "1b": _make_preset(
        hidden=2048,
        layers=22,
        heads=32,
        intermediate=5632,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    ),
    "7b": _make_preset(hidden=4096, layers=32, heads=32, intermediate=11_008),
    "7b-2layers": _make_preset(hidden=4096, layers=2, heads=32, intermediate=11_008),
    "13b": _make_preset(hidden=5120, layers=40, heads=40, intermediate=13_824),
}
