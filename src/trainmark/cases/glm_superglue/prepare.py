"""Lay a download of ReCoRD, a vocabulary and a checkpoint out as one data folder.

Owns which files count as sources and which are written from them. ``trainmark.data.prepared``
writes the files and resumes interrupted calls.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from trainmark.data import prepared
from trainmark.data.files import find_layout
from trainmark.data.model_config import TOKENIZER_FILES

from .data import HDF5, JSONL, MODEL
from .data.hdf5 import write_rows
from .data.passages import REMEDY, open_vocabulary, vocabulary_file
from .data.record_jsonl import read_passages
from .data.weights import LATEST, find_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import Say

FORMAT = 2
RULE = (
    "a download has train.jsonl and val.jsonl of ReCoRD, or train_sparse.hdf5 and "
    "eval_sparse.hdf5, in itself or where the archives keep them"
)
FETCH = "fetch ReCoRD as the case's README says"
PUBLISHED_TOKENS = 30_522  # of bert-large-uncased
# Questions of the published ReCoRD, https://huggingface.co/datasets/aps/super_glue
PUBLISHED_QUESTIONS = {"train": 100_730, "validation": 10_000}


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write ``data`` from ``raw``: both splits as they are, vocabulary, checkpoint.

    Calling again with the same sources keeps every finished file whose sha256 still fits.

    Args:
        raw: a folder with ReCoRD's jsonl files and a vocabulary, or with the published HDF5
            files, and a checkpoint if there is one, in itself or in folders right below.
        say: called with each line of progress.

    Raises:
        DataError: something is missing or damaged, or ``data`` is not this call's to write.
        EnvironmentFault: no room, or no permission.
    """
    layout = find_layout(raw, (JSONL, HDF5), rule=RULE, remedy=FETCH)
    form = JSONL if layout.kind == JSONL.kind else HDF5
    copies = {form.names[split][-1]: file for split, (file,) in layout.files.items()}
    folders = [raw, *sorted(item for item in raw.iterdir() if item.is_dir())]
    if form is JSONL:
        named = [
            place for place in folders if any((place / name).is_file() for name in TOKENIZER_FILES)
        ]
        remedy = REMEDY.replace("into model/", "there")
        place = prepared.only("vocabulary", named, where=str(raw), remedy=remedy)
        vocabulary = vocabulary_file(place)
        copies[f"{MODEL}/{vocabulary.name}"] = vocabulary
        tokens = open_vocabulary(vocabulary).library.get_vocab_size()
        note = (
            "" if tokens == PUBLISHED_TOKENS else f"; NOT bert-large-uncased's {PUBLISHED_TOKENS:,}"
        )
        say(f"{vocabulary.name}: {tokens:,} tokens{note}")
    has_weights = any((place / LATEST).exists() for place in folders)
    checkpoint = find_checkpoint(raw) if has_weights else None
    if checkpoint:
        folder = checkpoint.parent
        copies[f"{MODEL}/{LATEST}"] = folder.parent / LATEST
        copies[f"{MODEL}/{folder.name}/{checkpoint.name}"] = checkpoint
    sources = {file.relative_to(raw).as_posix(): file for file in copies.values()}
    with prepared.writing(data, raw, sources, say, case="glm_superglue", form=FORMAT) as unfinished:
        if unfinished is None:
            return
        if checkpoint is None:
            say("no checkpoint: only init=random will run on this data")
        for name, file in copies.items():
            copy = write_rows if name.endswith(".hdf5") else shutil.copyfile
            unfinished.file(name, partial(copy, file))
        for split, (file,) in layout.files.items() if form is JSONL else ():
            passages = list(read_passages(file))
            questions = sum(len(passage.questions) for passage in passages)
            unfinished.manifest["counts"][split] = {
                "passages": len(passages), "questions": questions
            }  # fmt: skip
            published = PUBLISHED_QUESTIONS[split]
            note = "" if questions == published else f"; NOT the published {published:,}"
            say(f"{split}: {len(passages):,} passages, {questions:,} questions{note}")
