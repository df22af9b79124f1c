"""The Hugging Face files in ``model/``: the sizes of the model and its tokenizer.

Owns what ``config.json`` must say and how sentences become ids. No torch: the launcher
checks with it before anything starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.data.vocabulary import refuse_short
from trainmark.data.wordpiece import FILES, open_wordpiece
from trainmark.errors import DataError

from .columns import refuse_empty_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tokenizers import Tokenizer

    from .tokens import TokenRows

CONFIG = "config.json"
TOKENIZERS = FILES  # of the tokenizer; the first that exists is used
MODEL_REMEDY = "put the files of the distilbert-base-uncased model folder into model/"
NUM_LABELS = 2
MAX_PARAMETERS = 10**10
# Names that transformers' table of activations has and a DistilBERT can use.
ACTIVATIONS = (
    "gelu", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "leaky_relu", "mish",
    "quick_gelu", "relu", "relu6", "sigmoid", "silu", "swish", "tanh",
)  # fmt: skip
RATES = ("dropout", "attention_dropout", "seq_classif_dropout")
# The keys of config.json that define the model; all others are the writer's own business.
ARCHITECTURE = (
    "n_layers", "n_heads", "dim", "hidden_dim", "vocab_size", "max_position_embeddings",
    "pad_token_id", "activation", *RATES, "initializer_range", "sinusoidal_pos_embds",
)  # fmt: skip
SIZES = ("n_layers", "n_heads", "dim", "hidden_dim", "vocab_size", "max_position_embeddings")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of the model; ``raw`` holds the keys of ``config.json`` that define it."""

    n_layers: int
    n_heads: int
    dim: int
    hidden_dim: int
    vocab_size: int
    max_position_embeddings: int
    pad_token_id: int
    raw: Mapping[str, Any]

    @property
    def parameters(self) -> int:
        """Weights of the whole classifier, biases and LayerNorms left out."""
        rows = self.vocab_size + self.max_position_embeddings
        return rows * self.dim + self.encoder_matmul_weights + self.head_matmul_weights

    @property
    def encoder_matmul_weights(self) -> int:
        """Weights of the encoder's matrix products: no bias, LayerNorm or embedding."""
        return self.n_layers * (4 * self.dim**2 + 2 * self.dim * self.hidden_dim)

    @property
    def head_matmul_weights(self) -> int:
        """Weights of the two head layers, which see the first token only."""
        return self.dim**2 + self.dim * NUM_LABELS


def first_existing(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the first of ``names`` that is a file in ``folder``."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_config(folder: Path) -> ModelConfig:
    """Read and check ``config.json`` of the model folder.

    Raises:
        DataError: missing, no JSON, another model, or a value outside its range.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise DataError("no such file", where=str(file), remedy=MODEL_REMEDY)
    try:
        raw = json.loads(file.read_bytes())
    except ValueError as error:
        raise DataError(
            f"not readable as JSON: {error}", where=str(file), remedy=MODEL_REMEDY
        ) from None
    except RecursionError:
        raise DataError(
            "not readable as JSON: nested too deeply", where=str(file), remedy=MODEL_REMEDY
        ) from None
    if not isinstance(raw, dict) or raw.get("model_type") != "distilbert":
        kind = raw.get("model_type") if isinstance(raw, dict) else type(raw).__name__
        raise DataError(
            f"model_type is {kind!r}",
            where=f"{file}, model_type",
            rule='this case trains "distilbert"',
            remedy=MODEL_REMEDY,
        )
    for name in SIZES:
        value: Any = raw.get(name)
        if not _is_whole(value) or value < 1:
            raise _bad_value(file, name, value, "a size is a whole number above 0")
    _refuse_values(file, raw)
    config = ModelConfig(
        **{name: raw[name] for name in SIZES},
        pad_token_id=raw.get("pad_token_id", 0),
        raw={name: raw[name] for name in ARCHITECTURE if name in raw},
    )
    if config.parameters >= MAX_PARAMETERS:
        raise DataError(
            f"the sizes make a model of {config.parameters:.1e} parameters",
            where=f"{file}, {', '.join(SIZES)}",
            rule=f"a model has fewer than {MAX_PARAMETERS:,} parameters",
            remedy=MODEL_REMEDY,
        )
    if config.dim % config.n_heads:
        raise DataError(
            f"dim {config.dim} does not divide into {config.n_heads} heads",
            where=f"{file}, n_heads",
            rule="dim is a multiple of n_heads",
            remedy=MODEL_REMEDY,
        )
    return config


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _bad_value(file: Path, name: str, value: Any, rule: str) -> DataError:
    shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:80]}..."
    return DataError(f"{name} is {shown}", where=f"{file}, {name}", rule=rule, remedy=MODEL_REMEDY)


def _refuse_values(file: Path, raw: Mapping[str, Any]) -> None:
    """Raise DataError for the first key, other than a size, that cannot be trained with."""
    pad, vocab_size = raw.get("pad_token_id", 0), raw["vocab_size"]
    if not _is_whole(pad) or not 0 <= pad < vocab_size:
        rule = f"a whole number in [0, {vocab_size}), the vocab_size"
        raise _bad_value(file, "pad_token_id", pad, rule)
    if raw.get("activation", "gelu") not in ACTIVATIONS:
        raise _bad_value(file, "activation", raw["activation"], f"one of {', '.join(ACTIVATIONS)}")
    for name in RATES:
        value = raw.get(name, 0.0)
        if not _is_number(value) or not 0 <= value < 1:
            raise _bad_value(file, name, value, "a number in [0, 1)")
    scale = raw.get("initializer_range", 0.02)
    if not _is_number(scale) or not 0 < scale < 1e3:
        raise _bad_value(file, "initializer_range", scale, "a number above 0, below 1000")
    if not isinstance(raw.get("sinusoidal_pos_embds", False), bool):
        name = "sinusoidal_pos_embds"
        raise _bad_value(file, name, raw[name], "true or false")
    if raw.get("pruned_heads"):
        raise _bad_value(file, "pruned_heads", raw["pruned_heads"], "all heads are trained")
    for name in ("return_dict", "use_return_dict"):
        if raw.get(name, True) is not True:
            raise _bad_value(file, name, raw[name], "true, or left out")


def refuse_long(config: ModelConfig, seq_length: int, folder: Path) -> None:
    """Raise DataError when the model has no position for the last token of a sequence."""
    if seq_length > config.max_position_embeddings:
        raise DataError(
            f"the recipe's seq_length is {seq_length}",
            where=f"{folder / CONFIG}, max_position_embeddings",
            rule=f"the model has {config.max_position_embeddings} positions",
            remedy=f"add seq={config.max_position_embeddings}, or use another model folder",
        )


def open_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """Open ``tokenizer.json``, or build BERT's uncased tokenizer from ``vocab.txt``.

    Raises:
        DataError: neither is there, it cannot be read, or it does not fit the model.
    """
    file = first_existing(folder, TOKENIZERS)
    if file is None:
        raise DataError(
            f"no {' and no '.join(TOKENIZERS)}",
            where=str(folder),
            rule="sentences are tokenised with the model's own tokenizer",
            remedy=MODEL_REMEDY,
        )
    refuse_empty_file(file)
    tokenizer = open_wordpiece(file, remedy=MODEL_REMEDY)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    pad = tokenizer.token_to_id("[PAD]")
    if size > config.vocab_size or pad != config.pad_token_id:
        raise DataError(
            f"{size} tokens, [PAD] is {pad}",
            where=str(file),
            rule=f"model/config.json has vocab_size {config.vocab_size} "
            f"and pad_token_id {config.pad_token_id}",
            remedy=MODEL_REMEDY,
        )
    refuse_short(
        file, entries=size, vocab_size=config.vocab_size, of="model/config.json",
        remedy=MODEL_REMEDY,
    )  # fmt: skip
    return tokenizer


def tokenize(
    tokenizer: Tokenizer, sentences: list[str], labels: list[int], seq_length: int
) -> TokenRows:
    """Return ids of every sentence between [CLS] and [SEP], cut to ``seq_length`` tokens."""
    import numpy as np

    from .tokens import TokenRows

    tokenizer.enable_truncation(seq_length)
    encodings = tokenizer.encode_batch(sentences)
    tokens = np.fromiter((item for row in encodings for item in row.ids), np.int32)
    truncated = sum(1 for row in encodings if row.overflowing)
    return TokenRows.of(tokens, [len(row.ids) for row in encodings], labels, truncated)
