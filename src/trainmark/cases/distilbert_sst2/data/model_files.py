"""The Hugging Face files in ``model/``: the sizes of the model, its tokenizer and its weights.

No torch: the launcher checks these files before anything starts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from trainmark.data import model_folder
from trainmark.data.model_folder import (
    SINGLE_FILE,
    ConfigKeys,
    ModelWeights,
    Share,
    Size,
    StoredTensor,
)
from trainmark.data.splits import Ragged
from trainmark.data.tokenizer import find_tokenizer_file, open_wordpiece, refuse_short_vocabulary
from trainmark.errors import DataError
from trainmark.train.checkpoints import list_stored_weights

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from .rows import Texts

MODEL_FIX = "copy the files of the distilbert-base-uncased model into model/"
make_model_error = partial(
    DataError,
    fix=MODEL_FIX,
    rule=(
        "model/ must be the Hugging Face folder of a DistilBERT model: config.json, weights and "
        "tokenizer"
    ),
)
NUM_LABELS = 2


class ModelConfig(ConfigKeys):
    """Sizes and dropout rates of the model."""

    unused_keys: ClassVar[frozenset[str]] = frozenset(  # of other heads, and of generation
        {"bos_token_id", "eos_token_id", "qa_dropout", "tie_weights_", "tie_word_embeddings"}
    )
    defaults: ClassVar[dict[str, Any]] = {
        "num_labels": NUM_LABELS,
        "_num_labels": NUM_LABELS,
        "problem_type": "single_label_classification",
    }

    model_type: Literal["distilbert"] = Field(description='must be "distilbert"')
    dim: Size
    n_layers: Size
    n_heads: Size
    hidden_dim: Size
    vocab_size: Size
    max_position_embeddings: Size
    pad_token_id: int = 0
    activation: Literal["gelu", "gelu_new", "relu", "silu"] = Field(
        "gelu", description='must be "gelu", "gelu_new", "relu" or "silu"'
    )
    dropout: Share = 0.1
    attention_dropout: Share = 0.1
    seq_classif_dropout: Share = 0.2
    initializer_range: float = Field(
        0.02, gt=0, lt=1e3, description="must be a number above 0 and below 1000"
    )
    sinusoidal_pos_embds: bool = Field(False, description="must be true or false")
    id2label: dict[str, Any] | None = Field(None, exclude=True)
    label2id: dict[str, Any] | None = Field(None, exclude=True)

    @property
    def num_matrix_weights(self) -> int:
        """Number of the classifier's weights in tables and linear layers, without biases."""
        table_rows = self.vocab_size + self.max_position_embeddings
        return table_rows * self.dim + self.encoder_matmul_weights + self.head_matmul_weights

    @property
    def encoder_matmul_weights(self) -> int:
        """Number of weights in the encoder's matrix products: no bias, LayerNorm or embedding."""
        # Of each layer: queries, keys, values and output; and both layers of the feed-forward part.
        return self.n_layers * (4 * self.dim**2 + 2 * self.dim * self.hidden_dim)

    @property
    def head_matmul_weights(self) -> int:
        """Number of weights in the two layers of the head: ``pre_classifier``, ``classifier``."""
        return self.dim**2 + self.dim * NUM_LABELS

    @field_validator("n_heads")
    @classmethod
    def _check_heads_divide_dim(cls, value: int, info: ValidationInfo) -> int:
        """Refuse a number of heads that does not divide ``dim``."""
        dim = info.data.get("dim", 0)  # 0 if ``dim`` is invalid, which has its own error
        if dim % value:
            raise ValueError(f"n_heads must divide dim ({dim})")
        return value

    @field_validator("id2label", "label2id")
    @classmethod
    def _check_two_labels(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Refuse the labels of another task; None: the file names none."""
        if value is not None and len(value) != NUM_LABELS:
            raise ValueError(f"SST-2 needs {NUM_LABELS} labels")
        return value

    @field_validator("pad_token_id")
    @classmethod
    def _check_in_vocabulary(cls, value: int, info: ValidationInfo) -> int:
        """Refuse a padding id that has no row in the token table."""
        # 0 if ``vocab_size`` is invalid: that error comes first, and only the first is shown.
        size = info.data.get("vocab_size", 0)
        if not 0 <= value < size:
            raise ValueError(f"the token id must be at least 0 and less than vocab_size ({size})")
        return value


def read_config(folder: Path) -> ModelConfig:
    """Read and check ``config.json`` of the model folder.

    Raises:
        DataError: the file is missing, not JSON or of another model, or a value is invalid.
    """
    return model_folder.read_config(folder, ModelConfig, make_model_error)


def open_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """Open ``tokenizer.json``, or build BERT's uncased tokenizer from ``vocab.txt``.

    Raises:
        DataError: neither file exists, it cannot be read, or it does not fit the model.
    """
    file = find_tokenizer_file(folder, make_model_error)
    tokenizer = open_wordpiece(file, make_model_error)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    pad = tokenizer.token_to_id("[PAD]")
    if size > config.vocab_size or pad != config.pad_token_id:
        raise make_model_error(
            f"the tokenizer has {size} tokens, and [PAD] has id {pad}",
            where=str(file),
            rule=(
                f"the tokenizer must match vocab_size ({config.vocab_size}) and pad_token_id "
                f"({config.pad_token_id}) in model/config.json"
            ),
        )
    # The sizes must be equal. A larger vocabulary is refused above; a smaller one, which was cut or
    # belongs to another model, is refused here with an error that says so.
    refuse_short_vocabulary(
        file,
        entries=size,
        vocab_size=config.vocab_size,
        size_source="model/config.json",
        fix=MODEL_FIX,
    )
    return tokenizer


class TokenizedTexts(NamedTuple):
    """The sentences of a split as tokens.

    Args:
        ids: token ids of each sentence, including [CLS] and [SEP].
        labels: 0 or 1, int64 (rows,).
        num_truncated: number of sentences that were too long.
    """

    ids: Ragged
    labels: NDArray[np.int64]
    num_truncated: int


def tokenize(tokenizer: Tokenizer, texts: Texts, seq_length: int) -> TokenizedTexts:
    """Return the tokens of every sentence; a longer one is truncated to ``seq_length`` tokens."""
    tokenizer.enable_truncation(seq_length)
    encodings = tokenizer.encode_batch(texts.sentences)
    return TokenizedTexts(
        ids=Ragged.from_rows([row.ids for row in encodings]),
        labels=np.array(texts.labels, np.int64),
        # ``overflowing`` has the parts that were cut off.
        num_truncated=sum(1 for row in encodings if row.overflowing),
    )


WEIGHTS = (SINGLE_FILE, "pytorch_model.bin")  # the first that exists is used
HEAD_PREFIXES = ("pre_classifier.", "classifier.")  # not in a language model: newly initialized
IGNORED_PREFIXES = (
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
)  # the masked-LM head
IGNORED_SUFFIXES = ("embeddings.position_ids",)  # a buffer, no weight


def compute_expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of the classifier."""
    dim = config.dim
    hidden = config.hidden_dim
    shapes: dict[str, tuple[int, ...]] = {
        "distilbert.embeddings.word_embeddings.weight": (config.vocab_size, dim),
        "distilbert.embeddings.position_embeddings.weight": (config.max_position_embeddings, dim),
    }

    def add_linear(name: str, *, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    def add_norm(name: str) -> None:
        shapes[f"{name}.weight"] = (dim,)
        shapes[f"{name}.bias"] = (dim,)

    add_norm("distilbert.embeddings.LayerNorm")
    for number in range(config.n_layers):
        layer = f"distilbert.transformer.layer.{number}"
        for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
            add_linear(f"{layer}.attention.{part}", inputs=dim, outputs=dim)
        add_norm(f"{layer}.sa_layer_norm")
        add_linear(f"{layer}.ffn.lin1", inputs=dim, outputs=hidden)
        add_linear(f"{layer}.ffn.lin2", inputs=hidden, outputs=dim)
        add_norm(f"{layer}.output_layer_norm")
    add_linear("pre_classifier", inputs=dim, outputs=dim)
    add_linear("classifier", inputs=dim, outputs=NUM_LABELS)
    return shapes


def match_weights(
    stored_tensors: Iterable[StoredTensor], config: ModelConfig, file: Path
) -> dict[str, StoredTensor]:
    """Return the checkpoint's tensor of each parameter, by the parameter's name.

    The two layers of the classifier's head may be missing from the checkpoint. Its masked-LM head,
    which the classifier does not use, and its position ids, which are not trained, are ignored.

    Raises:
        DataError: a tensor is unknown or has another shape than the config says, or a parameter
            is missing.
    """
    weights = ModelWeights(
        model="the DistilBERT model described in model/config.json",  # as errors name it
        shapes=compute_expected_shapes(config),
        wrappers=("distilbert.",),  # a prefix that may be missing: a bare encoder has none
        optional_prefixes=HEAD_PREFIXES,
        is_unused=lambda name: name.startswith(IGNORED_PREFIXES) or name.endswith(IGNORED_SUFFIXES),
    )
    return weights.match(stored_tensors, where=file)


def find_weights_file(folder: Path) -> Path:
    """Return the path of the weights in the model folder.

    Raises:
        DataError: there is no such file.
    """
    # The result is one file: weights in several files need an index that lists them, and
    # ``WEIGHTS`` contains no name of an index.
    (file,) = model_folder.find_weight_files(folder, WEIGHTS, make_model_error)
    return file


def check_weights(folder: Path, config: ModelConfig) -> Path:
    """Check names and shapes of the weights without reading their numbers; return the file."""
    file = find_weights_file(folder)
    # Called for its errors: the matched tensors are not needed.
    match_weights(list_stored_weights(file, make_model_error), config, file)
    return file
