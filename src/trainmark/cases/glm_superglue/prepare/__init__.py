"""Lay a download of ReCoRD, a vocabulary and a checkpoint out as one data folder.

Owns which files count as sources and which are written from them. ``trainmark.data.prepared``
writes the files and resumes interrupted calls.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data import prepared_first as prepared
from trainmark.data.split_layout import find_layout
from trainmark.data.wordpiece import FILES
from trainmark.errors import DataError

from ..data import HDF5, JSONL, MODEL, PREPARED, TOKENS
from ..data.passages import cached_name, tokenise
from ..data.record_jsonl import read_passages
from ..data.tokens import REMEDY, open_vocabulary, vocabulary_file
from ..data.weights import EXPORTED, LATEST, find_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainmark.data.prepared_first import Say, Unfinished

    from ..data.passages import Passages

FORMAT = 1
RULE = (
    "a download has train.jsonl and val.jsonl of ReCoRD, or train_sparse.hdf5 and "
    "eval_sparse.hdf5, in itself or where the archives keep them"
)
FETCH = "fetch ReCoRD as the case's README says"
PUBLISHED_TOKENS = 30_522  # of bert-large-uncased
# Questions of the published ReCoRD, https://huggingface.co/datasets/aps/super_glue
PUBLISHED_QUESTIONS = {"train": 100_730, "validation": 10_000}


@dataclass(frozen=True, slots=True)
class Source:
    """The raw files, each of them there.

    Args:
        kind: ``jsonl`` or ``hdf5``.
        splits: the file of each.
        vocabulary: ``tokenizer.json`` or ``vocab.txt``; none: the splits are tokens already.
        checkpoint: the file with the weights; None: there is no such file.
    """

    kind: str
    splits: dict[str, Path]
    vocabulary: Path | None
    checkpoint: Path | None

    @property
    def files(self) -> list[Path]:
        """All files that the data folder follows from."""
        return [*self.splits.values(), *filter(None, [self.vocabulary, self.checkpoint])]


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write ``data`` from ``raw``: passages and their tokens, vocabulary, safetensors.

    Calling again with the same sources keeps every finished file whose sha256 still fits.

    Args:
        raw: a folder with ReCoRD's jsonl files and a vocabulary, or with the published HDF5
            files, and a checkpoint if there is one, in itself or in folders right below.
        say: called with each line of progress.

    Raises:
        DataError: something is missing or damaged, or ``data`` is not this call's to write.
        EnvironmentFault: no room, no permission, or h5py is needed and not installed.
    """

    def raw_files(raw: Path) -> dict[str, Path]:
        found = {file.relative_to(raw).as_posix(): file for file in find_source(raw).files}
        say(f"{len(found)} files: taking their sha256")
        return found

    def write(raw: Path, unfinished: Unfinished) -> None:
        _write(find_source(raw), unfinished, say)
        _tell(unfinished.manifest["counts"], say)

    prepared.prepare(
        raw, data, say, case="glm_superglue", form=FORMAT, raw_files=raw_files, write=write
    )


def find_source(raw: Path) -> Source:
    """Find what a data folder is made of.

    Raises:
        DataError: something is missing, there several times, or prepared already.
    """
    layout = find_layout(raw, (JSONL, HDF5), rule=RULE, remedy=FETCH)
    folders = [raw, *sorted(item for item in raw.iterdir() if item.is_dir())]
    has_weights = any((place / name).exists() for place in folders for name in (EXPORTED, LATEST))
    return Source(
        layout.kind,
        {split: file for split, (file,) in layout.files.items()},
        _vocabulary(raw, folders) if layout.kind == JSONL.kind else None,
        find_checkpoint(raw) if has_weights else None,
    )


def _vocabulary(raw: Path, folders: list[Path]) -> Path:
    named = [place for place in folders if any((place / name).is_file() for name in FILES)]
    if len(named) != 1:
        names = ", ".join(place.name for place in named)
        raise DataError(
            f"{len(named)} vocabularies: {names}" if named else "no vocabulary",
            where=str(raw),
            rule=f"one folder, the raw one or one right below it, holds {' or '.join(FILES)}",
            remedy=REMEDY.replace("into model/", "there"),
        )
    return vocabulary_file(named[0])


def _write(source: Source, unfinished: Unfinished, say: Say) -> None:
    """Write every file that no earlier call finished; the one most likely refused comes first."""
    if source.vocabulary is not None:
        _tell_vocabulary(source.vocabulary, say)
    if source.checkpoint is None:
        say("no checkpoint: only init=random will run on this data")
    else:
        from ..checkpoint import export

        folder = source.checkpoint.parent
        if source.checkpoint.name != EXPORTED:
            folder = folder.parent  # of the folder named after an iteration
        unfinished.once(f"{MODEL}/{EXPORTED}", partial(export, folder), say)
    if source.vocabulary is not None:
        copies = {JSONL.names[split][0]: file for split, file in source.splits.items()}
        copies[f"{MODEL}/{source.vocabulary.name}"] = source.vocabulary
        for relative, file in copies.items():
            unfinished.once(relative, partial(shutil.copyfile, file), say)
    for split, file in source.splits.items():
        if source.vocabulary is None:
            name, read = PREPARED.names[split][0], partial(_converted, file, split)
        else:
            name = cached_name(file, source.vocabulary)
            read = partial(_tokenised, file, source.vocabulary)
        write = partial(_write_tokens, split, read, unfinished.manifest["counts"])
        unfinished.once(f"{TOKENS}/{name}", write, say)


def _converted(file: Path, split: str) -> Passages:
    from .hdf5 import read_hdf5

    return read_hdf5(file, evaluation=split == "validation")


def _tokenised(file: Path, vocabulary: Path) -> Passages:
    return tokenise(read_passages(file), open_vocabulary(vocabulary))


def _write_tokens(
    split: str, read: Callable[[], Passages], counts: dict[str, Any], target: Path
) -> None:
    """Write a split as tokens, and count it."""
    passages = read()
    counts[split] = _counts(passages)
    with target.open("wb") as stream:
        np.savez(stream, **passages.arrays())  # type: ignore[arg-type]


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
