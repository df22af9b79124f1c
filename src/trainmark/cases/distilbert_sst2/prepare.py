"""Convert a raw download of SST-2 into the npz format.

``trainmark.data.prepared`` writes the files, completely or not at all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trainmark.data import prepared
from trainmark.data.model_folder import CONFIG_FILE
from trainmark.data.splits import find_layout
from trainmark.data.tokenizer import BERT_FILES, SETTINGS_FILES
from trainmark.errors import DataError

from .data import FORMS, NPZ, RULE
from .data.model_files import WEIGHTS, check_weights, open_tokenizer, read_config, tokenize
from .data.rows import pad_rows, read_npz, read_texts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.data.prepared import Say

FORMAT = 1
# Row counts of the published SST-2, https://huggingface.co/datasets/stanfordnlp/sst2
PUBLISHED_ROWS = {"train": 67_349, "validation": 872}
OUTPUT_SEQ_LENGTH = 512
WHERE_DATA = (
    "SST-2 is distributed by the GLUE benchmark as SST-2.zip (train.tsv, dev.tsv), and on "
    "dataset hubs as sst2 or glue/sst2 (parquet); unpack archives into the raw data folder"
)


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write the data folder ``data``: both splits as npz files, and the files of the model.

    Args:
        raw: folder with SST-2 in one of ``FORMS`` (npz, parquet or TSV), and with ``model/``.
        data: a missing or empty folder. If it was prepared from the same files, it stays as it is.
        say: called with each line of progress.

    Raises:
        DataError: a source is missing or damaged, or ``data`` has any other content.
        EnvironmentFault: a file cannot be read or written.
    """
    layout = find_layout(raw, FORMS, partial(DataError, rule=RULE, fix=WHERE_DATA))
    model = raw / "model"
    config = read_config(model)
    if layout.kind != NPZ.kind:  # an npz file has ids already and needs no tokenizer
        open_tokenizer(model, config)  # raises an error now if it does not fit
    # Configuration, tokenizer and its settings. Not all of them need to exist; those that do are
    # copied below.
    model_files = [model / name for name in (CONFIG_FILE, *BERT_FILES, *SETTINGS_FILES)]
    notes = []  # lines to show before anything is written
    # Weights are optional, but ``check_weights`` raises an error if there are none.
    if any((model / name).is_file() for name in WEIGHTS):
        model_files.append(check_weights(model, config))
    else:
        notes.append("no weights in the model folder: this data only works with init=random")
    prepared.write_splits(
        data,
        raw,
        say,
        case="distilbert_sst2",
        format_version=FORMAT,  # version of what is written here
        layout=layout,
        notes=notes,
        # Where each split is written in ``data``: as the one file name that ``NPZ`` allows it.
        names={split: f"dataset/{name}" for split, (name,) in NPZ.names.items()},
        write=partial(_write_split, layout.kind, model),
        # ``data`` gets a folder ``model`` with these files.
        copies={f"model/{file.name}": file for file in model_files if file.is_file()},
        published=PUBLISHED_ROWS,  # another number of rows is shown as a difference
    )


def _write_split(kind: str, model: Path, files: Sequence[Path], target: Path) -> dict[str, int]:
    """Write a split as an npz file with the members of the published one; return counts to show.

    A source that is such an npz file is copied. From text, integers are written as int32 and int8,
    smaller types than the published file has: they need less memory, and the readers of this case
    accept integers of any type.

    Args:
        kind: form of the source files: ``npz``, ``parquet`` or ``tsv``.
        model: folder of the model.
        files: the source files of the split.
        target: path of the file to write.
    """
    config = read_config(model)
    num_truncated = 0
    if kind == NPZ.kind:
        # The file is read to check every row, and for the counts. It has the published format
        # already, so it is copied.
        ids, labels = read_npz(
            files[0],
            seq_length=None,  # the width of the file: it is not cut for a recipe
            vocab_size=config.vocab_size,
            pad_token_id=config.pad_token_id,
        )
        prepared.copy_file(files[0], target)
    else:
        texts = read_texts(files)
        width = min(OUTPUT_SEQ_LENGTH, config.max_position_embeddings)
        ids, labels, num_truncated = tokenize(open_tokenizer(model, config), texts, width)
        row_numbers = np.arange(len(labels))
        padded_ids, mask = pad_rows(
            ids, row_numbers, seq_length=width, pad_token_id=config.pad_token_id
        )
        with target.open("wb") as stream:
            np.savez_compressed(
                stream,
                idx=row_numbers.astype(np.int32),
                sentence=np.array(texts.sentences),
                label=labels.astype(np.int8),
                input_ids=padded_ids.astype(np.int32),
                attention_mask=mask.astype(np.int8),
            )
    return {
        "rows": len(labels),
        "tokens at most": int(ids.lengths.max()),
        "truncated": num_truncated,
    }
