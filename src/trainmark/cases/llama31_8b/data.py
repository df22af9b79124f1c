"""The two pairs in a data folder, the check before a run, and the load on a rank. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.data import language
from trainmark.data.indexed import IndexedReader, bin_file, checked_tokens, readable
from trainmark.data.prepared import read_manifest
from trainmark.data.sampling import Samples, Splits, sample_count
from trainmark.errors import DataError
from trainmark.recipe import AUTOCAST
from trainmark.spec import DataFacts
from trainmark.train.step_memory import (
    ADAM_MOMENTS,
    FULL,
    HALF,
    SCORES_AT_ONCE,
    Prediction,
    cached_scores,
    refuse_too_little,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import RankMemory

    from .case import Llama31Recipe

LAYOUT = "megatron-indexed"
INDICES = "indices"  # subfolder of a data folder for what was computed from it
# The published pairs: README.md of the reference, section 3; their digests are not published.
TRAIN, VALIDATION = "c4-train.en_6_text_document", "c4-validation-91205-samples.en_text_document"
TRAIN_SHARDS = range(768, 1024)
VALIDATION_DOCUMENTS, VALIDATION_TOKENS, VOCABULARY = 91_205, 47_186_855, 128_256
GENERATED_DOCUMENTS = 64  # for validation


def generate(folder: Path, recipe: Llama31Recipe) -> None:
    """Write both pairs in a language whose entropy is known; see ``trainmark.data.language``."""
    vocab_size, seed = recipe.vocab_size, recipe.seed
    language.generate(folder, vocab_size=vocab_size, seed=seed, prefix=TRAIN)
    language.generate(
        folder, vocab_size=vocab_size, seed=seed + 1, prefix=VALIDATION,
        documents=GENERATED_DOCUMENTS,
    )  # fmt: skip


def _pair(folder: Path, word: str, published: str) -> Path:
    """Return the path of the folder's one pair with ``word`` in its name, without the endings."""
    with readable(folder):
        index_files = sorted(file for file in folder.glob(f"*{word}*.idx"))
    if len(index_files) != 1:
        raise DataError(
            f"{len(index_files)} indices with {word} in their names",
            where=str(folder),
            rule=f"one pair of .idx and .bin each for train and validation, as {published}",
            fix="download the published pairs, or `trainmark prepare llama31_8b tokenizer=DIR`",
        )
    return index_files[0].with_suffix("")


def load(folder: Path, recipe: Llama31Recipe) -> Splits:
    """Open both pairs; nothing of the tokens is held in memory.

    Raises:
        DataError: the first fault found, with file, rule and fix.
    """
    made, digests = [], []
    for word, published, max_samples in (
        ("train", TRAIN, None), ("validation", VALIDATION, recipe.eval_samples)
    ):  # fmt: skip
        reader = IndexedReader.open(_pair(folder, word, published))
        if sample_count(len(reader.tokens), recipe.seq_length) == 0:
            raise DataError(
                f"{len(reader.tokens)} tokens: not one whole sample",
                where=str(bin_file(reader.prefix)),
                rule=f"a sample takes seq_length + 1 = {recipe.seq_length + 1} tokens",
                fix="lower seq_length, or give more text",
            )
        content = checked_tokens(reader, folder / INDICES / word, vocab_size=recipe.vocab_size)
        digests.append(content.digest[:16])
        together = recipe.shuffled_together
        order = f"{content.digest[:16]}-{recipe.seq_length}-{together}"
        made.append(
            Samples(
                reader, range(reader.num_documents), recipe.seq_length, recipe.seed,
                together=together, cache=folder / INDICES / order, most=max_samples,
            )
        )  # fmt: skip
    train, validation = made
    return Splits(train, validation, "-".join(digests))


def check(folder: Path, recipe: Llama31Recipe) -> DataFacts:
    """Check all that ``recipe`` reads and name the content.

    Raises:
        DataError: as ``load``.
    """
    loaded = load(folder, recipe)
    facts = (len(loaded.train), len(loaded.validation), loaded.content_id, LAYOUT)
    if recipe.data == "generated":
        return DataFacts(*facts, best_quality=language.entropy_rate())
    samples = loaded.validation
    changed = {
        name: value
        for name, value, published in (
            ("train_shards", read_manifest(folder).get("train_shards"), len(TRAIN_SHARDS)),
            ("validation_documents", len(samples.documents), VALIDATION_DOCUMENTS),
        )
        if value not in (published, None)  # none: made by another program
    }
    published = "validation_documents" not in changed and recipe.vocab_size == VOCABULARY
    if published and samples.num_tokens != VALIDATION_TOKENS:
        raise DataError(
            f"{samples.num_tokens:,} validation tokens",
            where=str(folder),
            rule=f"the {VALIDATION_DOCUMENTS:,} documents have {VALIDATION_TOKENS:,} tokens of "
            "Llama 3.1's tokenizer, none of which ends a document",
            fix="download the published pairs again, or prepare with tokenizer= Llama 3.1's",
        )
    return DataFacts(*facts, changed_rules=changed)


def predict(recipe: Llama31Recipe, world_size: int) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a step.

    The peak is where the forward pass ends, in the backward pass of the last or of the first block,
    or where that pass ends with all gradients; names and terms follow the library's Llama.
    """
    cut, replicas = recipe.tensor_parallel, world_size // recipe.tensor_parallel
    half = recipe.precision in AUTOCAST
    number = HALF if half else FULL  # in matmuls
    hidden, ffn, layers = recipe.hidden_size, recipe.ffn_size, recipe.num_layers
    tokens = recipe.micro_batch_size * recipe.seq_length
    heads, kept = recipe.num_heads, hidden // recipe.num_heads * recipe.num_kv_heads
    table = recipe.vocab_size * hidden
    whole = recipe.matmul_weights + table + (2 * layers + 1) * hidden
    of_block = (recipe.matmul_weights - table) // layers
    sharded = recipe.fsdp and replicas > 1
    held = whole // (cut * replicas if sharded else cut)
    gathered = (2 * table + min(2, layers) * of_block) // cut if sharded else 0  # FSDP2: the root's
    stream = tokens * hidden * FULL // (cut if recipe.sequence_parallel else 1)
    inside = tokens * number // cut
    copies = of_block * HALF // cut if half else 0  # of a block's weights, by autocast
    # Two norms save their input and result; query, key, value, result of attention; inputs of
    # matmuls, one copy for each under autocast; four results of the feed-forward layer.
    inputs = 5 if half else 2
    block = 4 * stream + inside * ((2 + inputs) * hidden + 2 * kept + 4 * ffn)
    block += tokens * heads * FULL // cut
    # Its backward pass: gradients of two results of that layer, of the stream and of a matrix.
    temporary = 2 * inside * ffn + stream + hidden * ffn * number // cut
    saved = block + copies
    if recipe.checkpoint_activations != "none" or recipe.compile:
        results = 0
        if recipe.checkpoint_activations == "selective":  # of matmuls and attention
            results = inside * (4 * hidden + 2 * kept + 2 * ffn)
        temporary += saved - stream - results
        saved = stream + results
    scores = tokens * recipe.vocab_size  # of the head, on every rank
    if recipe.kernels == "library":  # log-probabilities, their gradient and that of the scores
        head = 4 * stream + 3 * scores * FULL
    else:
        at_once = min(scores // cut, SCORES_AT_ONCE)
        head = 4 * stream + (table // cut + at_once) * FULL
        if half:
            head += inside * hidden + at_once * HALF
    cache = 0 if saved > block else layers * copies  # autocast's, to the end of the forward pass
    grads, shards = held * FULL, replicas if sharded else 1
    of_head, of_one = table * FULL // (cut * shards), of_block * FULL // (cut * shards)
    early = grads if recipe.grad_accum_steps > 1 else 0
    peaks = (
        (early, layers * saved + cache + head),
        (max(early, of_head), layers * saved + temporary),
        (max(early, grads - of_head - of_one), saved + temporary),
        (grads, stream),
    )
    gradients, activations = max(peaks, key=sum)
    # As ``step_memory`` says of what an allocator keeps.
    cached = 2 * gathered * FULL
    if not sharded and recipe.kernels == "library":
        cached = cached_scores(scores)
    return Prediction(
        weights=(held + gathered) * FULL, optimizer=held * FULL * ADAM_MOMENTS,
        gradients=gradients, activations=activations, cached=cached,
    )  # fmt: skip


def check_fit(folder: Path, recipe: Llama31Recipe, world_size: int, memory: RankMemory) -> int:
    """Refuse a recipe that needs more than ``memory``; see ``step_memory.refuse_too_little``."""
    del folder  # the recipe has all sizes
    return refuse_too_little(lambda other: predict(other, world_size), recipe, memory)
