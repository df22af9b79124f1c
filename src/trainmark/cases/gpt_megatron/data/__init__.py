"""The pair in a data folder, the check before a run, and the load on a rank.

Owns which pair is read, what its bytes are called and that every id is in the vocabulary.
The check loads the data as a rank does, so that a rank finds no fault that it passed. No torch.
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
    """Return what one rank of ``world_size`` holds at the peak of a step."""
    hidden, layers, tokens = (
        recipe.hidden_size,
        recipe.num_layers,
        recipe.micro_batch_size * recipe.seq_length,
    )
    rows = recipe.padded_vocab_size
    replicas = world_size // recipe.tensor_parallel
    block = 12 * hidden**2 + 13 * hidden  # biases 3 + 1 + 4 + 1, norms 4
    sizes = Transformer(
        parameters=(rows + recipe.seq_length + 2) * hidden + layers * block,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=recipe.num_heads,
        wide=4 * hidden,
        vocab_size=rows,
        tokens=tokens,
        scores=tokens * recipe.vocab_size,
        tied_head=True,
        dropout=recipe.dropout > 0,
        checkpoint_activations=recipe.checkpoint_activations,
        tensor_parallel=recipe.tensor_parallel,
        shards=replicas if recipe.fsdp else 1,
        keeps_gradients=recipe.grad_accum_steps > 1,
        replicas=1 if recipe.fsdp else replicas,
    )
    return predict_peak_bytes(sizes, recipe)


__all__ = ["check", "check_fit", "generate", "load"]

LAYOUT = "megatron-indexed"
INDICES = "indices"  # subfolder of a data folder for what was computed from it
SPLITS = ("train", "validation", "test")
WEIGHT = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
PREPARE = "run `trainmark prepare gpt_megatron tokenizer=DIR --from RAW --data DIR`"


def generate(folder: Path, recipe: GptRecipe) -> None:
    """Write a pair in a language whose entropy is known; see ``trainmark.data.language``."""
    language.generate(folder, vocab_size=recipe.vocab_size, seed=recipe.seed)


def find_pair(folder: Path) -> Path:
    """Return the path of the folder's one pair, without the endings.

    Raises:
        DataError: no such folder, no pair, or several.
    """
    with translate_read_errors(folder):
        names = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    # A lone .bin is taken too: the reader then names the index that is missing.
    for ending in (".idx", ".bin"):
        prefixes = [name.removesuffix(ending) for name in names if name.endswith(ending)]
        if len(prefixes) == 1:
            return folder / prefixes[0]
        if prefixes:
            shown = ", ".join(prefixes[:5]) + (", …" if len(prefixes) > 5 else "")
            raise DataError(
                f"{len(prefixes)} {ending} files: {shown}",
                where=str(folder),
                rule="a data folder holds one pair of .idx and .bin",
                fix="move all but one pair away, or join them with Megatron's merge_datasets.py",
            )
    raise DataError(
        "no .idx and .bin",
        where=str(folder),
        rule="a data folder holds one pair, as corpus_text_document.idx and .bin",
        fix=PREPARE,
    )


def split_documents(split: str, num_documents: int) -> dict[str, range]:
    """Cut documents into contiguous ranges by weights, each bound rounded on its own.

    Args:
        split: one to three weights, as ``949,50,1``; those left out are 0.

    Raises:
        UsageError: no such weights.
    """
    words = [word.strip() for word in split.split(",")]
    sound = len(words) <= len(SPLITS) and all(WEIGHT.fullmatch(word) for word in words)
    weights = [float(word) for word in words] if sound else []
    total = sum(weights)
    if total <= 0.0:
        raise UsageError(
            f"no split: {split!r}",
            where="recipe field split",
            rule="one to three weights of 0 or more, not all 0: train, validation, test",
            fix="give for instance split=949,50,1",
        )
    shares = [weight / total for weight in weights] + [0.0] * (len(SPLITS) - len(weights))
    bounds = [0, *(round(share * num_documents) for share in accumulate(shares))]
    return {name: range(*pair) for name, pair in zip(SPLITS, pairwise(bounds), strict=True)}


def _refuse_empty(reader: IndexedReader, splits: dict[str, range], recipe: GptRecipe) -> None:
    """Refuse a split without one whole sample, before anything takes long."""
    for name, documents in splits.items():
        if name == "validation" and not recipe.evaluates:
            continue  # never read
        first, last = (
            int(reader.find_token_starts(range(end, end))[0])
            for end in (documents.start, documents.stop)
        )
        if count_samples(last - first, recipe.seq_length) == 0:
            raise DataError(
                f"the {name} split has {len(documents)} documents with {last - first} tokens: "
                "not one whole sample",
                where=f"{get_tokens_file(reader.prefix)}, split {recipe.split} of "
                f"{reader.num_documents} documents with {reader.num_tokens} tokens",
                rule=f"a sample takes seq_length + 1 = {recipe.seq_length + 1} tokens",
                fix="give the split more weight, lower seq_length, or give more text",
            )


def load(folder: Path, recipe: GptRecipe) -> Splits:
    """Open the pair and cut it into splits; nothing of the tokens is held in memory.

    Raises:
        UsageError: the recipe's split is not valid.
        DataError: the first fault found, with file, row or split, rule and fix.
    """
    reader = IndexedReader.open(find_pair(folder))
    splits = split_documents(recipe.split, reader.num_documents)
    del splits["test"]  # never read here
    _refuse_empty(reader, splits, recipe)
    place = folder / INDICES
    content = check_tokens(reader, place, vocab_size=recipe.vocab_size)
    train, validation = (
        Samples(reader, splits[name], recipe.seq_length, recipe.seed)
        for name in ("train", "validation")
    )
    return Splits(train, validation, content.digest[:16])


def check(folder: Path, recipe: GptRecipe) -> DataFacts:
    """Check all that ``recipe`` reads and name the content.

    Raises:
        UsageError, DataError: as ``load``.
    """
    loaded = load(folder, recipe)
    return DataFacts(
        len(loaded.train),
        len(loaded.validation),
        loaded.content_id,
        LAYOUT,
        best_quality=compute_entropy_rate() if recipe.data == "generated" else None,
    )


check_fit = make_fit_check(predict)
