"""The pair in a data folder, the check before a run, and the load on a rank.

Owns which pair is read, what its bytes are called and that every id is in the vocabulary.
The check is the load with its findings written down, so what passed it cannot surprise a
rank. No torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import replace_file
from trainmark.data.vocabulary import refuse_short
from trainmark.errors import DataError
from trainmark.spec import DataFacts

from .generate import generate
from .index_layout import bin_file, idx_file, readable
from .indexed import BLOCK_BYTES, IndexedReader
from .sampling import Samples, sample_count, split_documents

if TYPE_CHECKING:
    from pathlib import Path

    from .case import GptRecipe

__all__ = ["check", "generate", "load"]  # what the core and the job call
LAYOUT = "megatron-indexed"
MANIFEST = "manifest.json"  # of ``prepare``
PADDED_TO = 128  # as Megatron pads: 50257 tokens of GPT-2, a table of 50304
INDICES = "indices"  # subfolder of a data folder for what was computed from it
FORMAT = 1  # of the kept contents
PREPARE = "run `trainmark prepare gpt_megatron --from RAW --tokenizer DIR --data DIR`"


@dataclass(frozen=True, slots=True)
class Content:
    """What reading every byte of a pair found.

    Args:
        content_id: from a sha256 over the index and the tokens.
        smallest, largest: token ids.
        smallest_at, largest_at: where each stands first, in tokens from the pair's start.
    """

    content_id: str
    smallest: int
    smallest_at: int
    largest: int
    largest_at: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a rank trains and scores."""

    train: Samples
    validation: Samples


def find_pair(folder: Path) -> Path:
    """Return the path of the folder's one pair, without the endings.

    Raises:
        DataError: no such folder, no pair, or several.
    """
    with readable(folder):
        names = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    # A lone .bin is taken too: the reader then names the index that is missing.
    for ending in (".idx", ".bin"):
        found = [name.removesuffix(ending) for name in names if name.endswith(ending)]
        if len(found) == 1:
            return folder / found[0]
        if found:
            shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
            raise DataError(
                f"{len(found)} {ending} files: {shown}",
                where=str(folder),
                rule="a data folder holds one pair of .idx and .bin",
                remedy="move all but one pair away, or join them with Megatron's merge_datasets.py",
            )
    raise DataError(
        "no .idx and .bin",
        where=str(folder),
        rule="a data folder holds one pair, as corpus_text_document.idx and .bin",
        remedy=PREPARE,
    )


def read_content(reader: IndexedReader, place: Path) -> Content:
    """Return what the bytes of a pair are; kept in ``place`` for as long as the files stay.

    Reading a large corpus takes minutes, so the answer is kept under both files' sizes and
    times of change. Where nothing can be kept it is computed each time.
    """
    files = [idx_file(reader.prefix), bin_file(reader.prefix)]
    with readable(files[1]):  # before reading: a change while we read is then seen next time
        stats = {file.name: file.stat() for file in files}
    key = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    file = place / "content.json"
    found = _kept_content(file, key)
    if found is None:
        found = _scan(reader)
        text = json.dumps({"format": FORMAT, "files": key, **asdict(found)}, indent=1) + "\n"
        replace_file(file, lambda stream: stream.write(text.encode()))
    return found


def _kept_content(file: Path, key: dict[str, list[int]]) -> Content | None:
    """Return the kept findings, or none where they are absent, damaged or of other files."""
    try:
        kept: Any = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.pop("format", None) != FORMAT:
        return None
    kinds = {name: str if name == "content_id" else int for name in Content.__slots__}
    if kept.pop("files", None) != key or kept.keys() != kinds.keys():
        return None
    if any(type(kept[name]) is not kind for name, kind in kinds.items()):
        return None
    return Content(**kept)


def _scan(reader: IndexedReader) -> Content:
    """Read every byte once."""
    tokens, digest = reader.tokens, sha256()
    index = idx_file(reader.prefix)
    with readable(index), index.open("rb") as stream:
        file_digest(stream, lambda: digest)
    smallest_at = largest_at = 0
    step = BLOCK_BYTES // reader.dtype.itemsize
    for first in range(0, len(tokens), step):
        block = np.asarray(tokens[first : first + step])
        digest.update(block.data)
        if block.min() < tokens[smallest_at]:
            smallest_at = first + int(block.argmin())
        if block.max() > tokens[largest_at]:
            largest_at = first + int(block.argmax())
    return Content(
        digest.hexdigest()[:16], int(tokens[smallest_at]), smallest_at,
        int(tokens[largest_at]), largest_at,
    )  # fmt: skip


def _refuse_ids(reader: IndexedReader, content: Content, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary, naming the document of the worst one."""
    for token, at in (
        (content.smallest, content.smallest_at), (content.largest, content.largest_at),
    ):  # fmt: skip
        if 0 <= token < vocab_size:
            continue
        noted = _noted_vocab_size(reader.prefix.parent) or "that"
        starts = reader.token_starts(range(reader.num_documents))
        document = int(np.searchsorted(starts, at, side="right")) - 1
        raise DataError(
            f"token id {token}",
            where=f"{bin_file(reader.prefix)}, document {document}, "
            f"token {at - starts[document]} (both counted from 0)",
            rule=f"a token id lies in [0, {vocab_size}), the recipe's vocab_size",
            remedy=f"set vocab_size to {noted} of the tokenizer "
            "the data was made with, or prepare the data again",
        )


def _refuse_empty(reader: IndexedReader, splits: dict[str, range], recipe: GptRecipe) -> None:
    """Refuse a split without one whole sample, before anything takes long."""
    for name, documents in splits.items():
        if name == "validation" and not recipe.evaluates:
            continue  # never read
        first, last = (
            int(reader.token_starts(range(end, end))[0])
            for end in (documents.start, documents.stop)
        )
        if sample_count(last - first, recipe.seq_length) == 0:
            raise DataError(
                f"the {name} split has {len(documents)} documents with {last - first} tokens: "
                "not one whole sample",
                where=f"{bin_file(reader.prefix)}, split {recipe.split} of "
                f"{reader.num_documents} documents with {reader.num_tokens} tokens",
                rule=f"a sample takes seq_length + 1 = {recipe.seq_length + 1} tokens",
                remedy=_more_for(name, len(documents), reader.num_documents, recipe.split),
            )


def _noted_vocab_size(folder: Path) -> int | None:
    """Return the entries of the vocabulary that ``prepare`` noted beside the data."""
    try:
        noted = json.loads((folder / MANIFEST).read_bytes())["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # made by another program: it alone knows
    return noted if isinstance(noted, int) else None


def _refuse_short_vocabulary(folder: Path, vocab_size: int) -> None:
    """Refuse a model with more entries than the tokenizer, padding allowed, where it is known."""
    noted = _noted_vocab_size(folder)
    if noted is not None:
        refuse_short(
            folder / MANIFEST, entries=noted, vocab_size=vocab_size, of="the recipe",
            multiple=PADDED_TO, remedy=f"set vocab_size={noted}",
        )  # fmt: skip


def _more_for(name: str, documents: int, of: int, split: str) -> str:
    """Return the way out for a split without a whole sample."""
    if documents == of:
        return "lower seq_length, or give more text: the split has all documents already"
    usual = "949,50,1"
    example = f" (for instance split={usual})" if split.replace(" ", "") != usual else ""
    return f"give the {name} split more weight{example}, lower seq_length, or give more text"


def load(folder: Path, recipe: GptRecipe) -> Loaded:
    """Open the pair and cut it into splits; nothing of the tokens is held in memory.

    Raises:
        UsageError: the recipe's split is none.
        DataError: the first fault found, with file, row or split, rule and way out.
    """
    reader = IndexedReader.open(find_pair(folder))
    splits = split_documents(recipe.split, reader.num_documents)
    del splits["test"]  # never read here
    _refuse_empty(reader, splits, recipe)
    place = folder / INDICES
    content = read_content(reader, place)
    _refuse_ids(reader, content, recipe.vocab_size)
    _refuse_short_vocabulary(folder, recipe.vocab_size)
    train, validation = (
        Samples(
            reader, splits[name], recipe.seq_length, recipe.seed, place,
            content_id=content.content_id,
        )
        for name in ("train", "validation")
    )  # fmt: skip
    return Loaded(train, validation)


def check(folder: Path, recipe: GptRecipe) -> DataFacts:
    """Check all that ``recipe`` reads and name the content.

    Raises:
        UsageError, DataError: as ``load``.
    """
    loaded = load(folder, recipe)
    best = None
    if recipe.data == "generated":
        from .generate import best_loss

        best = best_loss(recipe)
    return DataFacts(
        len(loaded.train), len(loaded.validation), loaded.train.content_id, LAYOUT,
        best_quality=best,
    )  # fmt: skip
