"""A checkpoint's files: where a folder keeps them, and whether they fit a model; no torch.

Owns the original's folder layout and parameter names, the shape each has in a model of given
sizes, and the comparison, so that the launcher refuses what a rank could not load. Numbers are
not read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trainmark.data.input_files import readable
from trainmark.data.split_layout import refuse_unreadable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Shapes = Mapping[str, tuple[int, ...]]

Value = TypeVar("Value")
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
_WRAPPERS = ("module.", "model.")  # what training wrapped a model in stands before its names


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What of a checkpoint did not go one to one into the model.

    Args:
        unexpected: keys that the model has no use for, left out.
        extended: position tables that are longer in the model, which keeps its further rows.
        cut: position tables that are shorter in the model: further positions never occur.
    """

    unexpected: tuple[str, ...]
    extended: tuple[str, ...]
    cut: tuple[str, ...]


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


def by_name(found: Mapping[str, Value], file: Path) -> dict[str, Value]:
    """Return a checkpoint's entries under the model's own names.

    Raises:
        DataError: two keys that differ only in what training wrapped the model in.
    """
    named = {key: _bare(key) for key in found}
    double = [name for name, count in Counter(named.values()).items() if count > 1]
    if double:
        raise DataError(f"{double[0]} is there twice", where=f"{file}, {double[0]}", rule=RULE)
    return {named[key]: value for key, value in found.items()}


def _bare(key: str) -> str:
    while key.startswith(_WRAPPERS):
        key = key.partition(".")[2]
    return key


def match(found: Shapes, expected: Shapes, file: Path) -> LoadReport:
    """Compare a checkpoint with a model's parameters, which it may hold more than.

    Raises:
        DataError: a weight is missing or of another shape, or there are more layers.
    """
    missing = [name for name in expected if name not in found]
    if missing:
        rest = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise another_shape(file, missing[0], f"no weight {missing[0]}{rest}")
    unexpected = [name for name in found if name not in expected]
    for name in unexpected:
        if name.startswith(LAYERS):
            raise another_shape(file, name, f"a further weight {name}")
    extended: list[str] = []
    cut: list[str] = []
    for name, wanted in expected.items():
        has = tuple(found[name])
        if name in POSITIONS and has[1:] == wanted[1:] and has[0] != wanted[0]:
            (extended if has[0] < wanted[0] else cut).append(name)
        elif has != wanted:
            raise another_shape(file, name, f"{name} has shape {has}, the model's is {wanted}")
    return LoadReport(tuple(unexpected), tuple(extended), tuple(cut))


def another_shape(file: Path, key: str, what: str) -> DataError:
    """Return the error for a weight that does not fit."""
    return DataError(
        what,
        where=f"{file}, {key}",
        rule="a checkpoint holds the weights of a model of these sizes",
        remedy=FITTING,
    )


def no_numbers(file: Path, key: str) -> DataError:
    """Return the error for a key that holds something else than weights."""
    return DataError(
        f"{key} holds no floating-point numbers",
        where=f"{file}, {key}",
        rule="every weight is a tensor of floating-point numbers",
        remedy=REMEDY,
    )


def header_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a safetensors file; its numbers are not read.

    Raises:
        DataError: not readable, cut short, or with something else than numbers.
    """
    from safetensors import SafetensorError, safe_open

    shapes, kinds = {}, {}
    with readable(file, rule=RULE, remedy=REMEDY):
        try:
            with safe_open(file, framework="np") as held:
                for key in sorted(held.keys()):
                    part = held.get_slice(key)
                    shapes[key], kinds[key] = tuple(part.get_shape()), part.get_dtype()
        except SafetensorError as error:
            raise DataError(
                f"not readable as safetensors: {error}", where=str(file), remedy=REMEDY
            ) from None
    for key, kind in kinds.items():
        if not kind.startswith(("F", "BF")):
            raise no_numbers(file, key)
    return by_name(shapes, file)
