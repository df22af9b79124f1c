"""Which key of a checkpoint fits which parameter; no torch, so that the launcher can check.

Owns the names and shapes that a DistilBERT classifier of a given size has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import DataError

from .columns import refuse_empty_file
from .model_files import MODEL_REMEDY, NUM_LABELS, first_existing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .model_files import ModelConfig

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that exists is used
HEADS = ("pre_classifier.", "classifier.")  # absent from a language model: start fresh
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
    found: Mapping[str, tuple[int, ...]], config: ModelConfig, file: Path
) -> dict[str, str]:
    """Return the checkpoint key of every parameter that ``found`` holds.

    The classifier's own layers may be absent; the masked-LM head is left out.

    Raises:
        DataError: a key that is missing, unknown, or of another shape than the config's.
    """
    expected = expected_shapes(config)
    matched: dict[str, str] = {}
    for key, shape in found.items():
        if key.startswith(IGNORED) or key.endswith(IGNORED_BUFFERS):
            continue
        name = key if key in expected else f"distilbert.{key}"  # a bare encoder has no prefix
        if name not in expected:
            raise DataError(
                f"unknown weight {key}",
                where=f"{file}, {key}",
                rule=f"a DistilBERT of {config.n_layers} layers has no such weight",
                remedy=MODEL_REMEDY,
            )
        if tuple(shape) != expected[name]:
            raise DataError(
                f"{key} has shape {tuple(shape)}",
                where=f"{file}, {key}",
                rule=f"model/config.json makes it {expected[name]}",
                remedy="use the config.json and the weights of one and the same model",
            )
        matched[name] = key
    missing = [name for name in expected if name not in matched and not name.startswith(HEADS)]
    if missing:
        raise DataError(
            f"no weight {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            where=f"{file}, {missing[0]}",
            rule="only the classifier's own layers may be absent",
            remedy=MODEL_REMEDY,
        )
    return matched


def weights_file(folder: Path) -> Path:
    """Return the weights of the model folder.

    Raises:
        DataError: there are none.
    """
    file = first_existing(folder, WEIGHTS)
    if file is None:
        raise DataError(
            f"no {' and no '.join(WEIGHTS)}",
            where=str(folder),
            rule="init=pretrained starts from the model's weights",
            remedy=f"{MODEL_REMEDY}, or add init=random, which is labelled performance-only",
        )
    refuse_empty_file(file)
    return file


def check_weights(folder: Path, config: ModelConfig) -> Path:
    """Check names and shapes of ``model.safetensors`` without reading its numbers.

    ``pytorch_model.bin`` cannot be looked into without torch: the job checks it.
    """
    file = weights_file(folder)
    if file.suffix == ".safetensors":
        match_weights(safetensors_shapes(file), config, file)
    return file


def safetensors_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by key."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            return {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"not readable as safetensors: {error}", where=str(file), remedy=MODEL_REMEDY
        ) from None
