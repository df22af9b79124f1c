"""Where a data folder keeps its splits, the check before a run, and the load on a rank.

Owns the choice of layout and the content id. The check and the load read with the same
functions, so what passed the check cannot surprise a rank. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import file_digest, sha256
from typing import TYPE_CHECKING, Literal

from trainmark.data.input_files import split_files
from trainmark.data.model_config import CONFIG
from trainmark.errors import DataError
from trainmark.spec import DataFacts

from .arrays import read_npz
from .columns import Texts, read_texts
from .generate import BEST_ACCURACY, generate
from .model_files import (
    TOKENIZERS,
    first_existing,
    open_tokenizer,
    read_config,
    refuse_long,
    tokenize,
)
from .weights import check_weights

if TYPE_CHECKING:
    from pathlib import Path

    from .case import DistilbertRecipe
    from .model_files import ModelConfig
    from .tokens import TokenRows

__all__ = ["check", "generate", "load"]  # what the core and the job call
Kind = Literal["npz", "parquet", "tsv"]
KINDS: tuple[Kind, ...] = ("npz", "parquet", "tsv")  # the first that is there is read
SPLITS = ("train", "validation")
NPZ_NAMES = {"train": "train_dataset.npz", "validation": "eval_dataset.npz"}
TSV_NAMES: dict[str, tuple[str, ...]] = {
    "train": ("train.tsv",),
    "validation": ("validation.tsv", "dev.tsv"),
}
TEXT_FOLDERS = (".", "data", "sst2", "SST-2")  # where the hub and the GLUE archive keep files
LAYOUTS_RULE = (
    "a data folder holds dataset/train_dataset.npz and dataset/eval_dataset.npz, or "
    "train*.parquet and validation*.parquet, or train.tsv and dev.tsv (in the folder itself, "
    "data/, sst2/ or SST-2/), and model/"
)
PREPARE = "run `trainmark prepare distilbert_sst2 --from RAW --data DIR`"


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of each split and the form they have."""

    kind: Kind
    files: dict[str, list[Path]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a rank trains and scores."""

    train: TokenRows
    validation: TokenRows
    config: ModelConfig


def find_layout(folder: Path) -> Layout:
    """Find the splits; where several forms are there: npz, then parquet, then TSV.

    Raises:
        DataError: no such folder, no form, or only one split of it.
    """
    if not folder.is_dir():
        raise DataError("no such folder", where=str(folder), remedy=f"check --data, or {PREPARE}")
    for kind, found in _candidates(folder):
        missing = [split for split in SPLITS if not found[split]]
        if len(missing) == len(SPLITS):
            continue
        if missing:
            other = next(files for files in found.values() if files)[0]
            raise DataError(
                f"no {missing[0]} split beside {other.name}",
                where=f"{other.parent}, {_name(kind, missing[0])}",
                rule=LAYOUTS_RULE,
                remedy=f"add the file, or {PREPARE}",
            )
        return Layout(kind, found)
    raise DataError("no data files", where=str(folder), rule=LAYOUTS_RULE, remedy=PREPARE)


def _candidates(folder: Path) -> list[tuple[Kind, dict[str, list[Path]]]]:
    places = [folder / name for name in TEXT_FOLDERS]
    found: list[tuple[Kind, dict[str, list[Path]]]] = [
        ("npz", splits_in(folder / "dataset", "npz"))
    ]
    found += [("parquet", splits_in(place, "parquet")) for place in places]
    found += [("tsv", splits_in(place, "tsv")) for place in places]
    return found


def splits_in(folder: Path, kind: Kind) -> dict[str, list[Path]]:
    """Return the files of each split that lie right in ``folder`` in one form."""
    if kind == "parquet":
        return {split: split_files(folder, split, "parquet") for split in SPLITS}
    names = {split: (NPZ_NAMES[split],) for split in SPLITS} if kind == "npz" else TSV_NAMES
    files = {split: first_existing(folder, names[split]) for split in SPLITS}
    return {split: [file] if file else [] for split, file in files.items()}


def layouts_in(folder: Path) -> list[Layout]:
    """Return every form in which ``folder`` holds both splits."""
    found = [Layout(kind, splits_in(folder, kind)) for kind in KINDS]
    return [layout for layout in found if all(layout.files.values())]


def _name(kind: Kind, split: str) -> str:
    if kind == "npz":
        return NPZ_NAMES[split]
    return f"{split}*.parquet" if kind == "parquet" else " or ".join(TSV_NAMES[split])


def check(folder: Path, recipe: DistilbertRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads and name the content.

    The id is a sha256 over the rows as read and the model files, so that the same rows
    written by another library version keep their name.

    Raises:
        DataError: the first fault found, with file, row or key, rule and way out.
    """
    layout = find_layout(folder)
    model = folder / "model"
    config = read_config(model)
    refuse_long(config, recipe.seq_length, model)
    digest, rows = sha256(), {}
    for split in SPLITS:
        if layout.kind == "npz":
            tokens = _read_arrays(layout, split, recipe, config)
            for array in (tokens.tokens, tokens.starts, tokens.labels):
                digest.update(array.tobytes())
            rows[split] = len(tokens)
        else:
            texts = read_texts(layout.files[split])
            digest.update("\n".join(texts.sentences).encode())
            digest.update(bytes(texts.labels))
            rows[split] = len(texts.labels)
    used = [model / CONFIG]
    if layout.kind != "npz":
        open_tokenizer(model, config)
        used += [file for file in [first_existing(model, TOKENIZERS)] if file]
    pretrained = recipe.init == "pretrained"
    if pretrained:
        used.append(check_weights(model, config))
    for file in used:
        with file.open("rb") as stream:
            digest.update(file_digest(stream, "sha256").digest())
    return DataFacts(
        rows["train"], rows["validation"], digest.hexdigest()[:16], layout.kind,
        best_quality=BEST_ACCURACY if recipe.data == "generated" else None,
        quality_comparable=pretrained,
    )  # fmt: skip


def _read_arrays(
    layout: Layout, split: str, recipe: DistilbertRecipe, config: ModelConfig
) -> TokenRows:
    return read_npz(
        layout.files[split][0], seq_length=recipe.seq_length, vocab_size=config.vocab_size
    )


def load(folder: Path, recipe: DistilbertRecipe) -> Loaded:
    """Read both splits as token rows; sentences are tokenised here.

    Raises:
        DataError: as ``check``.
    """
    layout, config = find_layout(folder), read_config(folder / "model")
    if layout.kind == "npz":
        rows = {split: _read_arrays(layout, split, recipe, config) for split in SPLITS}
    else:
        tokenizer = open_tokenizer(folder / "model", config)
        rows = {}
        for split in SPLITS:
            texts: Texts = read_texts(layout.files[split])
            rows[split] = tokenize(tokenizer, texts.sentences, texts.labels, recipe.seq_length)
    return Loaded(rows["train"], rows["validation"], config)
