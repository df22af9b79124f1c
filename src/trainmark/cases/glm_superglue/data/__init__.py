"""The data folder: its splits, the check before a run, and the load on a rank.

Owns the choice of form and the content id. The check reads with the functions of the load, so
what passed it cannot surprise a rank. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from trainmark.data.split_layout import Form, Layout, find_layout
from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import refuse_too_little

from .generated import BEST_ACCURACY, generate

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import RankMemory

    from ..recipe import GlmRecipe
    from .cloze import ClozeExamples
    from .passages import Passages

__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call

MODEL, TOKENS = "model", "tokens"  # subfolders: vocabulary and weights; splits as tokens
SPARSE = "glm_train_eval_hdf5_sparse"
JSONL = Form("jsonl", {"train": ("train.jsonl",), "validation": ("val.jsonl",)}, (".", "ReCoRD"))
PREPARED = Form("tokens", {"train": ("train.npz",), "validation": ("validation.npz",)}, (TOKENS,))
HDF5 = Form(
    "hdf5",
    {
        "train": ("train_hdf5/train_sparse.hdf5", "train_sparse.hdf5"),
        "validation": ("eval_hdf5/eval_sparse.hdf5", "eval_sparse.hdf5"),
    },
    (".", "ReCoRD", f"ReCoRD/{SPARSE}", SPARSE),  # where the downloads keep them
)
RULE = "a data folder holds train.jsonl and val.jsonl of ReCoRD with model/vocab.txt, or tokens/"
PREPARE = "run `trainmark prepare glm_superglue --from {} --data DIR`"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a rank trains and scores."""

    train: ClozeExamples
    validation: ClozeExamples


def find_splits(folder: Path) -> Layout:
    """Return the files of a folder that a run can read.

    Raises:
        DataError: no such folder, no form, only one split of it, no regular file, or HDF5.
    """
    found = find_layout(folder, (JSONL, PREPARED, HDF5), rule=RULE, remedy=PREPARE.format("RAW"))
    if found.kind == HDF5.kind:
        raise DataError(
            "the published HDF5 files are not trained on as they are",
            where=str(found.files["train"][0]),
            rule="they are converted to tokens once",
            remedy=PREPARE.format(folder),
        )
    return found


def load(folder: Path, recipe: GlmRecipe) -> Loaded:
    """Return both splits; jsonl is tokenised once, and its tokens are kept in the folder.

    Raises:
        DataError: a line, a token, the vocabulary or a sample breaks a rule.
    """
    return _load(find_splits(folder), folder, recipe)


def _load(layout: Layout, folder: Path, recipe: GlmRecipe) -> Loaded:
    from .cloze import ClozeExamples, Drawn
    from .passages import read_jsonl, read_tokens
    from .tokens import open_vocabulary, vocabulary_file

    splits: dict[str, Passages] = {}
    if layout.kind == JSONL.kind:
        vocabulary = vocabulary_file(folder / MODEL)
        open_vocabulary(vocabulary, recipe.vocab_size)
        for split, (file,) in layout.files.items():
            splits[split] = read_jsonl(file, vocabulary, folder / TOKENS)
    else:
        splits = {split: read_tokens(file) for split, (file,) in layout.files.items()}
    drawn = {
        "train": Drawn.for_training(splits["train"], recipe.max_wrong_choices),
        "validation": Drawn.for_evaluation(splits["validation"]),
    }
    return Loaded(*(
        ClozeExamples(
            splits[split], drawn[split], seq_length=recipe.seq_length,
            vocab_size=recipe.vocab_size, file=layout.files[split][0],
        )
        for split in ("train", "validation")
    ))  # fmt: skip


def check(folder: Path, recipe: GlmRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads and name the content.

    Raises:
        DataError: the first fault found, with file, line or sample, rule and way out.
    """
    from .passages import digest_of
    from .tokens import vocabulary_file
    from .weights import check_weights, expected_shapes

    layout = find_splits(folder)
    loaded = _load(layout, folder, recipe)
    files = [file for (file,) in layout.files.values()]
    if layout.kind == JSONL.kind:
        files.append(vocabulary_file(folder / MODEL))
    digest = sha256(digest_of(*files).encode())
    pretrained = recipe.init == "pretrained"
    if pretrained:
        shapes = expected_shapes(
            num_layers=recipe.num_layers, hidden_size=recipe.hidden_size,
            vocab_size=recipe.vocab_size, max_positions=recipe.seq_length,
        )  # fmt: skip
        digest.update(digest_of(check_weights(folder, shapes)).encode())
    return DataFacts(
        len(loaded.train), len(loaded.validation), digest.hexdigest()[:16], layout.kind,
        best_quality=BEST_ACCURACY if recipe.data == "generated" else None,
        quality_comparable=pretrained,
    )  # fmt: skip


def check_fit(folder: Path, recipe: GlmRecipe, world_size: int, memory: RankMemory) -> None:
    """Refuse a recipe that needs more than ``memory``; see ``step_memory.refuse_too_little``."""
    from ..memory import predict

    train = load(folder, recipe).train
    choices = float(train.num_choices.mean())
    tokens = train.mean_tokens() if recipe.trim_padding else None
    refuse_too_little(
        lambda other: predict(other, world_size, choices=choices, tokens=tokens), recipe, memory
    )
