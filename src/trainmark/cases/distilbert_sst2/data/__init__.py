"""The data folder: its splits, its check before a run, and loading it on a rank.

Owns the choice of format and the content id. The check runs the same code as the load, so a
rank can load all data that passed the check. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import file_digest, sha256
from typing import TYPE_CHECKING

import numpy as np

from trainmark.data.cache import cached_arrays
from trainmark.data.model_config import CONFIG
from trainmark.data.split_layout import Form, Layout, find_layout, numbered_files
from trainmark.data.wordpiece import tokenizer_file
from trainmark.spec import DataFacts
from trainmark.train.step_memory import refuse_too_little

from ..memory import predict
from .arrays import read_npz
from .generated import BEST_ACCURACY, generate
from .model_files import MODEL_REMEDY, open_tokenizer, read_config, refuse_long, tokenize
from .texts import read_texts
from .tokens import TokenRows
from .weights import check_weights

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from trainmark.spec import RankMemory

    from ..recipe import DistilbertRecipe
    from .model_files import ModelConfig

__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call
SPLITS = ("train", "validation")
TOKENS = "tokens"  # subfolder of cached tokens
FORMAT = 1  # version of the cached files
TEXT_FOLDERS = (".", "data", "sst2", "SST-2")  # where the hub and the GLUE archive keep files
NPZ = Form(
    "npz", {"train": ("train_dataset.npz",), "validation": ("eval_dataset.npz",)}, ("dataset",)
)
FORMS = (  # the first that exists is read
    NPZ,
    Form(
        "parquet", {split: (f"{split}.parquet",) for split in SPLITS}, TEXT_FOLDERS, numbered_files
    ),
    Form(
        "tsv", {"train": ("train.tsv",), "validation": ("validation.tsv", "dev.tsv")}, TEXT_FOLDERS
    ),
)
RULE = (
    "a data folder holds dataset/train_dataset.npz and dataset/eval_dataset.npz, or "
    "train*.parquet and validation*.parquet, or train.tsv and dev.tsv (in the folder itself, "
    "data/, sst2/ or SST-2/), and model/"
)
PREPARE = "run `trainmark prepare distilbert_sst2 --from RAW --data DIR`"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a rank trains and scores."""

    train: TokenRows
    validation: TokenRows
    config: ModelConfig


def load(folder: Path, recipe: DistilbertRecipe) -> Loaded:
    """Read both splits as token rows; sentences are tokenised once and cached in the folder.

    Raises:
        DataError: the first fault found, with file, row or key, rule and way out.
    """
    return _load(find_layout(folder, FORMS, rule=RULE, remedy=PREPARE), folder, recipe)[0]


def _load(layout: Layout, folder: Path, recipe: DistilbertRecipe) -> tuple[Loaded, list[bytes]]:
    """Return both splits, and a sha256 of each one's rows as they were read."""
    model = folder / "model"
    config = read_config(model)
    refuse_long(config, recipe.seq_length, model)
    used = [model / CONFIG]
    if layout.kind != NPZ.kind:
        open_tokenizer(model, config)
        used.append(tokenizer_file(model, remedy=MODEL_REMEDY))
    rows, digests = [], []
    for split in SPLITS:
        read = partial(_read, layout, split, recipe, config, model)
        made_of = [*layout.files[split], *used]
        name = _digest(f"{FORMAT} {recipe.seq_length}", made_of)[:16]
        arrays = cached_arrays(folder / TOKENS / f"{split}-{name}.npz", read)
        rows.append(TokenRows.of_arrays(arrays))
        digests.append(arrays["digest"].tobytes())
    train, validation = rows
    return Loaded(train, validation, config), digests


def _read(
    layout: Layout, split: str, recipe: DistilbertRecipe, config: ModelConfig, model: Path
) -> dict[str, NDArray[Any]]:
    """Read a split from its files; return its token rows and the digest of its rows."""
    files, digest = layout.files[split], sha256()
    if layout.kind == NPZ.kind:
        rows = read_npz(files[0], seq_length=recipe.seq_length, vocab_size=config.vocab_size)
        for array in (rows.tokens, rows.starts, rows.labels):
            digest.update(array.tobytes())
    else:
        texts = read_texts(files)
        digest.update("\n".join(texts.sentences).encode())
        digest.update(bytes(texts.labels))
        tokenizer = open_tokenizer(model, config)
        rows = tokenize(tokenizer, texts.sentences, texts.labels, recipe.seq_length)
    return {**rows.arrays(), "digest": np.frombuffer(digest.digest(), np.uint8)}


def check(folder: Path, recipe: DistilbertRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads, and return its facts with the content id.

    The id is a sha256 of the rows as read and the model files, so that the same rows written
    by another library version have the same id.

    Raises:
        DataError: as ``load``, and where weights are missing or have another shape.
    """
    layout = find_layout(folder, FORMS, rule=RULE, remedy=PREPARE)
    loaded, digests = _load(layout, folder, recipe)
    model = folder / "model"
    used = [model / CONFIG]
    if layout.kind != NPZ.kind:
        used.append(tokenizer_file(model, remedy=MODEL_REMEDY))
    pretrained = recipe.init == "pretrained"
    if pretrained:
        used.append(check_weights(model, loaded.config))
    return DataFacts(
        len(loaded.train), len(loaded.validation),
        _digest("".join(digest.hex() for digest in digests), used)[:16], layout.kind,
        best_quality=BEST_ACCURACY if recipe.data == "generated" else None,
        quality_comparable=pretrained,
    )  # fmt: skip


def _digest(start: str, files: list[Path]) -> str:
    """Return a sha256 over a text and the contents of files."""
    digest = sha256(start.encode())
    for file in files:
        with file.open("rb") as stream:
            digest.update(file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def check_fit(folder: Path, recipe: DistilbertRecipe, world_size: int, memory: RankMemory) -> None:
    """Refuse a recipe that needs more than ``memory``; see ``step_memory.refuse_too_little``."""
    config = read_config(folder / "model")
    refuse_too_little(lambda other: predict(config, other, world_size), recipe, memory)
