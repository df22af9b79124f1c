"""Write dialogues, questions and a model into a data folder, completely or not at all.

Owns which raw downloads count as sources. ``trainmark.data.prepared`` writes the files and
resumes interrupted calls; the readers of the files check their content.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING

from trainmark.data import prepared
from trainmark.data.checkpoint_shapes import INDEX, SINGLE
from trainmark.data.model_config import CONFIG

from .data import MMLU, MODEL
from .data.dialogues import FORMS, LAYOUT_RULE, read_dialogues
from .data.tokens import FAST, SETTINGS, open_tokenizer
from .mmlu.questions import read_mmlu
from .model_files import check_weights, read_config, weight_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.data.prepared import Say

FORMAT = 1
WRITTEN = {"train": "train.jsonl", "validation": "val.jsonl"}
# Rows of the published corpus, https://huggingface.co/datasets/Samsung/samsum
PUBLISHED_ROWS = {"train": 14_732, "validation": 818}
WHERE_DIALOGUES = (
    "samsum comes as corpus.7z (train.json, val.json) with its paper, arXiv 1911.12237, or from "
    "the dataset hub as samsum; unpack it into the raw folder"
)
WHERE_MODEL = (
    "the model comes from the model hub as Llama-2-7b-hf: config.json, safetensors, tokenizer.json"
)
WHERE_MMLU = "MMLU comes as data.tar with its paper, arXiv 2009.03300; unpack it"


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write ``data`` from the folder ``raw`` with dialogues, a model and MMLU anywhere in it.

    Calling again with the same sources reuses every finished file whose sha256 still matches.

    Args:
        say: called with each line of progress.

    Raises:
        DataError: a source is missing or damaged, or ``data`` was not written by this command.
        EnvironmentFault: the operating system refused an operation.
    """
    model, layout, folders = prepared.find_downloads(
        raw, FORMS, model_type="llama", rule=LAYOUT_RULE, where_model=WHERE_MODEL,
        where_data=WHERE_DIALOGUES,
    )  # fmt: skip
    config = read_config(model)
    open_tokenizer(model, vocab_size=config.vocab_size)
    names = [CONFIG, FAST, *SETTINGS, INDEX]
    has_weights = any((model / name).is_file() for name in (SINGLE, INDEX))
    if has_weights:
        check_weights(model, config)
        names += [file.name for file in weight_files(model)]
    copies = {f"{MODEL}/{name}": model / name for name in names if (model / name).is_file()}
    trees = [folder for folder in folders if any(folder.glob("test/*_test.csv"))]
    if trees:
        mmlu = prepared.only("MMLU", trees, where=str(raw), remedy=WHERE_MMLU)
        read_mmlu(mmlu)
        for file in sorted(mmlu.glob("*/*.csv")):
            copies[f"{MMLU}/{file.parent.name}/{file.name}"] = file
    files = [*copies.values(), *(file for split in layout.files.values() for file in split)]
    sources = {file.relative_to(raw).as_posix(): file for file in files}
    with prepared.writing(
        data, raw, sources, say, case="llama2_7b_lora", form=FORMAT
    ) as unfinished:
        if unfinished is None:
            return
        if not trees:
            say(f"no MMLU found: only mmlu_mode=off will run on this data. {WHERE_MMLU}")
        if not has_weights:
            say("no safetensors in the model folder: only init=random will run on this data")
        counts = unfinished.manifest["counts"]
        for split, found in layout.files.items():
            unfinished.file(WRITTEN[split], partial(_write_dialogues, found, split, counts))
        for name, file in copies.items():
            unfinished.file(name, partial(shutil.copyfile, file))
        for split, published in PUBLISHED_ROWS.items():
            note = "" if counts[split] == published else f"; NOT the published {published:,}"
            say(f"{split}: {counts[split]:,} dialogues{note}")


def _write_dialogues(
    files: Sequence[Path], split: str, counts: dict[str, int], target: Path
) -> None:
    """Write a split as JSON lines, and count its rows."""
    rows = read_dialogues(files)
    with target.open("w", encoding="utf-8", newline="\n") as stream:
        for dialogue, summary in zip(rows.dialogues, rows.summaries, strict=True):
            row = {"dialogue": dialogue, "summary": summary}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    counts[split] = len(rows)
