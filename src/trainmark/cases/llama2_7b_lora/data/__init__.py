"""The layout of the data folder, its check before a run, and loading it on a rank.

Owns the data folder's layout and the content id. The check runs the same code as the load, so
a rank can load all data that passed the check. No torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from trainmark.data.files import find_layout
from trainmark.data.model_config import CONFIG
from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import refuse_too_little

from ..estimates import predict_peak_bytes
from ..mmlu import answer_ids
from ..mmlu.questions import read_mmlu
from ..model_files import check_weights, read_config, weight_files
from .dialogues import FETCH, FORMS, LAYOUT_RULE, pack, read_dialogues, training_text
from .generating import BEST_ACCURACY, generate
from .tokens import open_tokenizer, tokenizer_files

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import RankMemory

    from ..case import LlamaRecipe
    from ..mmlu.questions import Mmlu
    from ..model_files import ModelConfig
    from .dialogues import Dialogues, Packed
    from .tokens import TextTokenizer

__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call
MODEL, MMLU = "model", "mmlu"
_WEIGHT_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16  # of a weights file; hashing all of it takes minutes


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a rank trains and scores; ``mmlu`` is None with mmlu_mode=off."""

    train: Packed
    validation: Packed
    mmlu: Mmlu | None
    tokenizer: TextTokenizer
    config: ModelConfig


def load(folder: Path, recipe: LlamaRecipe) -> Loaded:
    """Read and tokenise all that ``recipe`` trains and scores.

    Raises:
        DataError: the first fault found, with file, row or key, rule and way out.
    """
    return _read(folder, recipe)[0]


def check(folder: Path, recipe: LlamaRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads, and return its facts with the content id.

    Raises:
        DataError: as ``load``, and where weights are missing or have another shape.
    """
    loaded, layout, content_id = _read(folder, recipe, check_model=True)
    asked = len(loaded.validation)
    if loaded.mmlu:
        asked = sum(len(subject.items) for subject in loaded.mmlu)
    return DataFacts(
        len(loaded.train), asked, content_id, layout,
        best_quality=BEST_ACCURACY if recipe.data == "generated" else None,
        quality_comparable=recipe.init == "pretrained",
    )  # fmt: skip


def _read(
    folder: Path, recipe: LlamaRecipe, *, check_model: bool = False
) -> tuple[Loaded, str, str]:
    """Return what was read, the layout's name and the content id.

    Args:
        check_model: check the weights too, and compute the content id.
    """
    layout = find_layout(folder, FORMS, rule=LAYOUT_RULE, remedy=FETCH)
    model = folder / MODEL
    config = read_config(model)
    _refuse_long(config, recipe.seq_length, model)
    tokenizer = open_tokenizer(model, vocab_size=config.vocab_size)
    splits = {name: read_dialogues(files) for name, files in layout.files.items()}
    mmlu = None
    if recipe.mmlu_mode != "off":
        mmlu = read_mmlu(folder / MMLU)
        legacy = recipe.mmlu_mode == "legacy"
        answer_ids(tokenizer, mmlu, legacy=legacy, max_length=recipe.seq_length)
    if check_model and recipe.init == "pretrained":
        check_weights(model, config)
    train = pack_split(splits["train"], tokenizer, recipe, drop_short=recipe.short_row == "drop")
    if not len(train):
        raise DataError(
            f"all dialogues together do not fill one row of {recipe.seq_length} tokens",
            where=", ".join(map(str, layout.files["train"])),
            rule="short_row=drop leaves out the last row where it is not full, as published",
            remedy="add short_row=train, a smaller seq, or more dialogues",
        )
    validation = pack_split(splits["validation"], tokenizer, recipe)
    content_id = _content_id(model, splits, mmlu, recipe) if check_model else ""
    return Loaded(train, validation, mmlu, tokenizer, config), layout.kind, content_id


def _refuse_long(config: ModelConfig, seq_length: int, folder: Path) -> None:
    if seq_length > config.max_positions:
        raise DataError(
            f"the recipe's seq_length is {seq_length}",
            where=f"{folder / CONFIG}, max_position_embeddings",
            rule=f"the model has {config.max_positions} positions",
            remedy=f"add seq={config.max_positions}, or use another model folder",
        )


def pack_split(
    split: Dialogues, tokenizer: TextTokenizer, recipe: LlamaRecipe, *, drop_short: bool = False
) -> Packed:
    """Return a split tokenised with the instruction template and packed; see ``packing.pack``."""
    texts = [
        training_text(dialogue, summary)
        for dialogue, summary in zip(split.dialogues, split.summaries, strict=True)
    ]
    return pack(
        tokenizer.documents(texts),
        seq_length=recipe.seq_length,
        pad_id=tokenizer.end_id,
        drop_short=drop_short,
    )


def _content_id(
    model: Path, splits: dict[str, Dialogues], mmlu: Mmlu | None, recipe: LlamaRecipe
) -> str:
    """Return a digest of the rows as read and of the model's files.

    The same rows in another file format have the same id. Of weights only the size and samples
    are hashed.
    """
    digest = sha256()
    for split in splits.values():
        digest.update(json.dumps([split.dialogues, split.summaries]).encode())
    for subject in mmlu or ():
        rows = [(x.text, x.choices, x.answer) for x in (*subject.shots, *subject.items)]
        digest.update(json.dumps([subject.name, len(subject.shots), rows]).encode())
    for file in (model / CONFIG, *tokenizer_files(model)):
        digest.update(file.read_bytes())
    if recipe.init == "pretrained":
        for file in weight_files(model):
            size = file.stat().st_size
            digest.update(f"{file.name} {size}".encode())
            with file.open("rb") as stream:
                for number in range(_WEIGHT_SAMPLES):
                    stream.seek(size * number // _WEIGHT_SAMPLES)
                    digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def check_fit(folder: Path, recipe: LlamaRecipe, world_size: int, memory: RankMemory) -> None:
    """Refuse a recipe that needs more than ``memory``; see ``step_memory.refuse_too_little``."""
    config = read_config(folder / MODEL)
    refuse_too_little(lambda other: predict_peak_bytes(config, other, world_size), recipe, memory)
