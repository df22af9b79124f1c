"""Lay a download of ReCoRD, a vocabulary and a checkpoint out as one data folder.

Owns what counts as a source and which files are written from it; how they are kept and
gone on with is ``trainmark.data.prepared``'s.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.data import prepared
from trainmark.data.wordpiece import FILES
from trainmark.errors import DataError

from .checkpoint_files import EXPORTED, LATEST, find_checkpoint
from .data import MODEL, SPLITS, Layout, find_layout
from .token_cache import FOLDER, kept_file, read_split
from .tokens import REMEDY, open_vocabulary, vocabulary_file

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished

    from .passages import Passages

FORMAT = 1
NAMES = {"train": "train.jsonl", "validation": "val.jsonl"}
PUBLISHED_TOKENS = 30_522  # of bert-large-uncased
# Questions of the published ReCoRD, https://huggingface.co/datasets/aps/super_glue
PUBLISHED_QUESTIONS = {"train": 100_730, "validation": 10_000}


@dataclass(frozen=True, slots=True)
class Source:
    """The raw files, each of them there.

    Args:
        splits: ReCoRD's jsonl files.
        vocabulary: ``tokenizer.json`` or ``vocab.txt``.
        checkpoint: the file with the weights; none: there is none.
    """

    splits: dict[str, Path]
    vocabulary: Path
    checkpoint: Path | None

    @property
    def files(self) -> list[Path]:
        """All files that the data folder follows from."""
        return [*self.splits.values(), self.vocabulary, *filter(None, [self.checkpoint])]


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write ``data`` from ``raw``: passages and their tokens, vocabulary, safetensors.

    Calling again with the same sources keeps every finished file whose sha256 still fits.

    Args:
        raw: a folder with train.jsonl and val.jsonl, a vocabulary, and a checkpoint if
            there is one, in itself or in folders right below.
        say: called with one line for each thing done, kept or found.

    Raises:
        DataError: something is missing or damaged, or ``data`` is not this call's to write.
        EnvironmentFault: no room, no permission.
    """
    with prepared.alone(data) as folder:
        _prepare(raw.resolve(), folder, say)


def find_source(raw: Path) -> Source:
    """Find what a data folder is made of.

    Raises:
        DataError: something is missing, there several times, or prepared already.
    """
    layout: Layout = find_layout(raw)
    if layout.kind == "hdf5":
        raise DataError(
            "the published HDF5 files need no preparing",
            where=str(raw),
            rule="passages in train.jsonl and val.jsonl are prepared",
            remedy=f"`trainmark run glm_superglue --data {raw}`",
        )
    folders = [raw, *sorted(item for item in raw.iterdir() if item.is_dir())]
    named = [place for place in folders if any((place / name).is_file() for name in FILES)]
    if len(named) != 1:
        names = ", ".join(place.name for place in named)
        raise DataError(
            f"{len(named)} vocabularies: {names}" if named else "no vocabulary",
            where=str(raw),
            rule=f"one folder, the raw one or one right below it, holds {' or '.join(FILES)}",
            remedy=REMEDY.replace("into model/", "there"),
        )
    has_weights = any((place / name).exists() for place in folders for name in (EXPORTED, LATEST))
    weights = find_checkpoint(raw) if has_weights else None
    return Source(layout.files, vocabulary_file(named[0]), weights)


def _prepare(raw: Path, data: Path, say: Say) -> None:
    prepared.refuse_inside(data, raw)
    source = find_source(raw)
    named = {file.relative_to(raw).as_posix(): file for file in source.files}
    say(f"{len(named)} files: taking their sha256")
    made_of = {
        "format": FORMAT,
        "case": "glm_superglue",
        "sources": prepared.fingerprints(named),
    }
    unfinished = prepared.resume(data, made_of=made_of, fresh={"counts": {}}, say=say)
    if unfinished is None:
        return
    with unfinished.worth_keeping():
        _tell_vocabulary(source.vocabulary, say)
        _write(source, unfinished, say)
    _tell(unfinished.manifest["counts"], say)
    unfinished.finish()
    say(f"done: {data}")


def _write(source: Source, unfinished: Unfinished, say: Say) -> None:
    """Write every file that no earlier call finished; the one most likely refused comes first."""
    vocabulary = f"{MODEL}/{source.vocabulary.name}"
    if source.checkpoint is None:
        say("no checkpoint: only init=random will run on this data")
    else:
        from .checkpoint import export

        folder = source.checkpoint.parent
        if source.checkpoint.name != EXPORTED:
            folder = folder.parent  # of the folder named after an iteration
        _once(f"{MODEL}/{EXPORTED}", partial(export, folder), unfinished, say)
    copies = {NAMES[split]: source.splits[split] for split in SPLITS}
    copies[vocabulary] = source.vocabulary
    for relative, file in copies.items():
        _once(relative, partial(shutil.copyfile, file), unfinished, say)
    for split in SPLITS:
        _tokens(split, unfinished, unfinished.partial / vocabulary, say)


def _once(relative: str, make: Any, unfinished: Unfinished, say: Say) -> None:
    if relative in unfinished.files:
        say(f"kept {relative}: finished before, its sha256 fits")
        return
    say(f"writing {relative}")
    unfinished.write(relative, make)
    unfinished.save()


def _tokens(split: str, unfinished: Unfinished, vocabulary: Path, say: Say) -> None:
    """Tokenise a split into the place where a run looks for it, and count it."""
    folder = unfinished.partial
    file, place = folder / NAMES[split], folder / FOLDER
    relative = kept_file(file, vocabulary, place).relative_to(folder).as_posix()
    if relative in unfinished.files:
        say(f"kept {relative}: finished before, its sha256 fits")
        return
    say(f"tokenising {file.name}")
    unfinished.manifest["counts"][split] = _counts(read_split(file, vocabulary, place))
    unfinished.keep(relative)
    unfinished.save()


def _counts(passages: Passages) -> dict[str, int]:
    return {
        "passages": len(passages.texts),
        "questions": passages.num_questions,
        "answers": len(passages.answers.values),
        "entities": int(passages.num_entities.sum()),
        "longest_passage_tokens": int(passages.texts.lengths.max()),
    }


def _tell_vocabulary(file: Path, say: Say) -> None:
    """Open a vocabulary and say how large it is: another model's would be read as well."""
    tokens = open_vocabulary(file).library.get_vocab_size()
    line = f"{file.name}: {tokens:,} tokens"
    if tokens != PUBLISHED_TOKENS:
        line += f"; NOT the vocabulary of bert-large-uncased, which has {PUBLISHED_TOKENS:,}"
    say(line)


def _tell(counts: dict[str, dict[str, int]], say: Say) -> None:
    for split, published in PUBLISHED_QUESTIONS.items():
        found = counts[split]
        line = (
            f"{split}: {found['passages']:,} passages, {found['questions']:,} questions, "
            f"{found['answers']:,} answers, "
            f"longest passage {found['longest_passage_tokens']} tokens"
        )
        if found["questions"] != published:
            line += f"; NOT the published ReCoRD, which has {published:,} questions"
        say(line)
