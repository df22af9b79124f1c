"""Write dialogues, questions and a model into a data folder, completely or not at all.

Owns which raw downloads count as sources. ``trainmark.data.prepared`` writes the files and
resumes interrupted calls; the readers of the files check their content.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.data import prepared_first as prepared
from trainmark.data.checkpoint_shapes import INDEX, SINGLE
from trainmark.data.model_config import CONFIG
from trainmark.errors import DataError

from .data import MMLU, MODEL, dialogues
from .data.tokens import FAST, PIECES, SETTINGS, open_tokenizer
from .mmlu.questions import SUBJECTS, read_mmlu
from .model_files import check_weights, read_config, weight_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.data.prepared_first import Say, Unfinished
    from trainmark.data.split_layout import Layout

FORMAT = 1
CASE = "llama2_7b_lora"
WRITTEN = {"train": "train.jsonl", "validation": "val.jsonl"}
# Rows of the published corpus, https://huggingface.co/datasets/Samsung/samsum
PUBLISHED_ROWS = {"train": 14_732, "validation": 818}
ARCHIVES = (".7z", ".zip", ".tar", ".tgz", ".gz")
ENDINGS = (".json", ".jsonl", ".parquet", ".arrow", ".csv", ".safetensors")
WHERE_DIALOGUES = (
    "samsum comes as corpus.7z (train.json, val.json) with its paper, arXiv 1911.12237, or from "
    "the dataset hub as samsum; unpack it into the raw folder"
)
WHERE_MODEL = (
    "the model comes from the model hub as Llama-2-7b-hf: config.json, safetensors, "
    "tokenizer.json or tokenizer.model"
)
WHERE_MMLU = "MMLU comes as data.tar with its paper, arXiv 2009.03300; unpack it"


@dataclass(frozen=True, slots=True)
class Source:
    """Checked sources; ``mmlu`` is None if the raw folder has no questions."""

    dialogues: Layout
    model: Path
    mmlu: Path | None

    def copies(self) -> dict[str, Path]:
        """Return the files that are copied, by their names below the data folder."""
        names = [CONFIG, FAST, PIECES, *SETTINGS, INDEX]
        if has_weights(self.model):
            names += [file.name for file in weight_files(self.model)]
        files = {f"{MODEL}/{name}": self.model / name for name in names}
        found = {name: file for name, file in files.items() if file.is_file()}
        for subject in SUBJECTS if self.mmlu else ():
            for split in ("dev", "test"):
                name = f"{split}/{subject}_{split}.csv"
                assert self.mmlu is not None
                found[f"{MMLU}/{name}"] = self.mmlu / name
        return found


def has_weights(model: Path) -> bool:
    """Tell whether a model folder holds weights in a supported format."""
    return any((model / name).is_file() for name in (SINGLE, INDEX))


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write ``data`` from the folder ``raw`` with dialogues, a model and MMLU.

    Calling again with the same sources reuses every finished file whose sha256 still matches.

    Args:
        say: called with each line of progress.

    Raises:
        DataError: a source is missing or damaged, or ``data`` was not written by this command.
        EnvironmentFault: the operating system refused an operation.
    """

    def write(raw: Path, unfinished: Unfinished) -> None:
        source = find_source(raw)
        if source.mmlu is None:
            say(f"no MMLU found: only mmlu_mode=off will run on this data. {WHERE_MMLU}")
        if not has_weights(source.model):
            say("no safetensors in the model folder: only init=random will run on this data")
        _write(source, unfinished, say)
        _tell_counts(unfinished.manifest["counts"], say)

    prepared.prepare(raw, data, say, case=CASE, form=FORMAT, raw_files=_raw_files, write=write)


def _raw_files(raw: Path) -> dict[str, Path]:
    """Return the raw files that matter, by name below ``raw``."""
    if not raw.is_dir():
        remedy = f"{WHERE_DIALOGUES}; {WHERE_MODEL}; {WHERE_MMLU}"
        raise DataError("no such folder", where=str(raw), remedy=remedy)
    files = [file for file in raw.rglob("*") if file.is_file()]
    return {
        file.relative_to(raw).as_posix(): file
        for file in files
        if file.suffix in ENDINGS or file.name == PIECES
    }


def find_source(raw: Path) -> Source:
    """Find dialogues, model and questions anywhere below ``raw``, and check them.

    Raises:
        DataError: dialogues or a model are missing, found twice, or damaged.
    """
    folders = [raw, *sorted(item for item in raw.rglob("*") if item.is_dir())]
    only = partial(prepared.only, where=str(raw))
    unpack = _unpack_hint(raw)
    models = [folder for folder in folders if _is_model(folder)]
    model = only("model folder", models, remedy=unpack + WHERE_MODEL)
    config = read_config(model)
    open_tokenizer(model, vocab_size=config.vocab_size)
    if has_weights(model):
        check_weights(model, config)
    places = [folder for folder in folders if dialogues.splits_in(folder)]
    found = dialogues.splits_in(only("dialogues", places, remedy=unpack + WHERE_DIALOGUES))
    assert found is not None
    trees = [folder for folder in folders if (folder / "dev").is_dir() and _asks(folder)]
    mmlu = only("MMLU", trees, remedy=WHERE_MMLU) if trees else None
    if mmlu:
        read_mmlu(mmlu)
    return Source(found, model, mmlu)


def _is_model(folder: Path) -> bool:
    file = folder / CONFIG
    if not file.is_file():
        return False
    try:
        raw = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return True  # take a damaged config for the model's: the check reports the damage
    return isinstance(raw, dict) and raw.get("model_type") == "llama"


def _asks(folder: Path) -> bool:
    return any((folder / "test").glob("*_test.csv"))


def _unpack_hint(raw: Path) -> str:
    packed = sorted(x.name for x in raw.rglob("*") if x.name.lower().endswith(ARCHIVES))
    return f"unpack {', '.join(packed[:3])} first; " if packed else ""


def _write_dialogues(
    files: Sequence[Path], split: str, counts: dict[str, Any], target: Path
) -> None:
    """Write a split as JSON lines, and count its rows."""
    rows = dialogues.read_dialogues(files)
    with target.open("w", encoding="utf-8", newline="\n") as stream:
        for dialogue, summary in zip(rows.dialogues, rows.summaries, strict=True):
            row = {"dialogue": dialogue, "summary": summary}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    counts[split] = {"rows": len(rows)}


def _write(source: Source, unfinished: Unfinished, say: Say) -> None:
    """Write every file that no earlier call finished."""
    counts = unfinished.manifest["counts"]
    for split, files in source.dialogues.files.items():
        unfinished.once(WRITTEN[split], partial(_write_dialogues, files, split, counts), say)
    for name, file in source.copies().items():
        is_question = name.startswith(f"{MMLU}/")  # over a hundred files: no line for each
        tell = (lambda _: None) if is_question else say
        unfinished.once(name, partial(shutil.copyfile, file), tell)


def _tell_counts(counts: dict[str, Any], say: Say) -> None:
    for split, published in PUBLISHED_ROWS.items():
        rows = counts[split]["rows"]
        note = "" if rows == published else f"; NOT the published samsum, which has {published:,}"
        say(f"{split}: {rows:,} dialogues{note}")
