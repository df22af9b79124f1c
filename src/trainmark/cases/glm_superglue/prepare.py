"""Turn a download of ReCoRD, a vocabulary and a checkpoint into one data folder.

``trainmark.data.prepared`` writes the files, completely or not at all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainmark.data import prepared
from trainmark.data.splits import find_layout
from trainmark.data.tokenizer import SETTINGS
from trainmark.errors import DataError

from .data import HDF5, JSONL, LATEST, MODEL, find_checkpoint
from .data.hdf5 import SparseFile, write_rows
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
        "a download must contain train.jsonl and val.jsonl of ReCoRD, or train_sparse.hdf5 and "
        "eval_sparse.hdf5, at the top or where the archives have them"
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
        say: called with each line of progress.

    Raises:
        DataError: a source is missing or damaged, or ``data`` has other content.
        EnvironmentFault: a file cannot be read or written.
    """
    layout = find_layout(raw, (JSONL, HDF5), FAULT)
    form = JSONL if layout.kind == JSONL.kind else HDF5
    copies, notes = {}, []
    if form is JSONL:
        vocabulary = find_vocabulary_file(raw / MODEL)
        copies[f"{MODEL}/{vocabulary.name}"] = vocabulary
        settings = vocabulary.with_name(SETTINGS[0])
        if settings.is_file():
            copies[f"{MODEL}/{settings.name}"] = settings
        num_tokens = open_vocabulary(vocabulary).library.get_vocab_size()
        note = f"{vocabulary.name}: {num_tokens:,} tokens"
        if num_tokens != PUBLISHED_TOKENS:
            note += f"; NOT bert-large-uncased's {PUBLISHED_TOKENS:,}"
        notes.append(note)
    if (raw / LATEST).exists() or any(raw.glob(f"*/{LATEST}")):
        checkpoint = find_checkpoint(raw)
        folder = checkpoint.parent
        copies[f"{MODEL}/{LATEST}"] = folder.parent / LATEST
        copies[f"{MODEL}/{folder.name}/{checkpoint.name}"] = checkpoint
    else:
        notes.append("no checkpoint: this data only works with init=random")
    prepared.write_splits(
        data,
        raw,
        say,
        case="glm_superglue",
        form=FORMAT,
        layout=layout,
        names={split: names[-1] for split, names in form.names.items()},
        write=_write_passages if form is JSONL else _write_rows,
        copies=copies,
        published=PUBLISHED_QUESTIONS,
        notes=notes,
    )


def _write_passages(files: Sequence[Path], target: Path) -> dict[str, int]:
    """Copy a split; return its numbers of questions and passages."""
    prepared.copy_file(files[0], target)
    num_questions = [len(passage.questions) for passage in read_passages(files[0])]
    return {"questions": sum(num_questions), "passages": len(num_questions)}


def _write_rows(files: Sequence[Path], target: Path) -> dict[str, int]:
    """Write a split with its matrices stored by rows, and check every number."""
    write_rows(files[0], target)
    try:
        SparseFile(target, evaluation=target.name.startswith("eval")).scan_sequences()
    except DataError as error:  # name the source: it has the same fault, and target is removed
        if error.where:
            error.where = error.where.replace(str(target), str(files[0]))
        raise
    return {}
