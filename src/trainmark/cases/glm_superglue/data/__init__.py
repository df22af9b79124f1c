"""The data folder: its splits and checkpoint, the check before a run, and the load on a rank.

The check runs the same code as the load, so a rank can load all data that passed the check.
No torch: the launcher checks the folder before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from trainmark.data.cache import load_or_scan
from trainmark.data.model_folder import ModelWeights, StoredTensor
from trainmark.data.splits import (
    Form,
    Layout,
    find_layout,
    refuse_unreadable,
    translate_read_errors,
)
from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.checkpoints import list_stored_weights
from trainmark.train.step_memory import (
    Prediction,
    Transformer,
    predict_peak_bytes,
    refuse_too_little_memory,
)

from .cloze import ClozeExamples, ClozeSamples
from .generated import BEST_ACCURACY, generate
from .hdf5 import SparseExamples
from .passages import compute_digest, find_vocabulary_file, open_vocabulary, read_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trainmark.spec import RankMemory

    from ..case import GlmRecipe, GlmShape
    from .examples import Examples


def predict(
    recipe: GlmRecipe, world_size: int, *, choices: float, tokens: float | None
) -> Prediction:
    """Return the predicted peak memory of one rank of ``world_size`` in a step.

    Args:
        choices: mean number of candidates per sample. Every micro-batch is assumed to have this
            mean; in fact at least one reaches or exceeds it, so the prediction is a lower bound.
        tokens: mean length of a sample's longest sequence, for data whose padding is trimmed; None
            or 0: not trimmed or not known, so every sequence has the length ``seq_length``.
    """
    num_sequences = int(choices * recipe.micro_batch_size)
    length: float = recipe.seq_length
    if tokens:
        length = min(tokens, recipe.seq_length)
    sizes = Transformer(
        parameters=recipe.shape.parameters,
        num_layers=recipe.num_layers,
        hidden_size=recipe.hidden_size,
        num_heads=recipe.num_heads,
        ffn_width=4 * recipe.hidden_size,
        vocab_size=recipe.vocab_size,
        tokens=int(num_sequences * length),
        # The head runs at target positions alone, of which each candidate has at least one.
        scores=num_sequences * recipe.vocab_size,
        tied_head=True,
        dropout=recipe.dropout > 0,
        checkpoint_activations=recipe.checkpoint_activations,
        # With accumulation, a micro-batch finds the gradients of earlier ones in memory.
        keeps_gradients=recipe.grad_accum_steps > 1,
        replicas=world_size,
    )
    # The head always uses the library's kernels, whatever ``kernels`` is.
    return predict_peak_bytes(sizes, replace(recipe, kernels="library"))


__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call

MODEL_FOLDER = "model"  # subfolder with the vocabulary and the weights
CACHE_FOLDER = "tokens"  # subfolder with tokens and scans of the data, which are cached
SPARSE = "glm_train_eval_hdf5_sparse"
JSONL = Form("jsonl", {"train": ("train.jsonl",), "validation": ("val.jsonl",)}, (".", "ReCoRD"))
HDF5 = Form(
    "hdf5",
    {
        "train": ("train_hdf5/train_sparse.hdf5", "train_sparse.hdf5"),
        "validation": ("eval_hdf5/eval_sparse.hdf5", "eval_sparse.hdf5"),
    },
    (".", "ReCoRD", f"ReCoRD/{SPARSE}", SPARSE),  # where the downloads keep them
)
FAULT = partial(
    DataError,
    rule=(
        "a data folder must contain train.jsonl and val.jsonl of ReCoRD with model/vocab.txt, or "
        "train_sparse.hdf5 and eval_sparse.hdf5"
    ),
    fix="run `trainmark prepare glm_superglue --from RAW --data DIR`",
)


@dataclass(frozen=True, slots=True)
class GlmData:
    """The samples that a rank trains and evaluates."""

    train: Examples
    validation: Examples


def load(folder: Path, recipe: GlmRecipe) -> GlmData:
    """Return the training and the validation samples of a data folder.

    Text is tokenised once, and the tokens are cached in the folder.

    Raises:
        DataError: a line, a token, the vocabulary or a sample is invalid.
    """
    # Which of the two forms the splits have, and the files of each split. ``FAULT`` makes the error
    # of a folder that has neither, with the rule of this case and the fix.
    layout = find_layout(folder, (JSONL, HDF5), FAULT)
    return _load(layout, folder, recipe)


def _load(layout: Layout, folder: Path, recipe: GlmRecipe) -> GlmData:
    """Return the training and the validation samples of ``folder``.

    Args:
        layout: has the files of each split, and their kind: HDF5 files with token ids, or
            ``.jsonl`` files with text, which is tokenised with the folder's vocabulary.

    Raises:
        DataError: a line, a token, the vocabulary or a sample is invalid.
    """
    # Each split has one file.
    (train_file,) = layout.files["train"]
    (validation_file,) = layout.files["validation"]
    if layout.kind == HDF5.kind:
        # ``evaluation``: the file lists the right candidates. For training the first is right.
        return GlmData(
            train=SparseExamples(train_file, recipe, evaluation=False),
            validation=SparseExamples(validation_file, recipe, evaluation=True),
        )
    vocabulary = open_vocabulary(find_vocabulary_file(folder / MODEL_FOLDER), recipe.vocab_size)
    train_passages = read_jsonl(train_file, vocabulary, folder / CACHE_FOLDER)
    validation_passages = read_jsonl(validation_file, vocabulary, folder / CACHE_FOLDER)
    return GlmData(
        train=ClozeExamples(
            train_passages,
            ClozeSamples.draw_for_training(train_passages, recipe.max_wrong_choices),
            seq_length=recipe.seq_length,
            file=train_file,
            trim=recipe.trim_padding,
        ),
        validation=ClozeExamples(
            validation_passages,
            ClozeSamples.list_for_evaluation(validation_passages),
            seq_length=recipe.seq_length,
            file=validation_file,
            trim=recipe.trim_padding,
        ),
    )


def check(folder: Path, recipe: GlmRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads; return the sizes of the splits and a digest of all.

    Raises:
        DataError: the first fault, with file, line or sample, rule and fix.
    """
    # Which of the two forms the splits have, and the files of each split.
    layout = find_layout(folder, (JSONL, HDF5), FAULT)
    loaded = _load(layout, folder, recipe)
    for split in (loaded.train, loaded.validation):
        # Sequences of HDF5 files are read on demand. .jsonl files were checked when they were read.
        if isinstance(split, SparseExamples):
            _check_sequences(split, folder / CACHE_FOLDER)
    files = [file for (file,) in layout.files.values()]  # each split has one file
    if layout.kind == JSONL.kind:
        files.append(find_vocabulary_file(folder / MODEL_FOLDER))
    digest = sha256(compute_digest(*files).encode())
    pretrained = recipe.init == "pretrained"
    if pretrained:
        weights_file = check_weights(folder, recipe.shape)
        digest.update(compute_digest(weights_file).encode())
    return DataFacts(
        train_samples=len(loaded.train),
        eval_samples=len(loaded.validation),
        content_id=digest.hexdigest()[:16],
        layout=layout.kind,
        # The best quality that any model can reach; it is known only for generated data.
        best_quality=BEST_ACCURACY if recipe.data == "generated" else None,
        quality_comparable=pretrained,  # a run from random weights measures only speed
    )


def _check_sequences(split: SparseExamples, cache_folder: Path) -> None:
    """Refuse a file with a sequence without target, or with ids outside the model's tables.

    The scan is slow, so its result is cached in ``cache_folder`` until the file changes.
    """
    cache_file = cache_folder / f"{split.file.stem}.json"
    with translate_read_errors(split.file, FAULT):
        # The scan refuses a missing target. It returns the smallest and the largest token id, under
        # the key "text", and position id, under "position".
        extremes = load_or_scan(
            cache_file,
            {split.file.name: split.file},  # the scan is repeated if one of these files changes
            split.stored.scan_sequences,
        )
    split.refuse_ids_outside_tables(extremes)


def check_fit(folder: Path, recipe: GlmRecipe, world_size: int, memory: RankMemory) -> int:
    """Return the number of bytes that a rank needs at least in training.

    Args:
        memory: the memory that a rank can use.

    Raises:
        EnvironmentFault: this memory is too small; the error names settings that fit, if any do.
    """
    train = load(folder, recipe).train
    mean_choices = float(train.num_choices.mean())  # candidates, and so sequences, per sample
    # Of the longest sequence of each sample. None: all sequences are padded to the recipe's length.
    mean_tokens = train.compute_mean_tokens() if recipe.trim_padding else None

    def predict_for(tried_recipe: GlmRecipe) -> Prediction:
        # ``tried_recipe`` is ``recipe``, or a smaller one that the error may propose.
        return predict(tried_recipe, world_size, choices=mean_choices, tokens=mean_tokens)

    return refuse_too_little_memory(predict_for, recipe, memory)


LATEST = "latest_checkpointed_iteration.txt"  # contains the name of the iteration's subfolder
WEIGHTS_FILE = "mp_rank_00_model_states.pt"  # in this subfolder
MAX_NAME_BYTES = 255  # of a folder, on every usual file system
CHECKPOINT_FAULT = partial(
    DataError,
    rule=f"a checkpoint folder must contain {LATEST} and <iteration>/{WEIGHTS_FILE}",
    fix=(
        "put the checkpoint of GLM-large into the folder, or add init=random; such a run is "
        "labelled performance-only"
    ),
)
SIZES_FIX = (
    "set the recipe's sizes to those of the checkpoint, or use a checkpoint with the recipe's sizes"
)
WORD_EMBEDDINGS = "word_embeddings.weight"
POSITION_EMBEDDINGS = (
    "transformer.position_embeddings.weight",
    "transformer.block_position_embeddings.weight",
)
LAYER_PREFIX = "transformer.layers."  # of the names of all layers' weights; a number follows


def find_checkpoint(folder: Path) -> Path:
    """Return the file with the weights of the latest iteration.

    A checkpoint is a folder with one subfolder for each iteration and the file ``LATEST``, which
    contains the name of the latest. It is ``folder`` itself or a subfolder of it.

    Raises:
        DataError: there is no checkpoint, or there are several, or one is split over several files.
    """
    pointer_files = [
        file for file in (folder / LATEST, *folder.glob(f"*/{LATEST}")) if file.exists()
    ]
    if len(pointer_files) != 1:
        count = len(pointer_files) if pointer_files else "no"
        raise CHECKPOINT_FAULT(f"the folder contains {count} checkpoints", where=str(folder))
    (pointer_file,) = pointer_files
    with translate_read_errors(pointer_file, CHECKPOINT_FAULT), pointer_file.open("rb") as stream:
        # Enough to see that a longer content is no name.
        iteration = stream.read(1024).decode("utf-8-sig", "replace").strip()
    if len(iteration.encode()) > MAX_NAME_BYTES or not iteration.isprintable():
        raise CHECKPOINT_FAULT(
            "the file does not contain the name of a folder", where=str(pointer_file)
        )
    file = pointer_file.parent / iteration / WEIGHTS_FILE
    # Model parallelism writes one file for each rank.
    part_names = sorted(item.name for item in file.parent.glob("mp_rank_*_model_states.pt"))
    if len(part_names) > 1:
        raise DataError(
            f"the weights are split across {', '.join(part_names)}",
            where=str(file.parent),
            rule=f"all weights must be in {WEIGHTS_FILE}",
            fix=(
                "convert the checkpoint to model-parallel size 1 with the program that wrote the "
                "checkpoint"
            ),
        )
    refuse_unreadable(file, CHECKPOINT_FAULT)
    return file


def compute_expected_shapes(shape: GlmShape) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a model of these sizes, by name.

    The head has no parameters: it uses the word embeddings.
    """
    hidden_size = shape.hidden_size
    shapes: dict[str, tuple[int, ...]] = {WORD_EMBEDDINGS: (shape.vocab_size, hidden_size)}
    # As in the published model, position ids go from 0 to ``max_positions``, both included.
    shapes |= dict.fromkeys(POSITION_EMBEDDINGS, (shape.max_positions + 1, hidden_size))

    def add_norm(name: str) -> None:
        shapes[f"{name}.weight"] = (hidden_size,)
        shapes[f"{name}.bias"] = (hidden_size,)

    def add_linear(name: str, *, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    for number in range(shape.num_layers):
        layer = f"{LAYER_PREFIX}{number}"
        add_norm(f"{layer}.input_layernorm")
        add_linear(
            f"{layer}.attention.query_key_value", inputs=hidden_size, outputs=3 * hidden_size
        )
        add_linear(f"{layer}.attention.dense", inputs=hidden_size, outputs=hidden_size)
        add_norm(f"{layer}.post_attention_layernorm")
        add_linear(f"{layer}.mlp.dense_h_to_4h", inputs=hidden_size, outputs=4 * hidden_size)
        add_linear(f"{layer}.mlp.dense_4h_to_h", inputs=4 * hidden_size, outputs=hidden_size)
    add_norm("transformer.final_layernorm")
    return shapes


def match_weights(
    stored_tensors: Iterable[StoredTensor], shapes: dict[str, tuple[int, ...]], file: Path
) -> dict[str, StoredTensor]:
    """Return the stored tensor of every parameter, by the parameter's name.

    Args:
        stored_tensors: all tensors of the checkpoint.
        shapes: shape of every parameter of the model, by name. The number of rows of a position
            table may differ in the checkpoint.
        file: the checkpoint, for errors.

    Raises:
        DataError: a parameter is missing, stored twice or of another shape, or the checkpoint has
            more layers than the model. Other tensors without a parameter are ignored.
    """
    weights = ModelWeights(
        model="a GLM with the recipe's sizes",
        shapes=shapes,
        fix=SIZES_FIX,
        wrappers=("module.", "model."),  # prefixes that names in the checkpoint may have
        any_rows=POSITION_EMBEDDINGS,  # whose number of rows may differ
        # Called with the name of a tensor that is no parameter: true ignores the tensor, false
        # refuses it. A layer that the model does not have shows that the model is another one.
        is_unused=lambda name: not name.startswith(LAYER_PREFIX),
    )
    return weights.match(stored_tensors, where=file)


def check_weights(folder: Path, shape: GlmShape) -> Path:
    """Check names and shapes of a folder's checkpoint, without reading its values; return its file.

    Raises:
        DataError: there is no checkpoint, it is unreadable, or it belongs to another model.
    """
    file = find_checkpoint(folder)
    # Called for its errors: the matched tensors are not needed.
    match_weights(list_stored_weights(file, CHECKPOINT_FAULT), compute_expected_shapes(shape), file)
    return file
