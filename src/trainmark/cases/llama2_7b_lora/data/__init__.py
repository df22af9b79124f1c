"""The data folder: its check before a run, and loading it on a rank.

The check runs the same code as the load, so a rank can load all data that passed the check.
No torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.data.model_folder import CONFIG_FILE, refuse_long_sequences
from trainmark.data.splits import find_layout
from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import refuse_too_little_memory

from ..estimates import predict_peak_bytes
from ..mmlu import encode_answers
from ..mmlu.questions import print_choices_like_pandas, read_mmlu
from ..model_files import (
    check_weights,
    find_weight_files,
    list_tokenizer_files,
    open_tokenizer,
    read_config,
)
from .dialogues import FORMS, format_training_text, make_layout_error, pack, read_dialogues
from .generating import BEST_ACCURACY, generate

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import RankMemory
    from trainmark.train.step_memory import Prediction

    from ..case import LlamaRecipe
    from ..mmlu.questions import Mmlu
    from ..model_files import ModelConfig, TextTokenizer
    from .dialogues import PackedDialogues

__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call
# Subfolders of a data folder.
MODEL = "model"
MMLU = "mmlu"
# Pieces of a weights file that are hashed: all of it would take minutes.
_NUM_WEIGHT_SAMPLES = 64
_WEIGHT_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LlamaData:
    """The data that a rank trains and evaluates; ``mmlu`` is None with mmlu_mode=off."""

    train: PackedDialogues
    validation: PackedDialogues
    mmlu: Mmlu | None
    tokenizer: TextTokenizer
    config: ModelConfig


def load(folder: Path, recipe: LlamaRecipe) -> LlamaData:
    """Read and tokenise all data that ``recipe`` trains and evaluates.

    Raises:
        DataError: the first fault, with file, row or key, rule and fix.
    """
    return _read_data(folder, recipe).data


def check(folder: Path, recipe: LlamaRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads, and return its facts with the content id.

    The id is a digest of the rows as read and of the model's files: the same rows in another file
    format have the same id. Of weights files only names, sizes and samples are hashed.

    Raises:
        DataError: the first fault, with file, row or key, rule and fix; also if weights that the
            recipe loads are missing or have another shape.
    """
    model = folder / MODEL
    pretrained = recipe.init == "pretrained"
    reading = _read_data(folder, recipe)
    digest = reading.digest
    if pretrained:
        check_weights(model, reading.data.config)
    for file in (model / CONFIG_FILE, *list_tokenizer_files(model)):
        digest.update(file.read_bytes())
    if pretrained:
        for file in find_weight_files(model):
            _hash_weight_samples(file, digest)
    # The quality is the score of the MMLU questions; only without them the validation rows count.
    eval_samples = len(reading.data.validation)
    if reading.data.mmlu:
        eval_samples = sum(len(subject.items) for subject in reading.data.mmlu)
    return DataFacts(
        train_samples=len(reading.data.train),
        eval_samples=eval_samples,
        content_id=digest.hexdigest()[:16],
        layout=reading.layout,
        # The best possible score is known only for generated data.
        best_quality=BEST_ACCURACY if recipe.data == "generated" else None,
        quality_comparable=pretrained,  # a run from random weights measures only speed
    )


def _hash_weight_samples(file: Path, digest: Any) -> None:
    """Add the name, the size and evenly spaced pieces of a weights file to ``digest``."""
    size = file.stat().st_size
    digest.update(f"{file.name} {size}".encode())
    with file.open("rb") as stream:
        for number in range(_NUM_WEIGHT_SAMPLES):  # to hash the whole file would take minutes
            stream.seek(size * number // _NUM_WEIGHT_SAMPLES)
            digest.update(stream.read(_WEIGHT_SAMPLE_BYTES))


class _Reading(NamedTuple):
    """A data folder as read: its data, the name of its layout and a digest of its rows."""

    data: LlamaData
    layout: str
    digest: Any


def _read_data(folder: Path, recipe: LlamaRecipe) -> _Reading:
    """Read, check and tokenise the data folder.

    Raises:
        DataError: the first fault, with file, row or key, rule and fix.
    """
    # Which of the forms (kinds of file) the dialogues have, and the files of each split.
    layout = find_layout(folder, FORMS, make_layout_error)
    model = folder / MODEL
    digest = sha256()
    config = read_config(model)
    refuse_long_sequences(model, positions=config.max_positions, seq_length=recipe.seq_length)
    tokenizer = open_tokenizer(model, vocab_size=config.vocab_size)
    packed = {}
    for split, files in layout.files.items():
        rows = read_dialogues(files)
        digest.update(json.dumps([rows.dialogues, rows.summaries]).encode())
        texts = map(format_training_text, rows.dialogues, rows.summaries)
        packed[split] = pack(
            tokenizer.encode_documents(list(texts)),
            seq_length=recipe.seq_length,
            pad_id=tokenizer.end_id,  # any id of the model would do: padding has no label
            # Never in the validation split, whose loss counts every token once.
            drop_short=split == "train" and recipe.short_row == "drop",
        )
    if not len(packed["train"]):
        raise DataError(
            f"all dialogues together do not fill one row of {recipe.seq_length} tokens",
            where=", ".join(map(str, layout.files["train"])),
            rule=(
                "short_row=drop (the default, as in the published results) discards the last row "
                "if it is incomplete"
            ),
            fix="add short_row=train, set a smaller seq_length, or use more dialogues",
        )
    mmlu = None
    if recipe.mmlu_mode != "off":
        mmlu = _read_questions(folder / MMLU, recipe, tokenizer, digest)
    data = LlamaData(packed["train"], packed["validation"], mmlu, tokenizer, config)
    return _Reading(data, layout.kind, digest)


def _read_questions(
    folder: Path, recipe: LlamaRecipe, tokenizer: TextTokenizer, digest: Any
) -> Mmlu:
    """Read MMLU, check that its answers are single tokens, and add its rows to ``digest``."""
    mmlu = read_mmlu(folder)
    # Whether questions are scored as by the program of the published results.
    legacy = recipe.mmlu_mode == "legacy"
    # Called for its check; a rank encodes the answers again when it plans the scoring.
    encode_answers(tokenizer, mmlu, legacy=legacy, max_length=recipe.seq_length)
    for subject in mmlu:
        questions = [(x.text, x.choices, x.answer) for x in (*subject.shots, *subject.items)]
        digest.update(json.dumps([subject.name, len(subject.shots), questions]).encode())
    # That program reads the files with pandas, which changes some choices.
    return print_choices_like_pandas(mmlu) if legacy else mmlu


def check_fit(folder: Path, recipe: LlamaRecipe, world_size: int, memory: RankMemory) -> int:
    """Return the bytes that a rank needs.

    Raises:
        EnvironmentFault: ``memory`` is less; the error names a batch or layers that would fit.
    """
    config = read_config(folder / MODEL)

    def predict_for(tried_recipe: LlamaRecipe) -> Prediction:
        """Predict for the recipe, or for a smaller one that the error may propose."""
        return predict_peak_bytes(config, tried_recipe, world_size)

    return refuse_too_little_memory(predict_for, recipe, memory)
