"""Turn a download of ReCoRD, a vocabulary and a checkpoint into one data folder.

``trainmark.data.prepared`` writes the files, completely or not at all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainmark.data import prepared
from trainmark.data.splits import find_layout
from trainmark.data.tokenizer import SETTINGS_FILES
from trainmark.errors import DataError

from .data import HDF5, JSONL, LATEST, MODEL_FOLDER, find_checkpoint
from .data.hdf5 import SparseFile
from .data.hdf5_matrices import copy_as_csr
from .data.passages import find_vocabulary_file, open_vocabulary
from .data.record_jsonl import read_passages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.data.prepared import Say

FORMAT = 2
FAULT = partial(
    DataError,
    rule=(
        "the raw data folder must contain train.jsonl and val.jsonl of ReCoRD, or "
        "train_sparse.hdf5 and eval_sparse.hdf5, at its top level or where the archives place them"
    ),
    fix="download ReCoRD as the case's README describes",
)
PUBLISHED_TOKENS = 30_522  # of bert-large-uncased
# Questions of the published ReCoRD, https://huggingface.co/datasets/aps/super_glue
PUBLISHED_QUESTIONS = {"train": 100_730, "validation": 10_000}


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write the data folder ``data`` from ``raw``: both splits, vocabulary, checkpoint.

    Args:
        raw: a folder with ReCoRD's jsonl files and a vocabulary in ``model/``, or with the
            published HDF5 files; optionally with a checkpoint in it or in a subfolder.
        data: a missing or empty folder. If it was prepared from the same files, it stays as it is.
        say: called with each line of progress.

    Raises:
        DataError: a source is missing or damaged, or ``data`` has any other content.
        EnvironmentFault: a file cannot be read or written.
    """
    layout = find_layout(raw, (JSONL, HDF5), FAULT)
    copies: dict[str, Path] = {}  # source of each file that is copied, by its path in ``data``
    notes: list[str] = []  # lines that ``write_splits`` shows before it writes
    source_form = HDF5
    write = _write_matrices
    if layout.kind == JSONL.kind:
        source_form = JSONL
        write = _write_passages
        # HDF5 files contain tokens, so only text needs a vocabulary.
        vocabulary = find_vocabulary_file(raw / MODEL_FOLDER)
        copies[f"{MODEL_FOLDER}/{vocabulary.name}"] = vocabulary
        # The settings of the tokenizer, ``tokenizer_config.json``, are optional.
        settings = vocabulary.with_name(SETTINGS_FILES[0])
        if settings.is_file():
            copies[f"{MODEL_FOLDER}/{settings.name}"] = settings
        notes.append(_describe_vocabulary(vocabulary))
    # A checkpoint has two files: ``LATEST`` has the name of a folder beside it, and this folder has
    # the weights. A checkpoint is optional, but ``find_checkpoint``, which returns the file with
    # the weights, raises an error if there is none.
    if (raw / LATEST).exists() or any(raw.glob(f"*/{LATEST}")):
        checkpoint = find_checkpoint(raw)
        folder = checkpoint.parent
        copies[f"{MODEL_FOLDER}/{LATEST}"] = folder.parent / LATEST
        copies[f"{MODEL_FOLDER}/{folder.name}/{checkpoint.name}"] = checkpoint
    else:
        notes.append("no checkpoint: this data only works with init=random")
    prepared.write_splits(
        data,
        raw,
        say,
        case="glm_superglue",
        format_version=FORMAT,  # version of what is written
        layout=layout,
        # The path of each split in ``data``. The form lists several paths that a split may have in
        # ``raw``; the last one has no subfolder.
        names={split: names[-1] for split, names in source_form.names.items()},
        write=write,
        copies=copies,
        published=PUBLISHED_QUESTIONS,  # to tell the user if the numbers of questions differ
        notes=notes,
    )


def _describe_vocabulary(file: Path) -> str:
    """Return a note with the size of a vocabulary, and with the published size if it differs."""
    tokenizer = open_vocabulary(file).tokenizer
    num_tokens = tokenizer.get_vocab_size()
    note = f"{file.name}: {num_tokens:,} tokens"
    if num_tokens != PUBLISHED_TOKENS:
        note += f"; NOT bert-large-uncased's {PUBLISHED_TOKENS:,}"
    return note


def _write_passages(files: Sequence[Path], target: Path) -> dict[str, int]:
    """Copy a split and check every line; return its numbers of questions and passages."""
    prepared.copy_file(files[0], target)  # a split has one file
    questions_of_passages = [len(passage.questions) for passage in read_passages(files[0])]
    return {"questions": sum(questions_of_passages), "passages": len(questions_of_passages)}


def _write_matrices(files: Sequence[Path], target: Path) -> dict[str, int]:
    """Write a split with its matrices stored by rows, and check every sequence.

    Returns:
        An empty dictionary: the caller compares the number of questions with the published one, but
        a file of matrices does not contain that number.
    """
    copy_as_csr(files[0], target)  # a split has one file
    try:
        # Files are named as published: train_sparse.hdf5 and, with the validation split,
        # eval_sparse.hdf5.
        is_validation = target.name.startswith("eval")
        SparseFile(target, evaluation=is_validation).scan_sequences()
    except DataError as error:
        # Name the source in the error: it has the same fault, and the caller removes ``target``.
        if error.where:
            error.where = error.where.replace(str(target), str(files[0]))
        raise
    return {}
