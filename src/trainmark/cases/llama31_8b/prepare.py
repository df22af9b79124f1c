"""C4's shards as the two pairs of indexed tokens that this case reads, as the published ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainmark.data.encoding import source_files, write_pairs
from trainmark.errors import DataError

from .data import TRAIN, TRAIN_SHARDS, VALIDATION, VALIDATION_DOCUMENTS

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.data.prepared import Say

SHARD = re.compile(r"(?:.*/)?c4-(train|validation)\.(\d{5})-of-\d{5}\.json(?:\.gz)?")


def prepare(raw: Path, data: Path, say: Say, **options: Any) -> None:
    """Write both pairs from a folder with ``c4-train.*`` and ``c4-validation.*``.

    No token ends a document: NeMo's script appends one on demand only, and the reference does not
    demand it (README.md, section 3). Options: ``tokenizer``, ``workers``; see ``write_pairs``.

    Raises:
        DataError: no shard of one kind, or as ``write_pairs``.
    """
    files_by_split: dict[str, dict[str, Path]] = {"train": {}, "validation": {}}
    for name, file in source_files(raw).items():
        if match := SHARD.fullmatch(name):
            kind, number = match.groups()
            if kind == "validation" or int(number) in TRAIN_SHARDS:
                files_by_split[kind][name] = file
    first, last = TRAIN_SHARDS[0], TRAIN_SHARDS[-1]
    for kind, shards in files_by_split.items():
        if not shards:
            raise DataError(
                f"no shard c4-{kind}.*.json.gz", where=str(raw),
                rule=f"C4 en has 1,024 training shards, of which {first} to {last} are trained, "
                "and 8 for validation",
                fix="download them from https://huggingface.co/datasets/allenai/c4 (en)",
            )  # fmt: skip
    count = len(files_by_split["train"])
    if count != len(TRAIN_SHARDS):
        say(f"{count} of the {len(TRAIN_SHARDS)} training shards: runs will count as open")
    write_pairs(
        raw, data, say, case="llama31_8b", ends=False, train_shards=count,
        pairs={TRAIN: files_by_split["train"], VALIDATION: files_by_split["validation"]},
        most={VALIDATION: VALIDATION_DOCUMENTS}, **options,
    )  # fmt: skip
