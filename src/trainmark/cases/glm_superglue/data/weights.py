"""A checkpoint's files: where a folder keeps them, and whether they fit a model; no torch.

Owns the original's folder layout and parameter names, and the shape each has in a model of
given sizes, so that the launcher refuses what a rank could not load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data.model_folder import ModelWeights, StoredTensor
from trainmark.data.splits import readable, refuse_unreadable
from trainmark.errors import DataError
from trainmark.train.checkpoints import stored_weights

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ..case import GlmShape

LATEST = "latest_checkpointed_iteration.txt"
ORIGINAL = "mp_rank_00_model_states.pt"
RULE = f"a checkpoint is a folder with {LATEST} and <iteration>/{ORIGINAL}"
REMEDY = "put GLM-large's checkpoint there, or add init=random, which is labelled performance-only"
FITTING = "set the recipe's sizes to the checkpoint's, or use the checkpoint of such a model"
WORDS = "word_embeddings.weight"
POSITIONS = (
    "transformer.position_embeddings.weight",
    "transformer.block_position_embeddings.weight",
)
LAYERS = "transformer.layers."


def find_checkpoint(folder: Path) -> Path:
    """Return the file with the weights, in ``folder`` or in its only folder that has some.

    Raises:
        DataError: there is no checkpoint, several, or one split over several files.
    """
    found = [place for place in (folder / LATEST, *folder.glob(f"*/{LATEST}")) if place.exists()]
    if len(found) != 1:
        what = f"{len(found) or 'no'} checkpoints"
        raise DataError(what, where=str(folder), rule=RULE, remedy=REMEDY)
    with readable(found[0], rule=RULE, remedy=REMEDY):
        file = found[0].parent / found[0].read_text(errors="replace").strip() / ORIGINAL
    others = sorted(item.name for item in file.parent.glob("mp_rank_*_model_states.pt"))
    if others[1:]:
        raise DataError(
            f"the weights are cut over {', '.join(others)}", where=str(file.parent),
            rule=f"they lie in {ORIGINAL} alone",
            remedy="merge the checkpoint to model parallel size 1 with the tools of its origin",
        )  # fmt: skip
    refuse_unreadable(file, rule=RULE, remedy=REMEDY)
    return file


def expected_shapes(shape: GlmShape) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of a model of these sizes."""
    hidden_size = shape.hidden_size
    shapes: dict[str, tuple[int, ...]] = {WORDS: (shape.vocab_size, hidden_size)}
    shapes |= dict.fromkeys(POSITIONS, (shape.max_positions + 1, hidden_size))

    def add(name: str, out: int, into: int | None = None) -> None:
        shapes[f"{name}.weight"] = (out,) if into is None else (out, into)
        shapes[f"{name}.bias"] = (out,)

    for number in range(shape.num_layers):
        layer = f"{LAYERS}{number}"
        add(f"{layer}.input_layernorm", hidden_size)
        add(f"{layer}.attention.query_key_value", 3 * hidden_size, hidden_size)
        add(f"{layer}.attention.dense", hidden_size, hidden_size)
        add(f"{layer}.post_attention_layernorm", hidden_size)
        add(f"{layer}.mlp.dense_h_to_4h", 4 * hidden_size, hidden_size)
        add(f"{layer}.mlp.dense_4h_to_h", hidden_size, 4 * hidden_size)
    add("transformer.final_layernorm", hidden_size)
    return shapes


def match_weights(
    found: Iterable[StoredTensor], shapes: dict[str, tuple[int, ...]], file: Path
) -> dict[str, StoredTensor]:
    """Return the stored tensor of every parameter, by the parameter's name.

    A checkpoint may hold more, and position tables of another length, but no further layers.

    Raises:
        DataError: a weight is missing, there twice, of another shape or no floating-point
            numbers, or there are more layers.
    """
    weights = ModelWeights(
        model="a GLM of the recipe's sizes", shapes=shapes, remedy=FITTING,
        wrappers=("module.", "model."), any_rows=POSITIONS,
        unused=lambda name: not name.startswith(LAYERS),
    )  # fmt: skip
    return weights.match(found, where=file)


def check_weights(folder: Path, shape: GlmShape) -> Path:
    """Check names and shapes of a folder's checkpoint; return its file. No number is read.

    Raises:
        DataError: none is found, it is not readable, or it holds the weights of another model.
    """
    file = find_checkpoint(folder)
    match_weights(stored_weights(file, rule=RULE, remedy=REMEDY), expected_shapes(shape), file)
    return file
