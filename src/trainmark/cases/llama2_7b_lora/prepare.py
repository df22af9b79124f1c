"""Turn raw downloads of dialogues, questions and a model into a data folder.

``trainmark.data.prepared`` writes the files, completely or not at all.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from trainmark.data import prepared
from trainmark.data.model_folder import CONFIG_FILE, INDEX_FILE, SINGLE_FILE
from trainmark.data.splits import find_layout
from trainmark.data.tokenizer import FAST_FILE, SETTINGS_FILES

from .data import MMLU, MODEL
from .data.dialogues import FORMS, make_layout_error, read_dialogues
from .mmlu.questions import list_subject_files, read_mmlu
from .model_files import check_weights, find_weight_files, open_tokenizer, read_config

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.data.prepared import Say

FORMAT_VERSION = 1
SPLIT_FILES = {"train": "train.jsonl", "validation": "val.jsonl"}
# Rows of the published corpus, arXiv 1911.12237
PUBLISHED_ROWS = {"train": 14_732, "validation": 818}
WHERE_DIALOGUES = (
    "samsum is distributed as corpus.7z (train.json, val.json) with its paper, arXiv "
    "1911.12237; copies as parquet, JSON lines or CSV also work: put train and val (or "
    "validation) into the raw data folder"
)
WHERE_MMLU = (
    "MMLU is distributed as data.tar with its paper, arXiv 2009.03300; unpack it into mmlu/"
)


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write the data folder from the published dialogues, ``model/`` and ``mmlu/`` in ``raw``.

    Args:
        raw: the folder of downloads; it is not changed.
        data: a missing or empty folder. If it was prepared from the same files, it stays as it is.
        say: called with each line of progress.

    Raises:
        DataError: a source is missing or damaged, or ``data`` has any other content.
        EnvironmentFault: a file cannot be read or written.
    """
    # The files of the dialogues, in the first of ``FORMS`` (kinds of file) that ``raw`` has.
    layout = find_layout(raw, FORMS, partial(make_layout_error, fix=WHERE_DIALOGUES))
    model = raw / MODEL
    config = read_config(model)
    open_tokenizer(model, vocab_size=config.vocab_size)  # refuses one that does not fit the model
    notes = []
    model_file_names = [CONFIG_FILE, FAST_FILE, *SETTINGS_FILES, INDEX_FILE]
    if any((model / name).is_file() for name in (SINGLE_FILE, INDEX_FILE)):
        check_weights(model, config)
        model_file_names += [file.name for file in find_weight_files(model)]
    else:
        notes.append("no safetensors in the model folder: this data only works with init=random")
    copies = {
        f"{MODEL}/{name}": model / name for name in model_file_names if (model / name).is_file()
    }
    mmlu = raw / MMLU
    if mmlu.is_dir():
        read_mmlu(mmlu)  # checks the files, which are then copied as they are
        for file in list_subject_files(mmlu).values():
            copies[f"{MMLU}/{file.parent.name}/{file.name}"] = file
    else:
        notes.append(f"no MMLU found: this data only works with mmlu_mode=off. {WHERE_MMLU}")
    prepared.write_splits(
        data,
        raw,
        say,
        case="llama2_7b_lora",
        format_version=FORMAT_VERSION,
        layout=layout,
        names=SPLIT_FILES,  # the path of each split in ``data``
        write=_write_dialogues,
        copies=copies,
        published=PUBLISHED_ROWS,  # a split with another number of rows is reported
        notes=notes,
    )


def _write_dialogues(files: Sequence[Path], target: Path) -> dict[str, int]:
    """Write a split as JSON lines; return the number of dialogues by the name to report it with.

    Args:
        files: the source files of the split.
        target: the file to write.
    """
    rows = read_dialogues(files)
    with target.open("w", encoding="utf-8", newline="\n") as stream:
        for dialogue, summary in zip(rows.dialogues, rows.summaries, strict=True):
            row = {"dialogue": dialogue, "summary": summary}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return {"dialogues": len(rows)}
