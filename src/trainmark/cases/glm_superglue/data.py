"""Where a data folder keeps its splits, the check before a run, and the load on a rank.

Owns the choice of layout and the content id. The check reads with the functions of the
load, so what passed it cannot surprise a rank. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from trainmark.data.input_files import file_bytes, readable
from trainmark.errors import DataError
from trainmark.spec import DataFacts

from .generate import BEST_ACCURACY, generate
from .token_cache import FOLDER, digest_of, read_split
from .tokens import vocabulary_file

if TYPE_CHECKING:
    from pathlib import Path

    from .case import GlmRecipe
    from .cloze import ClozeExamples
    from .examples import Examples
    from .hdf5 import SparseExamples

__all__ = ["check", "generate", "load"]  # what the core and the job call
Kind = Literal["hdf5", "jsonl"]
SPLITS = ("train", "validation")
MODEL = "model"  # subfolder with the vocabulary
SPARSE = "glm_train_eval_hdf5_sparse"
NAMES: dict[Kind, dict[str, tuple[str, ...]]] = {  # the first kind with a file is read
    "jsonl": {"train": ("train.jsonl",), "validation": ("val.jsonl",)},
    "hdf5": {
        "train": ("train_hdf5/train_sparse.hdf5", "train_sparse.hdf5"),
        "validation": ("eval_hdf5/eval_sparse.hdf5", "eval_sparse.hdf5"),
    },
}
FOLDERS = (".", "ReCoRD", f"ReCoRD/{SPARSE}", SPARSE)  # where the downloads keep them
RULE = (
    "a data folder holds train.jsonl and val.jsonl of ReCoRD with model/vocab.txt, or "
    "train_sparse.hdf5 and eval_sparse.hdf5, in itself or where the downloads keep them"
)
PREPARE = "run `trainmark prepare glm_superglue --from RAW --data DIR`"


@dataclass(frozen=True, slots=True)
class Layout:
    """The file of each split and the form they have."""

    kind: Kind
    files: dict[str, Path]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a rank trains and scores."""

    train: Examples
    validation: Examples


def find_layout(folder: Path) -> Layout:
    """Find the splits; where both forms are there, text is read.

    Raises:
        DataError: no such folder, no form, only one split of it, or no regular file.
    """
    if not folder.is_dir():
        raise DataError("no such folder", where=str(folder), remedy=f"check --data, or {PREPARE}")
    for kind, names in NAMES.items():
        for place in (folder / name for name in FOLDERS):
            files = {
                split: file
                for split in SPLITS
                for file in (place / name for name in reversed(names[split]))
                if file.exists()
            }
            if not files:
                continue
            missing = [split for split in SPLITS if split not in files]
            if missing:
                raise DataError(
                    f"no {missing[0]} split beside {next(iter(files.values())).name}",
                    where=str(place / names[missing[0]][0]),
                    rule=RULE,
                    remedy=f"add the file, or {PREPARE}",
                )
            for file in files.values():
                with readable(file, rule="a split is one readable file", remedy=PREPARE):
                    file_bytes(file)  # a named pipe, say, would be waited for without end
            return Layout(kind, files)
    raise DataError("no data files", where=str(folder), rule=RULE, remedy=PREPARE)


def read_cloze(folder: Path, layout: Layout, recipe: GlmRecipe) -> dict[str, ClozeExamples]:
    """Return both splits of a jsonl folder; what is tokenised is kept in it.

    Raises:
        DataError: a line, the vocabulary or a sample breaks a rule.
    """
    from .cloze import ClozeExamples, Drawn
    from .tokens import open_vocabulary

    vocabulary = vocabulary_file(folder / MODEL)
    tokens = open_vocabulary(vocabulary, recipe.vocab_size).tokens
    found = {}
    for split, file in layout.files.items():
        passages = read_split(file, vocabulary, folder / FOLDER)
        if passages.num_questions == 0:
            raise DataError(
                "no question", where=str(file), rule="a split has at least one", remedy=PREPARE
            )
        if split == "train":
            drawn = Drawn.for_training(passages, recipe.max_wrong_choices)
        else:
            drawn = Drawn.for_evaluation(passages)
        found[split] = ClozeExamples(
            passages, drawn, tokens=tokens, seq_length=recipe.seq_length, file=file
        )
    return found


def open_sparse(layout: Layout, recipe: GlmRecipe) -> dict[str, SparseExamples]:
    """Open both splits of an HDF5 folder; no token is read.

    Raises:
        DataError: a group is missing, or a sample breaks a rule.
    """
    from .hdf5 import SparseExamples

    return {
        split: SparseExamples(
            file,
            evaluation=split == "validation",
            seq_length=recipe.seq_length,
            max_wrong_choices=recipe.max_wrong_choices,
        )
        for split, file in layout.files.items()
    }


def load(folder: Path, recipe: GlmRecipe) -> Loaded:
    """Return both splits; every number of a sparse file was checked by ``check``.

    Raises:
        DataError: as ``check``.
    """
    layout = find_layout(folder)
    found: dict[str, ClozeExamples] | dict[str, SparseExamples]
    if layout.kind == "jsonl":
        found = read_cloze(folder, layout, recipe)
    else:
        found = open_sparse(layout, recipe)
    return Loaded(found["train"], found["validation"])


def check(folder: Path, recipe: GlmRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads and name the content.

    Raises:
        DataError: the first fault found, with file, line or sample, rule and way out.
    """
    layout = find_layout(folder)
    if layout.kind == "jsonl":
        loaded = load(folder, recipe)
        sizes = {"train": len(loaded.train), "validation": len(loaded.validation)}
        files = (*layout.files.values(), vocabulary_file(folder / MODEL))
        digest = sha256(digest_of(*files).encode())
    else:
        from .hdf5_content import read_content

        digest, sizes = sha256(), {}
        for split, examples in open_sparse(layout, recipe).items():
            content = read_content(examples.file, tuple(examples.groups), folder / FOLDER)
            examples.refuse_values(content, recipe.vocab_size)
            digest.update("".join(entry.digest for entry in content.values()).encode())
            digest.update(examples.small_digest())
            sizes[split] = len(examples)
    pretrained = recipe.init == "pretrained"
    if pretrained:
        digest.update(digest_of(_checkpoint(folder, recipe)).encode())
    return DataFacts(
        sizes["train"], sizes["validation"], digest.hexdigest()[:16], layout.kind,
        best_quality=BEST_ACCURACY if recipe.data == "generated" else None,
        quality_comparable=pretrained,
    )  # fmt: skip


def _checkpoint(folder: Path, recipe: GlmRecipe) -> Path:
    """Return the file with the weights; what can be read without torch fits ``recipe``.

    Raises:
        DataError: none is found, or it holds the weights of another model.
    """
    from .checkpoint_files import EXPORTED, find_checkpoint
    from .pickled import pickled_shapes
    from .weights import expected_shapes, header_shapes, match

    file = find_checkpoint(folder)
    shapes = header_shapes(file) if file.name == EXPORTED else pickled_shapes(file)
    if shapes is not None:
        expected = expected_shapes(
            num_layers=recipe.num_layers, hidden_size=recipe.hidden_size,
            vocab_size=recipe.vocab_size, max_positions=recipe.seq_length,
        )  # fmt: skip
        match(shapes, expected, file)
    return file
