"""Match the keys of a checkpoint with parameters; no torch, so that the launcher can check.

Owns the names and shapes that a DistilBERT classifier of a given size has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data.checkpoint_shapes import SINGLE, ModelWeights, StoredTensor, match
from trainmark.errors import DataError
from trainmark.train.checkpoints import stored_weights

from .model_files import MODEL_REMEDY, MODEL_RULE, NUM_LABELS, first_existing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .model_files import ModelConfig

WEIGHTS = (SINGLE, "pytorch_model.bin")  # the first that exists is used
HEADS = ("pre_classifier.", "classifier.")  # not in a language model: newly initialized
IGNORED = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.")  # masked-LM head
IGNORED_BUFFERS = ("embeddings.position_ids",)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of the classifier."""
    dim, hidden = config.dim, config.hidden_dim
    shapes: dict[str, tuple[int, ...]] = {
        "distilbert.embeddings.word_embeddings.weight": (config.vocab_size, dim),
        "distilbert.embeddings.position_embeddings.weight": (config.max_position_embeddings, dim),
    }

    def linear(name: str, out: int, into: int) -> None:
        shapes.update({f"{name}.weight": (out, into), f"{name}.bias": (out,)})

    def norm(name: str) -> None:
        shapes.update({f"{name}.weight": (dim,), f"{name}.bias": (dim,)})

    norm("distilbert.embeddings.LayerNorm")
    for number in range(config.n_layers):
        layer = f"distilbert.transformer.layer.{number}"
        for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
            linear(f"{layer}.attention.{part}", dim, dim)
        norm(f"{layer}.sa_layer_norm")
        linear(f"{layer}.ffn.lin1", hidden, dim)
        linear(f"{layer}.ffn.lin2", dim, hidden)
        norm(f"{layer}.output_layer_norm")
    linear("pre_classifier", dim, dim)
    linear("classifier", NUM_LABELS, dim)
    return shapes


def match_weights(
    found: Iterable[StoredTensor], config: ModelConfig, file: Path
) -> dict[str, StoredTensor]:
    """Return the checkpoint's tensor of each parameter, by the parameter's name.

    The classifier's own layers may be missing; the masked-LM head is ignored.

    Raises:
        DataError: a tensor is unknown or has another shape than in the config, or a parameter
            is missing.
    """
    weights = ModelWeights(
        model="the DistilBERT of model/config.json",
        shapes=expected_shapes(config),
        rule=MODEL_RULE,
        remedy=MODEL_REMEDY,
        wrappers=("distilbert.",),  # a bare encoder has no prefix
        optional=HEADS,
        unused=lambda name: name.startswith(IGNORED) or name.endswith(IGNORED_BUFFERS),
    )
    return match(found, weights, where=file)


def weights_file(folder: Path) -> Path:
    """Return the weights of the model folder.

    Raises:
        DataError: no weights file exists.
    """
    file = first_existing(folder, WEIGHTS)
    if file is None:
        raise DataError(
            f"no {' and no '.join(WEIGHTS)}",
            where=str(folder),
            rule="init=pretrained starts from the model's weights",
            remedy=f"{MODEL_REMEDY}, or add init=random, which is labelled performance-only",
        )
    return file


def check_weights(folder: Path, config: ModelConfig) -> Path:
    """Check names and shapes of the weights without reading their numbers; return the file."""
    file = weights_file(folder)
    match_weights(stored_weights(file, rule=MODEL_RULE, remedy=MODEL_REMEDY), config, file)
    return file
