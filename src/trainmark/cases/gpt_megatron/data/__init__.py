"""The pair of token files in a data folder, its check before a run, and the load on a rank.

The check runs the same code as the load, so a rank can load all data that passed the check.
No torch.
"""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from trainmark.data import language
from trainmark.data.indexed import (
    IndexedReader,
    check_tokens,
    get_tokens_file,
    translate_read_errors,
)
from trainmark.data.language import compute_entropy_rate
from trainmark.data.sampling import Samples, Splits, count_samples
from trainmark.errors import DataError, UsageError
from trainmark.spec import DataFacts
from trainmark.train.step_memory import (
    Prediction,
    Transformer,
    make_fit_check,
    predict_peak_bytes,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ..case import GptRecipe


def predict(recipe: GptRecipe, world_size: int) -> Prediction:
    """Return the predicted peak memory of one rank of ``world_size`` in a step."""
    hidden = recipe.hidden_size
    layers = recipe.num_layers
    tokens = recipe.micro_batch_size * recipe.seq_length
    rows = recipe.padded_vocab_size
    replicas = world_size // recipe.tensor_parallel
    # Matrices, in units of hidden x hidden: query, key, value and result 4, feed-forward layers
    # 4 + 4. In units of hidden: biases of the same layers 3 + 1 and 4 + 1, and weight and bias of
    # two norms 4.
    block = 12 * hidden**2 + 13 * hidden
    sizes = Transformer(
        # Token table, position table, and weight and bias of the last norm; then the blocks.
        parameters=(rows + recipe.seq_length + 2) * hidden + layers * block,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=recipe.num_heads,
        ffn_width=4 * hidden,
        vocab_size=rows,
        tokens=tokens,
        # Padding rows of the token table are no classes, so they have no logits.
        scores=tokens * recipe.vocab_size,
        tied_head=True,
        dropout=recipe.dropout > 0,
        checkpoint_activations=recipe.checkpoint_activations,
        tensor_parallel=recipe.tensor_parallel,
        # FSDP2 shards one replica over the ranks; DDP trains several whole ones.
        shards=replicas if recipe.fsdp else 1,
        replicas=1 if recipe.fsdp else replicas,
        # With accumulation, a micro-batch finds the gradients of earlier ones in memory.
        keeps_gradients=recipe.grad_accum_steps > 1,
    )
    return predict_peak_bytes(sizes, recipe)


__all__ = ["check", "check_fit", "generate", "load"]

LAYOUT = "megatron-indexed"
INDICES = "indices"  # subfolder of a data folder for caches
SPLITS = ("train", "validation", "test")
WEIGHT = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
PREPARE = "run `trainmark prepare gpt_megatron tokenizer=DIR --from RAW --data DIR`"


def generate(folder: Path, recipe: GptRecipe) -> None:
    """Write a pair with generated text; see ``trainmark.data.language``."""
    language.generate(folder, vocab_size=recipe.vocab_size, seed=recipe.seed)


def find_pair(folder: Path) -> Path:
    """Return the path of the folder's only pair of .idx and .bin files, without the endings.

    Raises:
        DataError: there is no such folder, no pair, or more than one.
    """
    with translate_read_errors(folder):
        names = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    # Pairs are counted by their .idx files. If there is none, a .bin file is taken, and the reader
    # reports the missing .idx file.
    for ending in (".idx", ".bin"):
        prefixes = [name.removesuffix(ending) for name in names if name.endswith(ending)]
        if len(prefixes) == 1:
            return folder / prefixes[0]
        if prefixes:
            listed = ", ".join(prefixes[:5])
            if len(prefixes) > 5:
                listed += ", …"
            raise DataError(
                f"the folder contains {len(prefixes)} {ending} files: {listed}",
                where=str(folder),
                rule="a data folder must contain exactly one pair of .idx and .bin files",
                fix=(
                    "keep one pair in this folder and move the rest elsewhere, or merge all of "
                    "them with Megatron's merge_datasets.py"
                ),
            )
    raise DataError(
        "the folder contains no pair of .idx and .bin files",
        where=str(folder),
        rule=(
            "a data folder must contain one pair of files, such as corpus_text_document.idx and "
            "corpus_text_document.bin"
        ),
        fix=PREPARE,
    )


def split_documents(split: str, num_documents: int) -> dict[str, range]:
    """Divide documents into consecutive ranges by weights; each bound is rounded separately.

    Args:
        split: one to three weights, as ``949,50,1``; missing ones are 0.

    Raises:
        UsageError: the weights are invalid.
    """
    words = [word.strip() for word in split.split(",")]
    weights = [float(word) for word in words if WEIGHT.fullmatch(word)]
    total = sum(weights)
    if len(weights) < len(words) or len(words) > len(SPLITS) or total <= 0.0:
        raise UsageError(
            f"split={split!r} is not valid",
            where="recipe field split",
            rule=(
                "split must list one to three non-negative weights (train, validation, test), at "
                "least one of them above 0"
            ),
            fix="use, for example, split=949,50,1",
        )
    shares = [weight / total for weight in weights] + [0.0] * (len(SPLITS) - len(weights))
    bounds = [0, *(round(share * num_documents) for share in accumulate(shares))]
    splits = {}
    for name, (first, end) in zip(SPLITS, pairwise(bounds), strict=True):
        splits[name] = range(first, end)
    return splits


def _refuse_empty_splits(
    reader: IndexedReader, splits: dict[str, range], recipe: GptRecipe
) -> None:
    """Refuse a split without one whole sample, before the tokens are read.

    Args:
        splits: index range of the documents of the training and of the validation split. The test
            split, which no run reads, is not among them and may be empty.
    """
    for name, documents in splits.items():
        if name == "validation" and not recipe.evaluates:
            continue  # the run does not read it
        num_tokens = _count_tokens_before(reader, documents.stop)
        num_tokens -= _count_tokens_before(reader, documents.start)
        if count_samples(num_tokens, recipe.seq_length) == 0:
            raise DataError(
                f"the {name} split has only {num_tokens} tokens in {len(documents)} document(s), "
                "which is less than one sample",
                where=f"{get_tokens_file(reader.prefix)}, split {recipe.split} of "
                f"{reader.num_documents} documents with {reader.num_tokens} tokens",
                rule=(
                    "a split must contain at least one sample: seq_length + 1 = "
                    f"{recipe.seq_length + 1} tokens"
                ),
                fix="give the split more weight, lower seq_length, or use more text",
            )


def _count_tokens_before(reader: IndexedReader, document: int) -> int:
    """Return the number of tokens in all documents before ``document``."""
    # The method returns the index of the first token of each document in the range and, last, the
    # index at which the range ends. Of an empty range it returns only this last index, at which
    # ``document`` starts.
    starts = reader.find_token_starts(range(document, document))
    return int(starts[0])


def load(folder: Path, recipe: GptRecipe) -> Splits:
    """Open the folder's pair of .idx and .bin files as splits; the tokens stay on disk.

    Raises:
        UsageError: the recipe's split is invalid.
        DataError: the first fault, with file or split, rule and fix.
    """
    reader = IndexedReader.open(find_pair(folder))
    splits = split_documents(recipe.split, reader.num_documents)
    del splits["test"]  # no run reads it
    _refuse_empty_splits(reader, splits, recipe)
    # Raises an error if a token id is outside the vocabulary; caches the result in this folder.
    content = check_tokens(reader, folder / INDICES, vocab_size=recipe.vocab_size)
    return Splits(
        train=Samples(reader, splits["train"], recipe.seq_length, recipe.seed),
        validation=Samples(reader, splits["validation"], recipe.seq_length, recipe.seed),
        content_id=content.digest[:16],
    )


def check(folder: Path, recipe: GptRecipe) -> DataFacts:
    """Check all data that ``recipe`` reads; return its facts with the content id.

    Raises:
        UsageError: the recipe's split is invalid.
        DataError: the first fault, with file or split, rule and fix.
    """
    loaded = load(folder, recipe)
    return DataFacts(
        train_samples=len(loaded.train),
        eval_samples=len(loaded.validation),
        content_id=loaded.content_id,
        layout=LAYOUT,
        # The quality is a loss: no model gets below the entropy of the generated language. That of
        # real text is not known.
        best_quality=compute_entropy_rate() if recipe.data == "generated" else None,
    )


check_fit = make_fit_check(predict)
