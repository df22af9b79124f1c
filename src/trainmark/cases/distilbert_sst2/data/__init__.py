"""The data folder: its formats, its check before a run, and loading it on a rank.

The check runs the same code as the load, so a rank can load all data that passed the check.
No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from trainmark.data.model_folder import CONFIG_FILE, refuse_long_sequences
from trainmark.data.splits import Form, find_layout
from trainmark.data.tokenizer import find_tokenizer_file
from trainmark.digests import hash_stream
from trainmark.errors import DataError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import (
    Prediction,
    Transformer,
    predict_peak_bytes,
    refuse_too_little_memory,
)

from .generated import BEST_ACCURACY, generate
from .model_files import (
    check_weights,
    make_model_error,
    open_tokenizer,
    read_config,
    tokenize,
)
from .rows import TokenRows, read_npz, read_texts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

    from trainmark.spec import RankMemory

    from ..case import DistilbertRecipe
    from .model_files import ModelConfig


def predict(config: ModelConfig, recipe: DistilbertRecipe, world_size: int) -> Prediction:
    """Return the predicted peak memory of one rank in a step of ``world_size`` ranks."""
    sizes = Transformer(
        parameters=config.num_matrix_weights,  # biases and LayerNorms are too few to count
        num_layers=config.n_layers,
        hidden_size=config.dim,
        num_heads=config.n_heads,
        ffn_width=config.hidden_dim,
        # Required, but it changes nothing here: rows of the table matter only for a head that uses
        # the table, or with FSDP2.
        vocab_size=config.vocab_size,
        tokens=recipe.micro_batch_size * recipe.seq_length,
        scores=0,  # logits of the head: two for each row are too few to count
        tied_head=False,  # the classifier does not use the token table
        dropout=config.dropout > 0,
        # Queries, keys and values have a linear layer each. The three read the same fp32 input, but
        # under autocast each casts it by itself and saves its own half-precision copy.
        saved_inputs=3,
        # With accumulation, a micro-batch finds the gradients of earlier ones in memory.
        keeps_gradients=recipe.grad_accum_steps > 1,
        replicas=world_size,  # each rank trains a copy of the whole model
    )
    return predict_peak_bytes(sizes, recipe)


__all__ = ["check", "check_fit", "generate", "load"]  # what the core and the job call
SPLITS = ("train", "validation")
TEXT_FOLDERS = (".", "data", "sst2", "SST-2")  # where the hub and the GLUE archive keep files
NPZ = Form(
    "npz", {"train": ("train_dataset.npz",), "validation": ("eval_dataset.npz",)}, ("dataset",)
)
FORMS = (  # the first that exists is read
    NPZ,
    Form("parquet", {split: (f"{split}.parquet",) for split in SPLITS}, TEXT_FOLDERS),
    Form(
        "tsv", {"train": ("train.tsv",), "validation": ("validation.tsv", "dev.tsv")}, TEXT_FOLDERS
    ),
)
RULE = (
    "a data folder must contain model/ and one of these pairs: dataset/train_dataset.npz and "
    "dataset/eval_dataset.npz; train*.parquet and validation*.parquet; train.tsv and dev.tsv "
    "(the last two pairs may also be in data/, sst2/ or SST-2/)"
)
PREPARE = "run `trainmark prepare distilbert_sst2 --from RAW --data DIR`"


@dataclass(frozen=True, slots=True)
class DistilbertData:
    """Both splits as token rows, and what the check needs to know about them.

    Args:
        config: the model's sizes.
        layout: name of the form of the files.
        used_files: files of the model folder that the rows depend on.
        digest: of the rows as they were read.
    """

    train: TokenRows
    validation: TokenRows
    config: ModelConfig
    layout: str
    used_files: list[Path]
    digest: str


def load(folder: Path, recipe: DistilbertRecipe) -> DistilbertData:
    """Read both splits as token rows, from npz files with token ids or from files with text.

    Raises:
        DataError: the first fault, with file, row or key, rule and fix.
    """
    # Which form the splits have (npz, parquet or TSV), and the files of each split.
    layout = find_layout(folder, FORMS, partial(DataError, rule=RULE, fix=PREPARE))
    model = folder / "model"
    config = read_config(model)
    positions = config.max_position_embeddings
    refuse_long_sequences(model, positions=positions, seq_length=recipe.seq_length)
    # The files of the model folder that the token rows depend on. The content id of the data is
    # computed from them and from the digests of both splits.
    used_files = [model / CONFIG_FILE]
    tokenizer = None
    if layout.kind != NPZ.kind:  # an npz file has ids already and needs no tokenizer
        tokenizer = open_tokenizer(model, config)
        # The optional ``tokenizer_config.json`` is not among them: ``open_tokenizer`` refuses
        # settings that differ from those of this file, so they change no token.
        used_files.append(find_tokenizer_file(model, make_model_error))
    train, train_digest = _load_split(layout.files["train"], config, recipe, tokenizer)
    validation, validation_digest = _load_split(
        layout.files["validation"], config, recipe, tokenizer
    )
    return DistilbertData(
        train=train,
        validation=validation,
        config=config,
        layout=layout.kind,
        used_files=used_files,
        digest=train_digest + validation_digest,
    )


def _load_split(
    files: Sequence[Path],
    config: ModelConfig,
    recipe: DistilbertRecipe,
    tokenizer: Tokenizer | None,
) -> tuple[TokenRows, str]:
    """Return a split as token rows, and a digest of what its files contain.

    The digest covers sentences before they are tokenized, or the ids of an npz file; and labels.

    Args:
        files: of the split.
        tokenizer: for files with text; None: the only file is an npz file, which has token ids.
    """
    digest = sha256()
    num_truncated = 0  # rows of an npz file are never truncated
    if tokenizer is None:
        ids, labels = read_npz(
            files[0],
            seq_length=recipe.seq_length,
            vocab_size=config.vocab_size,
            pad_token_id=config.pad_token_id,
        )
        for array in (ids.values, ids.starts, labels):
            digest.update(array.tobytes())
    else:
        texts = read_texts(files)
        digest.update("\n".join(texts.sentences).encode() + bytes(texts.labels))
        ids, labels, num_truncated = tokenize(tokenizer, texts, recipe.seq_length)
    rows = TokenRows(
        ids=ids,
        labels=labels,
        seq_length=recipe.seq_length,
        pad_token_id=config.pad_token_id,
        num_truncated=num_truncated,
    )
    return rows, digest.hexdigest()


def check(folder: Path, recipe: DistilbertRecipe) -> DataFacts:
    """Check every file that a run with ``recipe`` reads; return facts of the data.

    Its content id is a sha256 of the rows and of the model's files. It covers the values of the
    rows and not the bytes of their files, so equal rows that another library version wrote have
    the same id.

    Raises:
        DataError: a file is missing or invalid, or does not fit the others or the recipe.
    """
    loaded = load(folder, recipe)
    pretrained = recipe.init == "pretrained"
    files = list(loaded.used_files)
    if pretrained:
        files.append(check_weights(folder / "model", loaded.config))
    digest = sha256(loaded.digest.encode())
    for file in files:
        with file.open("rb") as stream:
            digest.update(hash_stream(stream).digest())
    return DataFacts(
        train_samples=len(loaded.train),
        eval_samples=len(loaded.validation),
        content_id=digest.hexdigest()[:16],
        layout=loaded.layout,
        # Known for generated data only: a known share of its labels is wrong.
        best_quality=BEST_ACCURACY if recipe.data == "generated" else None,
        quality_comparable=pretrained,  # a run from random weights measures only speed
    )


def check_fit(folder: Path, recipe: DistilbertRecipe, world_size: int, memory: RankMemory) -> int:
    """Return the minimum of bytes that a rank needs; refuse a recipe that needs more than it has.

    Raises:
        EnvironmentFault: with the memory needed; the fix names settings that fit, if there are any.
    """
    config = read_config(folder / "model")

    def predict_for(tried_recipe: DistilbertRecipe) -> Prediction:
        """Predict for the recipe, or for a smaller one that the error may propose."""
        return predict(config, tried_recipe, world_size)

    return refuse_too_little_memory(predict_for, recipe, memory)
