"""Where a folder keeps its weights: the original's checkpoint layout, or safetensors.

No torch, so that the launcher can check. Must not know what is in the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data.input_files import file_bytes, readable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

LATEST = "latest_checkpointed_iteration.txt"
ORIGINAL = "mp_rank_00_model_states.pt"
EXPORTED = "model.safetensors"
RULE = f"a checkpoint is a folder with {EXPORTED}, or with {LATEST} and <iteration>/{ORIGINAL}"
REMEDY = "put GLM-large's checkpoint there, or add init=random, which is labelled performance-only"
_WORD_BYTES = 100  # the longest that such a folder is called


def find_checkpoint(folder: Path) -> Path:
    """Return the file with the weights, in ``folder`` or in its only folder that has some.

    Raises:
        DataError: there is none, several, or one that is cut over several files.
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
    with readable(file, rule=RULE, remedy=REMEDY):
        if file_bytes(file) == 0:
            raise DataError("an empty file", where=str(file), rule=RULE, remedy=REMEDY)
    return file


def _marks(folder: Path) -> bool:
    return any((folder / name).exists() for name in (EXPORTED, LATEST))


def _latest(folder: Path) -> Path:
    """Return the file that the iteration file points to."""
    pointer = folder / LATEST
    with readable(pointer, rule=RULE, remedy=REMEDY):
        file_bytes(pointer)
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
