"""A checkpoint's files: where a folder keeps them, and whether they fit a model; no torch.

Owns the original's folder layout and parameter names, and the shape each has in a model of
given sizes, so that the launcher refuses what a rank could not load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data.checkpoint_shapes import ModelWeights, StoredTensor, match
from trainmark.data.input_files import readable
from trainmark.data.split_layout import refuse_unreadable
from trainmark.errors import DataError
from trainmark.train.checkpoints import stored_weights

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LATEST = "latest_checkpointed_iteration.txt"
ORIGINAL = "mp_rank_00_model_states.pt"
EXPORTED = "model.safetensors"
RULE = f"a checkpoint is a folder with {EXPORTED}, or with {LATEST} and <iteration>/{ORIGINAL}"
REMEDY = "put GLM-large's checkpoint there, or add init=random, which is labelled performance-only"
_WORD_BYTES = 100  # the longest that such a folder is called
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
    with readable(folder, rule=RULE, remedy=REMEDY):
        inner = sorted(item for item in folder.iterdir() if item.is_dir())
    places = [item for item in (folder, *inner) if _marks(item)]
    if not places:
        raise DataError("no checkpoint", where=str(folder), rule=RULE, remedy=REMEDY)
    if places[0] != folder and len(places) > 1:
        names = ", ".join(item.name for item in places)
        raise DataError(
            f"{len(places)} checkpoints: {names}",
            where=str(folder),
            rule="one run starts from one checkpoint",
            remedy="leave one of them there",
        )
    exported = places[0] / EXPORTED
    file = exported if exported.exists() else _latest(places[0])
    refuse_unreadable(file, rule=RULE, remedy=REMEDY)
    return file


def _marks(folder: Path) -> bool:
    return any((folder / name).exists() for name in (EXPORTED, LATEST))


def _latest(folder: Path) -> Path:
    """Return the file that the iteration file points to."""
    pointer = folder / LATEST
    refuse_unreadable(pointer, rule=RULE, remedy=REMEDY)
    with pointer.open("rb") as stream:
        word = stream.read(_WORD_BYTES + 1).decode(errors="replace").strip()
    if len(word) > _WORD_BYTES or not word.replace("_", "").isalnum():
        raise DataError(
            f"it says {word[:40]!r}",
            where=str(pointer),
            rule=f"it holds the name of the folder beside it with {ORIGINAL}",
            remedy=REMEDY,
        )
    others = sorted(item.name for item in (folder / word).glob("mp_rank_*_model_states.pt"))
    if others and others != [ORIGINAL]:
        raise DataError(
            f"the weights are cut over {', '.join(others)}",
            where=str(folder / word),
            rule=f"they lie in {ORIGINAL} alone",
            remedy="merge the checkpoint to model parallel size 1 with the tools of its origin",
        )
    return folder / word / ORIGINAL


def expected_shapes(
    *, num_layers: int, hidden_size: int, vocab_size: int, max_positions: int
) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of a model of these sizes."""
    shapes: dict[str, tuple[int, ...]] = {WORDS: (vocab_size, hidden_size)}
    shapes |= dict.fromkeys(POSITIONS, (max_positions + 1, hidden_size))

    def add(name: str, out: int, into: int | None = None) -> None:
        shapes[f"{name}.weight"] = (out,) if into is None else (out, into)
        shapes[f"{name}.bias"] = (out,)

    for number in range(num_layers):
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
        model="a GLM of the recipe's sizes", shapes=shapes, rule=RULE, remedy=REMEDY,
        fitting=FITTING, wrappers=("module.", "model."), any_rows=POSITIONS,
        unused=lambda name: not name.startswith(LAYERS),
    )  # fmt: skip
    return match(found, weights, where=file)


def check_weights(folder: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    """Check names and shapes of a folder's checkpoint; return its file. No number is read.

    Raises:
        DataError: none is found, it is not readable, or it holds the weights of another model.
    """
    file = find_checkpoint(folder)
    match_weights(stored_weights(file, rule=RULE, remedy=REMEDY), shapes, file)
    return file
