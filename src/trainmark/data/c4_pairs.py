"""C4 as the two pairs of indexed token files that MLPerf's language models train on. No torch.

This module has the published names and numbers, the check before a run, the load on a rank, and
the generator of pairs in the same form. The cases of these models share it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmark.data import language
from trainmark.data.corpus import find_source_files
from trainmark.data.indexed import (
    IndexedReader,
    check_tokens,
    get_tokens_file,
    translate_read_errors,
)
from trainmark.data.pairs import write_pairs
from trainmark.data.prepared import read_manifest
from trainmark.data.sampling import Samples, Splits, count_samples
from trainmark.errors import DataError
from trainmark.spec import DataFacts

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import Say

LAYOUT = "megatron-indexed"
CACHE_FOLDER = "indices"  # subfolder of a data folder for caches
# The published pairs: README.md of the reference, section 3; no digests are published.
TRAIN_PREFIX = "c4-train.en_6_text_document"
VALIDATION_PREFIX = "c4-validation-91205-samples.en_text_document"
TRAIN_SHARDS = range(768, 1024)  # numbers of the shards that are trained
VALIDATION_DOCUMENTS = 91_205
VALIDATION_TOKENS = 47_186_855
PUBLISHED_VOCABULARY_SIZE = 128_256  # tokens of Llama 3.1's tokenizer
GENERATED_VALIDATION_DOCUMENTS = 64
SHARD_NAME = re.compile(r"(?:.*/)?c4-(train|validation)\.(\d{5})-of-\d{5}\.json(?:\.gz)?")


def generate(folder: Path, recipe: Any) -> None:
    """Write text of an artificial language as a training and a validation pair.

    A pair is a ``.bin`` with tokens and a ``.idx``, its index.

    Args:
        folder: the folder to write into.
        recipe: has the size of the vocabulary and the seed of the text.
    """
    language.generate(folder, vocab_size=recipe.vocab_size, seed=recipe.seed, prefix=TRAIN_PREFIX)
    language.generate(
        folder,
        vocab_size=recipe.vocab_size,
        seed=recipe.seed + 1,  # other text of the same language
        prefix=VALIDATION_PREFIX,
        documents=GENERATED_VALIDATION_DOCUMENTS,
    )


def _find_pair(folder: Path, split: str, published: str) -> Path:
    """Return the path of the folder's only pair with ``split`` in its name, without the endings.

    A pair is a ``.bin`` with tokens and a ``.idx``, its index.

    Args:
        split: the split, ``train`` or ``validation``.
        published: name of the published pair, for the error.

    Raises:
        DataError: there is no such pair, or there are several.
    """
    with translate_read_errors(folder):
        index_files = sorted(folder.glob(f"*{split}*.idx"))
    if len(index_files) != 1:
        raise DataError(
            f"found {len(index_files)} .idx files with {split} in their names",
            where=str(folder),
            rule=(
                "there must be one pair of .idx and .bin files for training and one for "
                f"validation, such as {published}"
            ),
            fix="download the published pairs, or run `trainmark prepare llama31_8b tokenizer=DIR`",
        )
    return index_files[0].with_suffix("")


def load(folder: Path, recipe: Any) -> Splits:
    """Open the training and the validation pair; tokens stay on disk.

    A pair is a ``.bin`` with tokens and a ``.idx``, its index. The content id is made of digests of
    both pairs; it tells data sets apart.

    Args:
        folder: the data folder that contains both pairs.
        recipe: the recipe of the run; ``eval_samples`` limits the samples of an evaluation.

    Raises:
        DataError: a pair is missing, damaged or shorter than one sample, or does not fit
            the recipe's vocabulary; only the first fault is reported.
    """
    train, train_digest = _load_split(folder, recipe, "train", TRAIN_PREFIX)
    validation, validation_digest = _load_split(
        folder, recipe, "validation", VALIDATION_PREFIX, max_samples=recipe.eval_samples
    )
    return Splits(train, validation, content_id=f"{train_digest}-{validation_digest}")


def _load_split(
    folder: Path, recipe: Any, split: str, published: str, *, max_samples: int | None = None
) -> tuple[Samples, str]:
    """Open and check the pair of one split; return its samples and a digest of its content.

    A pair is a ``.bin`` with tokens and a ``.idx``, its index.

    Args:
        folder: the data folder that contains the pair.
        recipe: the recipe of the run, with the size of the vocabulary, the length and the seed of
            the samples, and how many samples are shuffled together.
        split: the split, ``train`` or ``validation``, which is in the names of its files.
        published: name of the published pair, for an error.
        max_samples: maximum number of samples; None: all.

    Raises:
        DataError: the pair is missing, damaged or shorter than one sample, or does not fit
            the recipe's vocabulary.
    """
    reader = IndexedReader.open(_find_pair(folder, split, published))
    if count_samples(len(reader.tokens), recipe.seq_length) == 0:
        raise DataError(
            f"the file has {len(reader.tokens)} tokens, which is less than one sample",
            where=str(get_tokens_file(reader.prefix)),
            rule=(
                "a split must contain at least one sample: seq_length + 1 = "
                f"{recipe.seq_length + 1} tokens"
            ),
            fix="lower seq_length, or use more text",
        )
    content = check_tokens(reader, folder / CACHE_FOLDER / split, vocab_size=recipe.vocab_size)
    digest = content.digest[:16]  # enough characters to tell data sets apart
    # ``Samples`` caches the shuffled orders of documents and samples in this folder, in one
    # subfolder for each seed. The folder's name contains everything else that they depend on.
    cache = folder / CACHE_FOLDER / f"{digest}-{recipe.seq_length}-{recipe.shuffled_together}"
    samples = Samples(
        reader,
        range(reader.num_documents),  # all documents of the pair
        recipe.seq_length,
        recipe.seed,
        shuffled_together=recipe.shuffled_together,
        cache=cache,
        max_samples=max_samples,
    )
    return samples, digest


def check(folder: Path, recipe: Any) -> DataFacts:
    """Check all data that ``recipe`` reads; return what a record states about them.

    The data are a pair of files (``.bin`` with tokens, ``.idx``) for training and one for
    validation. The content id is made of the digests of both pairs.

    Raises:
        DataError: a pair is missing, damaged or shorter than one sample, or does not fit
            the recipe's vocabulary; or the validation pair has the published number of documents,
            but not the published number of tokens.
    """
    loaded = load(folder, recipe)
    facts = DataFacts(
        train_samples=len(loaded.train),
        eval_samples=len(loaded.validation),
        content_id=loaded.content_id,
        layout=LAYOUT,
    )
    if recipe.data == "generated":  # made as the recipe says: no published numbers to compare with
        # No model reaches a lower loss on generated text than its entropy.
        return replace(facts, best_quality=language.compute_entropy_rate())
    # How the data differ from the published ones; any difference puts the run into the open
    # division of the benchmark.
    changed_rules = {}
    num_shards = read_manifest(folder).get("train_shards")  # None: not prepared by Trainmark
    if num_shards not in (len(TRAIN_SHARDS), None):
        changed_rules["train_shards"] = num_shards
    num_documents = len(loaded.validation.documents)
    if num_documents != VALIDATION_DOCUMENTS:
        changed_rules["validation_documents"] = num_documents
    num_tokens = loaded.validation.num_tokens
    # The published documents and tokenizer always give the same number of tokens. Another number
    # means that the files are damaged or were made with another tokenizer.
    is_published = (
        num_documents == VALIDATION_DOCUMENTS and recipe.vocab_size == PUBLISHED_VOCABULARY_SIZE
    )
    if is_published and num_tokens != VALIDATION_TOKENS:
        raise DataError(
            f"the data contains {num_tokens:,} validation tokens",
            where=str(folder),
            rule=(
                f"with Llama 3.1's tokenizer, the {VALIDATION_DOCUMENTS:,} validation documents "
                f"must have {VALIDATION_TOKENS:,} tokens in total, not counting end-of-document "
                "tokens"
            ),
            fix=(
                "download the published pairs again, or prepare the data with tokenizer= set to "
                "the folder of the Llama 3.1 tokenizer"
            ),
        )
    return replace(facts, changed_rules=changed_rules)


def prepare(raw: Path, data: Path, say: Say, *, case: str, **options: Any) -> None:
    """Write the training and the validation pair from ``c4-train.*`` and ``c4-validation.*``.

    A pair is a ``.bin`` with tokens and a ``.idx``, its index. No token ends a document: NeMo's
    script appends one only on request, and MLPerf's reference implementation does not request it
    (section 3 of its README.md). All documents of the training shards are written, but only the
    first ``VALIDATION_DOCUMENTS`` for validation, as in the published pair.

    Args:
        raw: the folder with the source files, called shards.
        data: a missing or empty folder. If it was prepared from the same files, it stays as it is.
        say: called with each line to show.
        case: name of the case, for the manifest.
        options: ``tokenizer``, the folder of the tokenizer, and ``workers``, the maximum number of
            processes.

    Raises:
        DataError: there is no shard for one of the splits, a shard or the tokenizer is missing or
            damaged, or ``data`` has any other content.
    """
    files_by_split: dict[str, dict[str, Path]] = {"train": {}, "validation": {}}
    for name, file in find_source_files(raw).items():
        match = SHARD_NAME.fullmatch(name)
        if match is None:
            continue
        split, number = match.groups()  # ``train`` or ``validation``, and the number of the shard
        if split == "validation" or int(number) in TRAIN_SHARDS:
            files_by_split[split][name] = file
    for split, shards in files_by_split.items():
        if not shards:
            raise DataError(
                f"no c4-{split}.*.json.gz file found",
                where=str(raw),
                rule=(
                    "the case uses the 8 validation shards of C4 en, and training shards "
                    f"{TRAIN_SHARDS[0]} to {TRAIN_SHARDS[-1]}"
                ),
                fix="download the shards from https://huggingface.co/datasets/allenai/c4 (en)",
            )
    num_train_shards = len(files_by_split["train"])
    if num_train_shards != len(TRAIN_SHARDS):
        say(
            f"{num_train_shards} of the {len(TRAIN_SHARDS)} training shards: runs on this data are "
            "in the open division"
        )
    write_pairs(
        raw,
        data,
        say,
        case=case,
        ends=False,
        train_shards=num_train_shards,
        pairs={
            TRAIN_PREFIX: files_by_split["train"],
            VALIDATION_PREFIX: files_by_split["validation"],
        },
        max_lines={VALIDATION_PREFIX: VALIDATION_DOCUMENTS},
        **options,
    )
