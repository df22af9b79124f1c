"""C4 as the two pairs of indexed token files that MLPerf's language models train on. No torch.

This module has the published names and numbers, the check before a run, the load on a rank, and
the generator of pairs in the same form. The cases of these models share it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainmark.data import language
from trainmark.data.encoding import find_source_files, write_pairs
from trainmark.data.indexed import (
    IndexedReader,
    check_tokens,
    get_tokens_file,
    translate_read_errors,
)
from trainmark.data.prepared import read_manifest
from trainmark.data.sampling import Samples, Splits, count_samples
from trainmark.errors import DataError
from trainmark.spec import DataFacts

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import Say

LAYOUT = "megatron-indexed"
INDICES = "indices"  # subfolder of a data folder for caches
# The published pairs: README.md of the reference, section 3; no digests are published.
TRAIN, VALIDATION = "c4-train.en_6_text_document", "c4-validation-91205-samples.en_text_document"
TRAIN_SHARDS = range(768, 1024)
VALIDATION_DOCUMENTS, VALIDATION_TOKENS, VOCABULARY = 91_205, 47_186_855, 128_256
GENERATED_DOCUMENTS = 64  # for validation
SHARD = re.compile(r"(?:.*/)?c4-(train|validation)\.(\d{5})-of-\d{5}\.json(?:\.gz)?")


def generate(folder: Path, recipe: Any) -> None:
    """Write both pairs with generated text; see ``trainmark.data.language``."""
    vocab_size, seed = recipe.vocab_size, recipe.seed
    language.generate(folder, vocab_size=vocab_size, seed=seed, prefix=TRAIN)
    language.generate(
        folder,
        vocab_size=vocab_size,
        seed=seed + 1,
        prefix=VALIDATION,
        documents=GENERATED_DOCUMENTS,
    )


def _find_pair(folder: Path, word: str, published: str) -> Path:
    """Return the path of the folder's one pair with ``word`` in its name, without the endings."""
    with translate_read_errors(folder):
        index_files = sorted(file for file in folder.glob(f"*{word}*.idx"))
    if len(index_files) != 1:
        raise DataError(
            f"{len(index_files)} indices with {word} in their names",
            where=str(folder),
            rule=(
                "there must be one pair of .idx and .bin for training and one for validation, as "
                f"{published}"
            ),
            fix="download the published pairs, or run `trainmark prepare llama31_8b tokenizer=DIR`",
        )
    return index_files[0].with_suffix("")


def load(folder: Path, recipe: Any) -> Splits:
    """Open both pairs; the tokens stay on disk.

    Raises:
        DataError: the first fault, with file, rule and fix.
    """
    splits, digests = [], []
    for word, published, max_samples in (
        ("train", TRAIN, None),
        ("validation", VALIDATION, recipe.eval_samples),
    ):
        reader = IndexedReader.open(_find_pair(folder, word, published))
        if count_samples(len(reader.tokens), recipe.seq_length) == 0:
            raise DataError(
                f"{len(reader.tokens)} tokens, less than one sample",
                where=str(get_tokens_file(reader.prefix)),
                rule=f"a sample takes seq_length + 1 = {recipe.seq_length + 1} tokens",
                fix="lower seq_length, or use more text",
            )
        content = check_tokens(reader, folder / INDICES / word, vocab_size=recipe.vocab_size)
        digests.append(content.digest[:16])
        shuffled_together = recipe.shuffled_together
        order = f"{content.digest[:16]}-{recipe.seq_length}-{shuffled_together}"
        splits.append(
            Samples(
                reader,
                range(reader.num_documents),
                recipe.seq_length,
                recipe.seed,
                shuffled_together=shuffled_together,
                cache=folder / INDICES / order,
                max_samples=max_samples,
            )
        )
    train, validation = splits
    return Splits(train, validation, "-".join(digests))


def check(folder: Path, recipe: Any) -> DataFacts:
    """Check all data that ``recipe`` reads; return its facts with the content id.

    Raises:
        DataError: see ``load``, or validation data with the wrong number of tokens.
    """
    loaded = load(folder, recipe)
    facts = (len(loaded.train), len(loaded.validation), loaded.content_id, LAYOUT)
    if recipe.data == "generated":
        return DataFacts(*facts, best_quality=language.compute_entropy_rate())
    samples = loaded.validation
    changed = {
        name: value
        for name, value, published in (
            ("train_shards", read_manifest(folder).get("train_shards"), len(TRAIN_SHARDS)),
            ("validation_documents", len(samples.documents), VALIDATION_DOCUMENTS),
        )
        if value not in (published, None)  # None: another program prepared the data
    }
    published = "validation_documents" not in changed and recipe.vocab_size == VOCABULARY
    if published and samples.num_tokens != VALIDATION_TOKENS:
        raise DataError(
            f"{samples.num_tokens:,} validation tokens",
            where=str(folder),
            rule=(
                f"the {VALIDATION_DOCUMENTS:,} documents must have {VALIDATION_TOKENS:,} tokens "
                "of Llama 3.1's tokenizer, without end-of-document tokens"
            ),
            fix=(
                "download the published pairs again, or prepare the data with tokenizer= set to "
                "Llama 3.1's"
            ),
        )
    return DataFacts(*facts, changed_rules=changed)


def prepare(raw: Path, data: Path, say: Say, *, case: str, **options: Any) -> None:
    """Write both pairs from a folder with ``c4-train.*`` and ``c4-validation.*``.

    No token ends a document: NeMo's script appends one only on request, and the reference does not
    request it (README.md, section 3).

    Args:
        options: ``tokenizer`` and ``workers``; see ``write_pairs``.

    Raises:
        DataError: there is no shard for one of the splits; see also ``write_pairs``.
    """
    files_by_split: dict[str, dict[str, Path]] = {"train": {}, "validation": {}}
    for name, file in find_source_files(raw).items():
        if match := SHARD.fullmatch(name):
            kind, number = match.groups()
            if kind == "validation" or int(number) in TRAIN_SHARDS:
                files_by_split[kind][name] = file
    first, last = TRAIN_SHARDS[0], TRAIN_SHARDS[-1]
    for kind, shards in files_by_split.items():
        if not shards:
            raise DataError(
                f"no file c4-{kind}.*.json.gz",
                where=str(raw),
                rule=(
                    f"C4 en has 1,024 training shards, of which {first} to {last} are used, and "
                    "8 for validation"
                ),
                fix="download them from https://huggingface.co/datasets/allenai/c4 (en)",
            )
    count = len(files_by_split["train"])
    if count != len(TRAIN_SHARDS):
        say(
            f"{count} of the {len(TRAIN_SHARDS)} training shards: runs on this data are in the "
            "open division"
        )
    write_pairs(
        raw,
        data,
        say,
        case=case,
        ends=False,
        train_shards=count,
        pairs={TRAIN: files_by_split["train"], VALIDATION: files_by_split["validation"]},
        max_lines={VALIDATION: VALIDATION_DOCUMENTS},
        **options,
    )
